//! Compares the device as `uwarp devinfo` and `ibv_devinfo` show it.

use std::collections::BTreeMap;

use crate::c;
use crate::prefix::Prefix;
use crate::process::{Place, unprivileged};

/// Runs a script in a new network namespace whose loopback interface is up. `$uwarp` is the
/// command, and `$program` a compiled `tests/c/device.c`.
fn apart(prefix: &Prefix, script: &str) -> Result<String, String> {
    let program = c::compile(prefix, "cc", "device.c", &["-libverbs", "-ldl"])?;
    let script = format!("set -e\nip link set lo up\n{script}");
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", &script]);
    command.env("uwarp", prefix.uwarp()).env("program", program);
    let place = Place { prefix, flags: &[] };
    place.spawn(&mut command, "device".to_owned())?.end()
}

/// A program keeps the index of a GID, so that the index must not come to mean another address.
pub(crate) fn the_gid_table_stays_as_it_was_when_the_device_was_opened(
    prefix: &Prefix,
) -> Result<(), String> {
    const SCRIPT: &str = r#"
"$uwarp" run -- "$program"
echo changed
"$uwarp" run -- "$program" 'ip addr add 192.0.2.1/32 dev lo'
echo later
"$uwarp" run -- "$program"
"#;
    let said = apart(prefix, SCRIPT)?;
    let (first, rest) = said.split_once("changed\n").ok_or(said.as_str())?;
    let (changed, later) = rest.split_once("later\n").ok_or(said.as_str())?;
    let is_fixed = first == changed && first.contains("1 ::ffff:127.0.0.1 0 0 lo");
    match is_fixed && later.contains("::ffff:192.0.2.1 0 0 lo") {
        true => Ok(()),
        false => Err(said),
    }
}

/// Returns the names and values of the lines. Omits GIDs, because only `ibv_devinfo` prints their
/// types.
fn values(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| {
        let (name, value) = line.trim().split_once(':')?;
        Some((name, value.trim()))
    });
    lines.filter(|(name, _)| !name.starts_with("GID")).collect()
}

/// Checks that each value that both tools show is the same.
pub(crate) fn both_tools_show_the_same_device(prefix: &Prefix) -> Result<(), String> {
    let place = Place { prefix, flags: &[] };
    let theirs = place.start(&["ibv_devinfo", "-v"])?.end()?;
    let mut command = unprivileged(&prefix.uwarp());
    let mut ours = place.spawn(command.arg("devinfo"), "uwarp devinfo".into())?;
    let ours = ours.end()?;
    let theirs = values(&theirs);
    let mut shared = 0;
    for (name, value) in values(&ours) {
        match theirs.get(name) {
            Some(other) if *other == value => shared += 1,
            Some(other) => return Err(format!("{name} is {value}, and by ibv_devinfo {other}")),
            None => {}
        }
    }
    // `ibv_devinfo` shows all values of `uwarp devinfo` except network, max_inline_data, link_mtu
    // and phys_state.
    if shared >= 41 {
        Ok(())
    } else {
        Err(format!("only {shared} values are shown by both:\n{ours}"))
    }
}
