//! No recorded packet is lost if the process is killed, or if the capture is its standard output.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use uwarp_capture::{Capture, Direction, LinkType, Reader};

/// Environment variable with the path of the capture of the child process. It is not set in the
/// parent process.
const TARGET: &str = "UWARP_CAPTURE_TEST_TARGET";
/// Number of packets that the child process records.
const PACKETS: usize = 50;

/// Runs the test `child_records_packets` in a separate process.
fn start(target: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_records_packets", "--nocapture", "-q"])
        .env(TARGET, target)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Body of the child process, which records packets and then sleeps until the parent kills it. In
/// the parent process, this test does nothing.
#[test]
fn child_records_packets() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let capture = Capture::create(&target).unwrap();
    let interface = capture.interface("tcp", LinkType::RawIp);
    for i in 0..PACKETS {
        interface.packet(Direction::Outbound, &[&vec![1; 100 + i]]);
    }
    eprintln!("recorded");
    std::thread::sleep(Duration::from_secs(60));
}

fn wait_until_recorded(child: &mut Child) {
    let stderr = BufReader::new(child.stderr.take().unwrap());
    assert!(stderr.lines().any(|line| line.unwrap() == "recorded"));
}

#[test]
fn a_killed_process_leaves_every_packet_in_the_file() {
    let name = format!("uwarp-capture-{}-killed.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut child = start(path.to_str().unwrap());
    wait_until_recorded(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut reader = Reader::open(&path).unwrap();
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), PACKETS);
    assert!(!reader.cut_off());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_dash_writes_the_capture_to_standard_output() {
    let mut child = start("-");
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    wait_until_recorded(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    // The test harness prints a line first.
    let mut harness = String::new();
    while !stdout
        .fill_buf()
        .unwrap()
        .starts_with(&[0x0A, 0x0D, 0x0D, 0x0A])
    {
        let bytes = stdout.fill_buf().unwrap().len();
        assert!(bytes > 0, "no capture in the output: {harness}");
        harness.push(stdout.fill_buf().unwrap()[0].into());
        stdout.consume(1);
    }
    let packets = Reader::new(stdout).unwrap().map(Result::unwrap);
    assert_eq!(packets.count(), PACKETS);
}

#[cfg(target_os = "linux")]
#[test]
fn a_device_that_is_full_is_an_error_at_creation() {
    assert!(Capture::create("/dev/full").is_err());
}
