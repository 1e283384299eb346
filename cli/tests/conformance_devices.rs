//! `uwarp conformance --device`: runs the suite over every kind of device.

mod common;

use common::{Ended, Uwarp, uwarp};
use uwarp_testkit::netns::{has_tun, in_namespace, ip};

/// Starts an agent over this device. Returns the process and the address of its control port.
fn agent(arguments: &[&str]) -> (Uwarp, String) {
    let mut agent = Uwarp::start(
        &[
            &["agent", "-p", "7174", "--control", "0", "--no-token"],
            arguments,
        ]
        .concat(),
    );
    let line = agent.stdout_until("control on ");
    let control = line.rsplit(' ').next().unwrap().to_owned();
    (agent, control)
}

/// Plays cases over this device in both roles. Some cases wait for the application and not only for
/// TCP.
#[track_caller]
fn plays(device: &str, target: &str, control: &str) {
    for role in ["responder", "initiator"] {
        let base = ["conformance", "--device", device, "--role", role];
        let to = ["--target", target, "--agent", control];
        let cases = ["mpa/5044-7.1*", "ddp/5041-5.2", "rdmap/5040-5.4"];
        let ended = uwarp(&[&base[..], &to, &cases].concat()).expect(0);
        all_passed(&ended);
    }
}

#[track_caller]
fn all_passed(ended: &Ended) {
    let summary = ended.stdout.lines().last().unwrap_or_default();
    let (passed, rest) = summary.split_once(" passed, 0 failed, ").unwrap();
    let skipped = rest.split_once(' ').unwrap().0;
    let number = |text: &str| text.parse::<usize>().unwrap();
    assert!(number(passed) > 3 * number(skipped), "{summary}");
}

#[test]
fn over_unix_datagrams() {
    let name = format!("uwarp-cli-conformance-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    let path = directory.display();
    let (_agent, control) = agent(&[
        "--device",
        &format!("unix:{path}/a,{path}/b,ip=192.0.2.1/24"),
    ]);
    let device = format!("unix:{path}/b,{path}/a,ip=192.0.2.2/24");
    plays(&device, "192.0.2.1:7174", &control);
    assert!(!directory.join("b").exists());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn over_the_kernels_tcp_from_an_address_that_is_named() {
    let mut agent = Uwarp::start(&["agent", "-a", "127.0.0.1", "-p", "0", "--no-token"]);
    let mut at = |what: &str| {
        let line = agent.stdout_until(what);
        line.rsplit(' ').next().unwrap().to_owned()
    };
    let (rdma, control) = (at("RDMA on "), at("control on "));
    plays("tcp:127.0.0.1", &rdma, &control);
}

#[test]
fn a_device_that_cannot_be_is_told_before_anything_runs() {
    let target = ["conformance", "--target", "192.0.2.1:7174"];
    for (device, says) in [
        ("tape:uw0", "there is no device `tape`"),
        ("tap", "neither where nor with which address"),
        ("tap:uw0", "ip="),
        ("tcp:nowhere", "not an IP address"),
    ] {
        let ended = uwarp(&[&target[..], &["--device", device]].concat()).expect(2);
        ended.says(says);
    }
    let device = "raw:uwarp-none,ip=192.0.2.2/24";
    let ended = uwarp(&[&target[..], &["--device", device]].concat()).expect(2);
    ended.says(&format!("{device} cannot be opened"));
}

in_namespace! {
    fn over_a_raw_socket() {
        ip("link set lo up");
        ip("link add veth0 type veth peer name veth1");
        ip("link set veth0 up");
        ip("link set veth1 up");
        let (_agent, control) = agent(&["--device", "raw:veth0,ip=192.0.2.1/24"]);
        plays("raw:veth1,ip=192.0.2.2/24", "192.0.2.1:7174", &control);
    }

    fn over_a_tap() {
        if !has_tun("over_a_tap") {
            return;
        }
        ip("link set lo up");
        ip("tuntap add uw0 mode tap");
        ip("addr add 192.0.2.2/24 dev uw0");
        ip("link set uw0 up");
        let (_agent, control) = agent(&["-a", "192.0.2.2"]);
        plays("tap:uw0,ip=192.0.2.1/24", "192.0.2.2:7174", &control);
    }
}
