//! Wrong usage ends with exit code 2, and a request for help with exit code 0.

mod common;

use std::process::Command;

use common::{TempDir, TempFile, Uwarp, uwarp};

#[test]
fn wrong_flags_exit_with_2() {
    for args in [
        &["nonsense"][..],
        &[],
        &["rping"],
        &["rping", "-s", "-c", "-a", "127.0.0.1"],
        &["rping", "-c"],
        &["rping", "-c", "-a", "127.0.0.1", "-p", "65536"],
        &["rping", "-c", "-a", "127.0.0.1", "-p", "0"],
        &["rping", "-c", "-a", "127.0.0.1", "-S", "22"],
        &["rping", "-c", "-a", "127.0.0.1", "-S", "65536"],
        &["rping", "-c", "-a", "127.0.0.1", "-C", "-1"],
        &["rping", "-c", "-a", "127.0.0.1", "-P"],
        &["rping", "-s", "--device", "tap:x"],
        &["rping", "-s", "--device", "ethernet:x"],
        &["rping", "-s", "--device", "tcp:localhost"],
        &["rping", "-s", "--device", "unix:/tmp/a,ip=192.0.2.1"],
        &["demo", "--device", "tap:uw0,ip=192.0.2.1"],
        &["demo", "--device", "tcp:x"],
        &["rping", "-s", "--mpa", "3"],
        &["demo", "--mtu", "575"],
        &["demo", "--mtu", "1500", "--device", "tcp"],
        &["demo", "--crc", "perhaps"],
        &["rping", "-s", "--peer", "roce"],
    ] {
        let ended = uwarp(args).expect(2);
        assert!(!ended.stderr.is_empty(), "{args:?} printed no error");
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn a_wrong_device_is_told_what_was_expected() {
    let server = |device: &str| uwarp(&["rping", "-s", "--device", device]).expect(2);
    server("tap:uw0").says("the address is missing; expected ip=ADDR/PREFIX");
    server("ethernet:x").says("there is no device `ethernet`; expected `tcp`, `tcp:ADDR`, `tap:");
    server("raw:veth0,ip=192.0.2.0/24").says("it is the address of the network");
    server("unix:a,b,ip=192.0.2.1,recovery=soon").says("expected early or timer");
    server("tap:uw0,ip=192.0.2.1,recovery=early").says("expected offload=off beside it");
    let demo = uwarp(&["demo", "--device", "unix:a,b,ip=192.0.2.1"]).expect(2);
    demo.says("both ends of the demo are in one process");
}

#[test]
fn a_device_that_cannot_be_opened_is_an_operation_that_failed() {
    let ended = uwarp(&["rping", "-s", "--device", "raw:uwarp-none,ip=192.0.2.1"]).expect(1);
    ended.says("raw:uwarp-none,ip=192.0.2.1/24 cannot be opened: there is no interface uwarp-none");
    let nowhere = TempFile::new("nowhere");
    let (a, b) = (nowhere.below("a"), nowhere.below("b"));
    let path = format!("unix:{a},{b},ip=192.0.2.1");
    let ended = uwarp(&["rping", "-c", "-a", "192.0.2.2", "--device", &path]).expect(1);
    ended.says("the directory of the LOCAL path does not exist");
}

#[test]
fn the_help_has_an_example_of_each_device() {
    let help = uwarp(&["rping", "--help"]).expect(0).stdout;
    for example in [
        "tcp:127.0.0.1",
        "tap:uw0,ip=192.0.2.1/24",
        "raw:veth0,ip=192.0.2.1/24",
        "unix:/tmp/a,/tmp/b,ip=192.0.2.1/24",
    ] {
        assert!(help.contains(example), "no {example}:\n{help}");
    }
}

#[test]
fn help_and_version_exit_with_0() {
    let help = uwarp(&["--help"]).expect(0);
    assert!(
        help.stdout.contains("demo") && help.stdout.contains("rping"),
        "{}",
        help.stdout
    );
    assert!(uwarp(&["--version"]).expect(0).stdout.starts_with("uwarp "));
    assert!(
        uwarp(&["rping", "-h"])
            .expect(0)
            .stdout
            .contains("Persistent server")
    );
    assert!(
        uwarp(&["demo", "--help"])
            .expect(0)
            .stdout
            .contains("--mtu")
    );
}

#[test]
fn a_wrong_log_filter_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    let output = command
        .arg("demo")
        .env("UWARP_LOG", "uwarp=loud")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("UWARP_LOG=uwarp=loud"), "{stderr}");
}

