//! Compares the device as `uwarp devinfo` and `ibv_devinfo` show it.

use std::collections::BTreeMap;

use crate::prefix::Prefix;
use crate::process::{Place, unprivileged};

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
