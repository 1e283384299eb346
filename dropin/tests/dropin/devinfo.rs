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
run() { "$uwarp" run --persona iwarp -- "$program" "$@"; }
run
echo changed
run 'ip addr add 192.0.2.1/32 dev lo'
echo later
run
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
    let flags = &["--persona", "iwarp"];
    let place = Place { prefix, flags };
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

/// `UWARP_NAME`: every function that lists devices has all names, in their order. Ids of librdmacm
/// use the first device (`tests/c/names.c`).
pub(crate) fn each_name_is_a_device_of_the_same_rnic(prefix: &Prefix) -> Result<(), String> {
    let program = c::compile(prefix, "cc", "names.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let run = |flags: &[&str]| Place { prefix, flags }.start(&[program])?.end();
    let one = run(&[])?;
    let two = run(&["--name", "mlx5_0", "--name", "mlx5_1"])?;
    let guids = |said: &str| {
        let words = said.lines().flat_map(str::split_whitespace);
        let guids = words.filter(|word| word.len() == 16);
        guids.map(str::to_owned).collect::<Vec<_>>()
    };
    let hidden = |said: &str| {
        let mut said = said.to_owned();
        for guid in guids(&said) {
            said = said.replace(&guid, "GUID");
        }
        said
    };
    let due_one = "uwarp0 uverbs0 /sys/class/infiniband_verbs/uverbs0 /sys/class/infiniband/uwarp0 -1 GUID GUID\n\
                   rdmacm: uwarp0, id: the first\n";
    let due_two = "mlx5_0 uverbs0 /sys/class/infiniband_verbs/uverbs0 /sys/class/infiniband/mlx5_0 -1 GUID GUID\n\
                   mlx5_1 uverbs1 /sys/class/infiniband_verbs/uverbs1 /sys/class/infiniband/mlx5_1 -1 GUID GUID\n\
                   rdmacm: mlx5_0 mlx5_1, id: the first\n";
    let are_distinct = match &guids(&two)[..] {
        [first, image, second, other] => first != second && first == image && image == other,
        _ => false,
    };
    match (hidden(&one) == due_one, hidden(&two) == due_two) {
        (true, true) if are_distinct => Ok(()),
        _ => Err(format!("{one}\n{two}")),
    }
}

/// The library reports a wrong name in the variable, and has no device then.
pub(crate) fn a_name_that_cannot_be_one_is_refused(prefix: &Prefix) -> Result<(), String> {
    let place = Place { prefix, flags: &[] };
    let words = ["env", "UWARP_NAME=../x", "sh", "-c", "ibv_devices || true"];
    let said = place.start(&words)?.end()?;
    let expected = "uwarp: UWARP_NAME is '../x'; expected names of devices, separated by commas: \
                    a name is '../x'; expected 1 to 63 letters, digits, '_' or '-'";
    match said.contains(expected) && !said.contains("uwarp0") {
        true => Ok(()),
        false => Err(said),
    }
}

/// Returns the value that `ibv_devinfo` prints after a name.
fn value<'a>(said: &'a str, name: &str) -> Option<&'a str> {
    let mut values = said.lines().filter_map(|line| {
        let (found, value) = line.trim().split_once(':')?;
        (found == name).then_some(value.trim())
    });
    values.next()
}

pub(crate) fn the_persona_roce_shows_a_roce_device(prefix: &Prefix) -> Result<(), String> {
    let flags = &["--persona", "roce", "--device", "tcp:127.0.0.1"];
    let place = Place { prefix, flags };
    let said = place.start(&["ibv_devinfo", "-v"])?.end()?;
    for (name, due) in [
        ("hca_id", "uwarp0"),
        ("transport", "InfiniBand (0)"),
        ("state", "PORT_ACTIVE (4)"),
        ("max_mtu", "4096 (5)"),
        ("port_lid", "0"),
        ("link_layer", "Ethernet"),
        ("gid_tbl_len", "1"),
        ("pkey_tbl_len", "1"),
        ("max_pkeys", "1"),
        ("GID[  0]", "::ffff:127.0.0.1, RoCE v2"),
    ] {
        if value(&said, name) != Some(due) {
            return Err(format!("{name} is not {due}:\n{said}"));
        }
    }
    Ok(())
}

pub(crate) fn roce_and_a_siw_peer_exclude_each_other(prefix: &Prefix) -> Result<(), String> {
    let run = |flags: &[&str]| {
        let place = Place { prefix, flags };
        place.start(&["sh", "-c", "ibv_devinfo || true"])?.end()
    };
    let both = run(&["--persona", "roce", "--peer", "siw"])?;
    let words = "uwarp: UWARP_PERSONA is 'roce' and UWARP_PEER is 'siw'; ";
    let siw = run(&["--peer", "siw"])?;
    let transport = value(&siw, "transport");
    match both.contains(words) && !both.contains("hca_id") && transport == Some("iWARP (1)") {
        true => Ok(()),
        false => Err(format!("{both}\n{siw}")),
    }
}

pub(crate) fn the_gids_of_roce_are_ordered_by_their_reach(prefix: &Prefix) -> Result<(), String> {
    const SCRIPT: &str = r#"
"$uwarp" run --persona roce -- "$program"
echo linked
ip link add uw0 type veth peer name uw1
ip link set uw0 addrgenmode none
ip link set uw1 addrgenmode none
ip link set uw1 up
ip link set uw0 up
until ip link show uw0 | grep -q 'state UP'; do sleep 0.01; done
ip addr add 2001:db8::1/64 dev uw0 nodad
ip addr add 192.0.2.1/24 dev uw0
ip addr add 192.0.2.9/32 dev lo
"$uwarp" run --persona roce -- "$program"
"#;
    let said = apart(prefix, SCRIPT)?;
    let (alone, linked) = said.split_once("linked\n").ok_or(said.as_str())?;
    let due = "0 ::ffff:192.0.2.1 2 1 uw0\n\
               1 ::ffff:192.0.2.9 2 1 lo\n\
               2 2001:db8::1 2 1 uw0\n";
    match alone.starts_with("0 ::ffff:127.0.0.1 2 1 lo\n") && linked == due {
        true => Ok(()),
        false => Err(said),
    }
}