#[test]
fn the_log_is_off_by_default_and_on_when_asked_for() {
    let run = |log: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
        command
            .args(["rping", "-c", "-a", "127.0.0.1", "-p", "1"])
            .env_remove("UWARP_LOG");
        log.map(|log| command.env("UWARP_LOG", log));
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert!(!run(None).contains("DEBUG"));
    assert!(run(Some("debug")).contains("DEBUG"));
}

#[test]
fn a_capture_that_cannot_be_written_is_a_failure() {
    let nowhere = TempFile::new("no-directory").below("x.pcapng");
    let ended = uwarp(&["demo", "--pcap", &nowhere]).expect(1);
    ended.says(&format!("{nowhere} cannot be created"));
}

#[test]
fn a_capture_on_stdout_moves_the_text_to_stderr() {
    let file = TempFile::new("stdout.pcapng");
    let out = std::fs::File::create(file.path()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp"))
        .args(["demo", "--pcap", "-"])
        .stdout(out)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("All results are correct")
    );
    let packets = uwarp_verbs::capture::Reader::open(file.path()).unwrap();
    assert!(packets.map(Result::unwrap).count() > 1000);
}

#[test]
fn ctrl_c_leaves_a_capture_that_can_be_read() {
    let file = TempFile::new("ctrl-c.pcapng");
    let (_server, addr) = Uwarp::server(&[]);
    let port = addr.port().to_string();
    let mut client = Uwarp::start_interruptible(&[
        "rping",
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &port,
        "-v",
        "--pcap",
        file.name(),
    ]);
    client.stdout_until("rdma-ping-20: ");
    let id = client.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(client.end().status.code(), None, "ended by the signal");
    let mut packets = uwarp_verbs::capture::Reader::open(file.path()).unwrap();
    let mut count = 0;
    while packets.next_packet().unwrap().is_some() {
        count += 1;
    }
    assert!(count > 100 && !packets.cut_off(), "{count}");
}

#[test]
fn an_unknown_variable_is_reported_with_the_nearest_known_name() {
    let with = |name: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
        let ended = Uwarp::start_with(command.args(["completions", "bash"]).env(name, "x")).end();
        ended.expect(0).stderr
    };
    assert_eq!(
        with("UWARP_DEVISE"),
        "uwarp: the environment variable UWARP_DEVISE is unknown and has no effect; the nearest known one is UWARP_DEVICE\n"
    );
    assert_eq!(with("UWARP_PORT_OFFSET"), "");
}

#[test]
fn variables_mean_what_the_options_of_the_same_name_mean() {
    // Each value is wrong. The error message of each command therefore names the option that took
    // its value from the variable.
    for (option, more) in [
        ("--device <", &["conformance", "devinfo"][..]),
        ("--crc <", &["conformance"]),
        ("--markers <", &["conformance"]),
        ("--fpdu-segments <", &[]),
        ("--send-in-place", &[]),
        ("--mpa <", &["conformance"]),
        ("--peer <", &["dump"]),
    ] {
        let name = option.trim_matches(['-', ' ', '<']).replace('-', "_");
        let variable = format!("UWARP_{}", name.to_uppercase());
        for command in ["demo", "rping", "perf", "agent"].iter().chain(more) {
            let args = match *command {
                "rping" => &["rping", "-s"][..],
                "conformance" => &["conformance", "--list"],
                "dump" => &["dump", "-"],
                other => &[other][..],
            };
            let mut process = Command::new(env!("CARGO_BIN_EXE_uwarp"));
            let ended = Uwarp::start_with(process.args(args).env(&variable, "?")).end();
            ended.expect(2).says(option);
        }
    }
}

#[test]
fn an_option_stands_above_the_variable_of_its_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["devinfo", "--device", "tcp:127.0.0.1"]);
    let ended = Uwarp::start_with(command.env("UWARP_DEVICE", "raw:uwarp-none,ip=192.0.2.1")).end();
    ended.expect(0);
}

#[test]
fn a_capture_can_be_asked_for_by_the_environment() {
    let file = TempFile::new("variable.pcapng");
    let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
    command.args(["rping", "-c", "-a", "127.0.0.1", "-p", "1"]);
    let _ = Uwarp::start_with(command.env("UWARP_PCAP", file.path()))
        .end()
        .expect(1);
    uwarp_verbs::capture::Reader::open(file.path()).unwrap();
}

