//! `uwarp rping` over every kind of device.

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use common::{Uwarp, uwarp};
use uwarp_testkit::netns::{has_tun, in_namespace, ip, wait_up};

/// Starts a server on this device, on the device's address and port 7174, and waits until it
/// listens.
fn server(device: &str) -> Uwarp {
    ready(Uwarp::start(&[&SERVER[..], &[device]].concat()))
}

const SERVER: [&str; 4] = ["rping", "-s", "-d", "--device"];

fn ready(mut server: Uwarp) -> Uwarp {
    let line = server.stdout_until("rdma_listen ");
    assert!(line.ends_with("rdma_listen 192.0.2.1:7174"), "{line}");
    server
}

/// Runs a client on this device to its end, against the server on port 7174.
#[track_caller]
fn client(device: &str) {
    let device = ["--device", device];
    let base = [
        "rping",
        "-c",
        "-a",
        "192.0.2.1",
        "-C",
        "20",
        "-S",
        "4096",
        "-v",
        "-V",
    ];
    let ended = uwarp(&[&base[..], &device[..]].concat()).expect(0);
    assert_eq!(
        ended.stdout.matches("ping data").count(),
        20,
        "{}",
        ended.stdout
    );
}

/// Directory of one test, removed on drop.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rping_over_unix_datagrams() {
    let name = format!("uwarp-cli-devices-{}", std::process::id());
    let directory = Directory(std::env::temp_dir().join(name));
    std::fs::create_dir(&directory.0).unwrap();
    let path = directory.0.display();
    let server = server(&format!("unix:{path}/a,{path}/b,ip=192.0.2.1/24"));
    client(&format!("unix:{path}/b,{path}/a,ip=192.0.2.2/24"));
    server.end().expect(0);
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

#[test]
fn a_signal_that_ends_the_command_leaves_no_socket_file() {
    let name = format!("uwarp-cli-signals-{}", std::process::id());
    let directory = Directory(std::env::temp_dir().join(name));
    std::fs::create_dir(&directory.0).unwrap();
    let path = directory.0.display();
    for (name, number) in [("INT", 2), ("TERM", 15), ("HUP", 1)] {
        let device = format!("unix:{path}/a,{path}/b,ip=192.0.2.1/24");
        let args = [&SERVER[..], &[&device]].concat();
        let server = ready(Uwarp::start_interruptible(&args));
        assert!(directory.0.join("a").exists());
        let kill = ["-s", name, &server.id().to_string()];
        assert!(Command::new("kill").args(kill).status().unwrap().success());
        let ended = server.end();
        assert_eq!(ended.status.signal(), Some(number), "{}", ended.stderr);
        assert_eq!(
            std::fs::read_dir(&directory.0).unwrap().count(),
            0,
            "SIG{name}"
        );
    }
}

in_namespace! {
    fn a_server_whose_interface_is_deleted_ends_though_nobody_ever_came() {
        for persistent in [false, true] {
            ip("link add veth0 type veth peer name veth1");
            ip("link set veth1 up");
            let device = "raw:veth0,ip=192.0.2.1/24";
            let mut args = vec!["rping", "-s", "-d", "--device", device];
            if persistent {
                args.push("-P");
            }
            let mut server = Uwarp::start(&args);
            server.stdout_until("rdma_listen ");
            ip("link del veth1");
            server.end().expect(1).says("its interface was deleted");
        }
    }

    fn another_host_with_our_address_is_named() {
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth1 up");
        let device = "raw:veth0,ip=192.0.2.1/24";
        let _first = server(device);
        // The second host probes the address twice, immediately. Probes before the link is up are
        // lost.
        wait_up("veth0");
        wait_up("veth1");
        let mut second = server("raw:veth1,ip=192.0.2.1/24");
        second.stderr_until("uses 192.0.2.1 too");
    }

    fn rping_over_a_tap_and_the_kernels_tcp() {
        if !has_tun("rping_over_a_tap_and_the_kernels_tcp") {
            return;
        }
        let server = server("tap:uw0,ip=192.0.2.1/24");
        ip("addr add 192.0.2.2/24 dev uw0");
        client("tcp");
        server.end().expect(0);
    }

    fn rping_over_a_raw_socket_and_the_kernels_tcp() {
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth1 up");
        ip("addr add 192.0.2.2/24 dev veth1");
        let server = server("raw:veth0,ip=192.0.2.1/24");
        client("tcp:192.0.2.2");
        server.end().expect(0);
    }

    fn an_address_of_the_kernel_is_refused_with_the_command_that_helps() {
        ip("link add veth0 type veth peer name veth1");
        ip("addr add 192.0.2.1/24 dev veth0");
        let device = "raw:veth0,ip=192.0.2.1/24";
        let ended = uwarp(&["rping", "-s", "--device", device]).expect(1);
        ended.says("`ip addr del 192.0.2.1/24 dev veth0`");
        ip("addr del 192.0.2.1/24 dev veth0");
        let _server = server(device);
    }
}
