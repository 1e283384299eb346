//! How many descriptors a process may have.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Makes room for so many descriptors in this process and those that it starts.
pub(super) fn raise_to(needed: usize) -> io::Result<()> {
    let needed = needed as u64;
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    let raised = Rlimit {
        current: Some(needed),
        maximum: match enough(limit.maximum) {
            true => limit.maximum,
            // Root may.
            false => Some(needed),
        },
    };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        let maximum = limit.maximum.unwrap_or(u64::MAX);
        io::Error::other(format!(
            "so many connections need {needed} descriptors in one process, and the hard limit here is {maximum}: raise it as \
             root (`prlimit --nofile={needed} --pid $$` for this shell; `LimitNOFILE=` for a service of systemd; \
             /etc/security/limits.conf for a login), or ask for fewer with --conns"
        ))
    })
}
