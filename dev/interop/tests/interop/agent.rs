//! Tests of the agent, on which the other suites depend.

use serde_json::json;
use uwarp_interop::{Failure, Outcome, PATIENCE, Result, Rig, pattern};

use crate::Case;

pub(crate) fn cases() -> Vec<Case> {
    let case = |name: &str, title: &str, run: fn(&mut Rig) -> Result<Outcome>| Case {
        suite: "agent",
        name: name.to_owned(),
        title: title.to_owned(),
        run: Box::new(run),
    };
    vec![
        case(
            "nonsense",
            "lines that are no commands are refused",
            send_invalid,
        ),
        case(
            "control_channels",
            "it also takes commands over TCP and over stdio",
            control_channels,
        ),
        case(
            "pattern",
            "its pattern is ours, from any start byte",
            the_pattern,
        ),
    ]
}

fn send_invalid(rig: &mut Rig) -> Result<Outcome> {
    let deep = "[".repeat(1000);
    let long = format!("{{\"cmd\":\"{}\"}}", "x".repeat(70_000));
    let lines: &[&[u8]] = &[
        b"hello",
        b"{",
        b"{}",
        b"{\"cmd\"}",
        b"{\"cmd\":query}",
        b"{\"cmd\":\"query\"",
        b"{\"cmd\":\"query\"}}",
        b"{\"cmd\":\"query\",}",
        b"{\"cmd\":\"query\",\"cmd\":\"exit\"}",
        b"{\"cmd\":\"query\",\"x\":1}",
        b"{\"cmd\":[\"query\"]}",
        b"{\"cmd\":\"que\\u00e9ry\"}",
        b"{\"cmd\":\"reg\",\"len\":-1}",
        b"{\"cmd\":\"reg\",\"len\":1.5}",
        b"{\"cmd\":\"reg\",\"len\":99999999999999999999999}",
        b"{\"cmd\":\"reg\",\"len\":0}",
        b"{\"cmd\":\"reg\",\"len\":8,\"access\":\"all\"}",
        b"{\"cmd\":\"fill\",\"mr\":12345678901234567890}",
        b"{\"cmd\":\"accept\",\"conn\":0}",
        b"{\"cmd\":\"post\",\"conn\":0,\"op\":\"send\"}",
        b"{\"cmd\":\"listen\",\"port\":65536}",
        b"{\"cmd\":\"open\",\"addr\":\"nobody\",\"port\":1}",
        b"\xff\xfe\"\\",
        b"{\"cmd\":\"qu\x00ery\"}",
        deep.as_bytes(),
        long.as_bytes(),
    ];
    for line in lines {
        let answer = rig.agent.send_invalid(line)?;
        let why = answer["error"].as_str().unwrap_or_default();
        if answer["ok"] != json!(false) || why.is_empty() {
            let line = String::from_utf8_lossy(line);
            return Err(Failure::new(format!("to {line:.80} it says {answer}")));
        }
    }
    rig.agent.query()?;
    Ok(Outcome::Passed)
}

fn the_pattern(rig: &mut Rig) -> Result<Outcome> {
    let len = 4096;
    let region = rig.agent.reg(len, "lw")?;
    let mr = region.number;
    rig.agent.check_zero(&region, 0, len)?;
    for (off, at, part) in [(0, 0, len), (1, 3, 1000), (7, 1 << 40, 9), (4095, 8, 1)] {
        rig.agent.command(
            &json!({"cmd": "fill", "mr": mr, "off": off, "len": part, "seed": 9, "at": at}),
        )?;
        let peek = rig
            .agent
            .command(&json!({"cmd": "peek", "mr": mr, "off": off, "len": part}))?;
        let want: String = pattern(9, at, part)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if peek["data"] != json!(want) {
            return Err(Failure::new(format!(
                "{part} bytes of the pattern from byte {at} on are {}, not {want}",
                peek["data"]
            )));
        }
        rig.agent.check(&region, off, part, 9, at)?;
        if rig.agent.check(&region, off, part, 10, at).is_ok() {
            return Err(Failure::new("another seed has the same bytes"));
        }
    }
    Ok(Outcome::Passed)
}

/// Runs two more agents in the guest, each with its own controller.
fn control_channels(rig: &mut Rig) -> Result<Outcome> {
    const LINES: &str = r#"{"id":1,"cmd":"reg","len":8}\n{"id":2,"cmd":"nothing"}\n"#;
    const TOKEN: &str = r#"{"id":0,"cmd":"token","token":"secret"}\n"#;
    let port = 7999;
    // A web page and a controller without the token run no command. The last controller finds no
    // objects of the one before, and ends the agent.
    let commands = format!(
        "printf 'POST / HTTP/1.1\\r\\n\\r\\n{TOKEN}{LINES}' | nc 127.0.0.1 {port}; \
         printf '{LINES}' | nc 127.0.0.1 {port}; \
         printf '{TOKEN}{LINES}' | nc 127.0.0.1 {port}; \
         printf '{TOKEN}{LINES}{{\"id\":3,\"cmd\":\"exit\"}}\\n' | nc 127.0.0.1 {port}"
    );
    let mut agent = rig
        .guest
        .spawn(&format!("uwarp-agent --control tcp:{port} --token secret"))?;
    agent.wait_listening(port, PATIENCE)?;
    let all_output = agent.guest().run(&commands, PATIENCE)?;
    let ended = agent.wait(PATIENCE)?;
    let stdio = rig.guest.run(
        &format!("printf '{LINES}' | uwarp-agent --control stdio"),
        PATIENCE,
    )?;
    let hello = r#"{"hello":"uwarp-agent","#;
    let registered = r#"{"id":1,"ok":true,"mr":0,"#;
    let refused = r#"{"id":2,"ok":false,"error":"there is no command 'nothing'"}"#;
    let bye = r#"{"id":3,"ok":true}"#;
    let once = [hello, registered, refused];
    let no_json = r#"{"ok":false,"error":"one JSON object a line was expected"#;
    let no_token = r#"{"id":1,"ok":false,"error":"the first command must be 'token'"#;
    let admitted = [hello, r#"{"id":0,"ok":true}"#, registered, refused];
    let strangers = [hello, no_json, hello, no_token];
    let all = [strangers.as_slice(), &admitted, &admitted, &[bye]].concat();
    for (what, output, want) in [
        ("over TCP", &all_output, all.as_slice()),
        ("over stdio", &stdio, once.as_slice()),
    ] {
        let lines: Vec<&str> = output.text.lines().collect();
        let good = lines.len() == want.len()
            && lines
                .iter()
                .zip(want)
                .all(|(line, want)| line.starts_with(want));
        if !good || output.code != 0 || ended.code != 0 {
            return Err(Failure::new(format!(
                "{what}, the agent ended with {} and said:\n{}",
                ended.code, output.text
            )));
        }
    }
    Ok(Outcome::Passed)
}