#[test]
fn the_device_is_described_as_ibv_devinfo_does_with_the_networks_of_the_machine() {
    let ended = uwarp(&["devinfo", "-v", "--device", "tcp:127.0.0.1"]).expect(0);
    for part in [
        "hca_id:\tuwarp0\n",
        "\ttransport:\t\t\tiWARP (1)\n",
        "\tmax_pkeys:\t\t\t0\n",
        "\tlocal_ca_ack_delay:\t\t0\n",
        "\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
        "\t\t\tport_cap_flags:\t\t0x00000000\n",
        "\t\t\tpkey_tbl_len:\t\t1\n",
        "\t\t\tactive_width:\t\t4X (2)\n",
        "\t\t\tactive_speed:\t\t10.0 Gbps (8)\n",
        "\t\t\tphys_state:\t\tLINK_UP (5)\n",
        "]:\t\t::ffff:127.0.0.1\n",
        "\n  tcp   yes the kernel's TCP",
        "\n  unix  yes ",
    ] {
        assert!(
            ended.stdout.contains(part),
            "no {part:?} in\n{}",
            ended.stdout
        );
    }
    let gids = ended.stdout.matches("\t\t\tGID[").count();
    let due = format!("\t\t\tgid_tbl_len:\t\t{gids}\n");
    assert!(ended.stdout.contains(&due), "{}", ended.stdout);
}

#[test]
fn a_device_that_does_not_open_still_gets_the_networks_described() {
    let ended = uwarp(&["devinfo", "--device", "raw:uwarp-none,ip=192.0.2.1"]).expect(1);
    ended.says("there is no interface uwarp-none");
    assert!(
        ended.stdout.starts_with("networks of this machine"),
        "{}",
        ended.stdout
    );
}

#[test]
fn completions_are_accepted_by_the_shell_that_they_are_for() {
    let script = uwarp(&["completions", "bash"]).expect(0).stdout;
    let file = TempFile::new("completions.bash");
    std::fs::write(file.path(), script).unwrap();
    let line = "source \"$0\"; COMP_WORDS=(uwarp rpi); COMP_CWORD=1; _uwarp uwarp rpi uwarp; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["-c", line, file.name()])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "rping\n",
        "{output:?}"
    );
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(
            uwarp(&["completions", shell])
                .expect(0)
                .stdout
                .contains("rping"),
            "{shell}"
        );
    }
    uwarp(&["completions", "tcsh"]).expect(2);
}

#[test]
fn a_manual_page_is_written_for_each_subcommand() {
    let directory = TempDir::new("man");
    let said = uwarp(&["man", directory.name()]).expect(0).stdout;
    let pages: Vec<_> = said.lines().map(std::path::Path::new).collect();
    let has = |name: &str| pages.contains(&directory.path().join(name).as_path());
    assert!(
        has("uwarp.1") && has("uwarp-rping.1") && has("uwarp-devinfo.1"),
        "{said}"
    );
    let rping = std::fs::read_to_string(directory.path().join("uwarp-rping.1")).unwrap();
    assert!(
        rping.contains(".TH uwarp-rping 1") && rping.contains("Persistent server"),
        "{rping}"
    );
    // The page of the command names the pages of the subcommands. Every named page must exist.
    let root = std::fs::read_to_string(directory.path().join("uwarp.1")).unwrap();
    let names = root.split_whitespace().map(|word| word.replace("\\-", "-"));
    let mut named: Vec<_> = names
        .filter_map(|word| Some(word.strip_suffix("(1)")?.to_owned()))
        .collect();
    named.sort();
    named.dedup();
    assert_eq!(named.len(), pages.len() - 1, "{named:?}, and {said}");
    for name in named {
        assert!(has(&format!("{name}.1")), "no page {name}: {said}");
    }
    let ended = uwarp(&["man", "/proc/uwarp"]).expect(1);
    ended.says("/proc/uwarp cannot be written");
}

/// The drop-in library accepts the same values (`uwarp_verbs::options`).
#[test]
fn a_variable_that_turns_something_on_or_off_has_one_meaning() {
    let file = TempFile::new("switch.pcapng");
    let run = |value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uwarp"));
        command.args(["demo", "--pcap", &file.below("x")]);
        command.env("UWARP_SEND_IN_PLACE", value).output().unwrap()
    };
    for value in ["1", "yes", "ON", "true", "0", "no", "off", "false"] {
        // Exit code 1 shows that the value was accepted. The command fails later, because the
        // directory of the capture does not exist.
        assert_eq!(run(value).status.code(), Some(1), "{value}");
    }
    for value in ["", "2", "y"] {
        let output = run(value);
        assert_eq!(output.status.code(), Some(2), "{value}");
        let words = String::from_utf8(output.stderr).unwrap();
        assert!(words.contains("1 or 0 (also on or off"), "{words}");
    }
}
