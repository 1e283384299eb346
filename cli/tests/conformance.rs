//! `uwarp conformance` as its users run it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

const UWARP: &str = env!("CARGO_BIN_EXE_uwarp");

fn conformance(arguments: &[&str]) -> Output {
    Command::new(UWARP)
        .arg("conformance")
        .args(arguments)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A server process, which is killed on drop.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts an agent. Returns the process, and its addresses for RDMA and for controllers, separated
/// by a space.
fn agent(more: &[&str]) -> (Serving, String) {
    let mut child = Command::new(UWARP)
        .args([
            "agent",
            "-a",
            "127.0.0.1",
            "-p",
            "0",
            "--control",
            "0",
            "--no-token",
        ])
        .args(more)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut at = |what: &str| {
        let line = lines.next().unwrap().unwrap();
        line.split_once(what)
            .unwrap_or_else(|| panic!("{line}"))
            .1
            .to_owned()
    };
    let rdma = at("RDMA on ");
    let control = at("control on ");
    (Serving(child), format!("{rdma} {control}"))
}

#[test]
fn the_list_has_a_case_a_line_and_no_header() {
    let out = conformance(&["--list", "mpa/5044-7.1.1"]);
    assert!(out.status.success());
    let text = text(&out.stdout);
    assert!(text.lines().count() > 5);
    for line in text.lines() {
        assert!(line.starts_with("mpa/5044-7.1.1/"), "{line}");
        assert!(line.ends_with('.'), "{line}");
    }
}

#[test]
fn a_case_is_explained_with_its_requirements_and_steps() {
    let out = conformance(&["--explain", "mpa/5044-7.1.1/2"]);
    let text = text(&out.stdout);
    assert!(
        out.status.success() && text.contains("5044-7.1.1-02:"),
        "{text}"
    );
    assert!(text.contains("  1. "), "{text}");
}

#[test]
fn what_makes_no_sense_is_usage_and_says_what_to_try() {
    let nowhere = std::env::temp_dir().join(format!("uwarp-nowhere-{}/x", std::process::id()));
    let nowhere = nowhere.to_str().unwrap();
    let unwritable = format!("{nowhere} cannot be written");
    for (arguments, says) in [
        (&["--explain", "mpa/1/1"][..], "--list shows them all"),
        (
            &["--target", "127.0.0.1:1", "--no-agent", "mpa/nothing"],
            "--list shows them all",
        ),
        (&["--target", "nowhere"], "HOST:PORT"),
        (&["--target", "127.0.0.1:1", "--timeout=-1"], "--timeout"),
        (&["--target", "127.0.0.1:1", "--timeout", "0"], "--timeout"),
        (&["--target", "127.0.0.1:65535"], "--agent"),
        (&["--target", "127.0.0.1:1", "-j", "0"], "--jobs"),
        (&["--list", "mpa/nothing"], "no case has an id like"),
        (
            &["--target", "127.0.0.1:1", "--html", "-"],
            "stdout is for --json alone",
        ),
        (&["--target", "127.0.0.1:1", "--json", nowhere], &unwritable),
        (
            &[
                "--target",
                "127.0.0.1:1",
                "--html",
                "x",
                "--beside",
                nowhere,
            ],
            "uwarp conformance --json",
        ),
        (&[], "--target"),
    ] {
        let out = conformance(arguments);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn a_deviation_of_a_case_that_is_not_there_is_refused() {
    let file = std::env::temp_dir().join(format!("uwarp-deviations-{}.toml", std::process::id()));
    let text = "[[deviation]]\ncases = [\"mpa/5044-99/1\"]\nreason = \"a slip\"\n";
    std::fs::write(&file, text).unwrap();
    let path = file.to_string_lossy();
    let out = conformance(&["--target", "127.0.0.1:1", "--deviations", &path]);
    std::fs::remove_file(&file).unwrap();
    let said = self::text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no case has an id like mpa/5044-99/1"),
        "{said}"
    );
}

#[test]
fn an_agent_that_is_not_there_is_told_with_what_to_do() {
    let out = conformance(&["--target", "127.0.0.1:1", "mpa/5044-7.1.1"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no agent answers at 127.0.0.1:2")
            && said.contains("uwarp agent")
            && said.contains("--no-agent"),
        "{said}"
    );
}

#[test]
fn an_agent_of_ours_passes_and_every_report_is_written() {
    let (_serving, at) = agent(&[]);
    let (rdma, control) = at.split_once(' ').unwrap();
    let dir = std::env::temp_dir().join(format!("uwarp-conformance-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (json, junit, html) = (file("r.json"), file("r.xml"), file("r.html"));
    let out = conformance(&[
        "--target",
        rdma,
        "--agent",
        control,
        "mpa/5044-7.1*",
        "ddp",
        "--json",
        &json,
        "--junit",
        &junit,
        "--html",
        &html,
        "--name",
        "ours",
    ]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    assert!(
        said.trim_end()
            .lines()
            .last()
            .unwrap()
            .contains(" passed, 0 failed, "),
        "{said}"
    );
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let run: serde_json::Value = serde_json::from_str(&read(&json)).unwrap();
    assert_eq!(run["target"], "ours");
    assert!(run["cases"].as_array().unwrap().len() > 50);
    assert!(read(&junit).contains("failures=\"0\""));
    assert!(read(&html).contains("<title>iWARP conformance</title>"));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Tests only the agent's RDMA port, which serves as `rping -s` does. Every vendor has such a
/// server.
#[test]
fn a_server_of_rping_is_enough_to_begin_with() {
    let (_serving, at) = agent(&[]);
    let (rdma, _) = at.split_once(' ').unwrap();
    let out = conformance(&["--target", rdma, "--no-agent", "mpa/5044-7.1*"]);
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    let summary = said.lines().last().unwrap();
    assert!(!summary.starts_with("0 passed"), "{said}");
}

/// The command is a client of rping. The suite starts one for each case.
#[test]
fn a_command_can_be_the_target() {
    let command = format!("{UWARP} rping -c -a {{host}} -p {{port}} -C 1");
    // Some cases need a target that sends on its own, and one needs two connections.
    let base = ["--shim", &command, "--timeout", "10", "--strict"];
    let cases = [
        "mpa/5044-7.1.1",
        "mpa/5044-4.4",
        "rdmap/5040-5.2.1",
        "rdmap/5040-6.2.1/3",
    ];
    let out = conformance(&[&base[..], &cases].concat());
    let said = text(&out.stdout);
    assert!(out.status.success(), "{said}{}", text(&out.stderr));
    let summary = said.lines().last().unwrap();
    assert!(!summary.starts_with("0 passed"), "{said}");
}

#[test]
fn a_failure_says_what_was_expected_and_what_came() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap().to_string();
    std::thread::spawn(move || server.incoming().for_each(drop));
    let out = conformance(&["--target", &at, "--no-agent", "mpa/5044-7.1.1/3"]);
    let said = text(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{said}");
    for word in [
        "FAIL mpa/5044-7.1.1/3",
        "rule: ",
        "expected: ",
        "received: ",
        "5044-7.1.1-03 (RFC 5044 section 7.1.1)",
    ] {
        assert!(said.contains(word), "{word} is not in\n{said}");
    }
}

/// The target sends nothing, so each case lasts until its timeout. This leaves time to send a
/// signal.
#[test]
fn an_interrupted_run_reports_what_was_played_and_says_that_it_was_not_all() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap().to_string();
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in server.incoming() {
            open.push(stream);
            let _ = begun.send(());
        }
    });
    let json = std::env::temp_dir().join(format!("uwarp-stopped-{}.json", std::process::id()));
    // A shell without job control starts background processes with SIGINT ignored, and child
    // processes inherit this.
    let child = Command::new("env")
        .args(["--default-signal=INT", UWARP, "conformance", "--no-agent"])
        .args(["--target", &at, "--timeout", "1", "-j", "1", "--json"])
        .arg(&json)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    begins.recv().unwrap();
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(killed.unwrap().success());
    let out = child.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert!(said.contains(" were not played"), "{said}");
    assert!(said.contains("press Ctrl-C again to end at once"), "{said}");
    assert_eq!(out.status.code(), Some(1), "{said}");
    let run: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let played = run["cases"].as_array().unwrap().len();
    assert!((1..50).contains(&played), "{played}");
    std::fs::remove_file(&json).unwrap();
}

/// Returns an address on which nothing listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_run_that_has_played_nothing_exits_with_2_and_says_so() {
    // Nothing listens at the address, so no case can be played.
    let out = conformance(&["--target", &nowhere(), "--no-agent", "mpa"]);
    let (said, summary) = (text(&out.stderr), text(&out.stdout));
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing was played"), "{said}");
    assert!(
        summary.contains("1 could not be played: nothing was played"),
        "{summary}"
    );
    assert!(
        summary.contains("skipped: the target cannot be reached"),
        "{summary}"
    );
    assert!(
        said.contains("start the target, or check the address") && !said.contains("--strict"),
        "{said}"
    );
    // Every case is skipped, because the only selected one needs an agent.
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap().to_string();
    let out = conformance(&["--target", &at, "--no-agent", "ddp/5041-7.1/2"]);
    let (said, summary) = (text(&out.stderr), text(&out.stdout));
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("1 case, seed 1\n"), "{said}");
    assert!(
        summary.contains("1 skipped: nothing was played"),
        "{summary}"
    );
    assert!(said.contains("--strict"), "{said}");
    // No case is left, because the only selected one is a MAY.
    let out = conformance(&["--target", &at, "--no-agent", "mpa/5044-3/5"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("--strict"), "{said}");
}

#[test]
fn verbose_prints_passed_and_skipped_cases_although_nobody_is_at_a_terminal() {
    let (_serving, at) = agent(&[]);
    let (rdma, _) = at.split_once(' ').unwrap();
    let play = |more: &[&str]| {
        let arguments = [&["--target", rdma, "--no-agent", "mpa/5044-7.1.1"], more].concat();
        let out = conformance(&arguments);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let (quiet, verbose) = (play(&[]), play(&["-v"]));
    let lines = |said: &str, word: &str| said.lines().filter(|line| line.starts_with(word)).count();
    assert_eq!(
        (lines(&quiet, "pass "), lines(&quiet, "skipped ")),
        (0, 0),
        "{quiet}"
    );
    assert!(lines(&verbose, "pass ") > 5, "{verbose}");
    assert!(lines(&verbose, "skipped ") > 0, "{verbose}");
}

/// The page loads no other file, and has no log of a case that passed.
#[test]
fn the_page_of_a_green_run_is_small_and_says_which_run_it_was() {
    let (_serving, at) = agent(&[]);
    let (rdma, control) = at.split_once(' ').unwrap();
    let html = std::env::temp_dir().join(format!("uwarp-page-{}.html", std::process::id()));
    let page = html.to_string_lossy();
    let base = ["--target", rdma, "--agent", control, "--seed", "77"];
    let out = conformance(&[&base[..], &["--strict", "--dangerous", "--html", &page]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = std::fs::read_to_string(&html).unwrap();
    std::fs::remove_file(&html).unwrap();
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    assert!(page.contains("\"seed\":77"));
    assert!(page.contains(concat!("\"version\":\"", env!("CARGO_PKG_VERSION"), "\"")));
    assert!(page.contains(" UTC\""));
}

/// The target stops at its first FPDU, so the target is at fault. The report must not suggest that
/// it was never started.
#[test]
fn a_target_that_dies_of_a_case_exits_with_1() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = server.local_addr().unwrap().to_string();
    let lives = std::thread::spawn(move || {
        let patience = std::time::Duration::from_secs(300);
        let (mut stream, _) = uwarp_testkit::raw_accept(&server, 0, patience).unwrap();
        stream.read_exact(&mut [0; 24]).unwrap();
        drop(server);
    });
    let (first, second) = ("ddp/5041-4.1/14", "ddp/5041-4.1/15");
    let base = ["--target", &at, "--no-agent", "--dangerous"];
    let quick = ["--timeout", "0.2", first, second];
    let out = conformance(&[base, quick].concat());
    lives.join().unwrap();
    let (said, summary) = (text(&out.stderr), text(&out.stdout));
    assert_eq!(out.status.code(), Some(1), "{said}{summary}");
    assert!(
        summary.contains(&format!("skipped: the target is gone since case {first}")),
        "{summary}"
    );
    assert!(!summary.contains("is it running"), "{summary}");
}
