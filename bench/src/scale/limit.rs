//! The limit of open descriptors of a process.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of descriptors, if permitted, so that this process can have both ends of
/// `conns` connections and `besides` more. Returns the number of connections that fit: `conns`, or
/// a multiple of 100.
pub(super) fn both_ends(conns: usize, besides: usize) -> usize {
    if raise_to(2 * conns + besides).is_ok() {
        return conns;
    }
    let maximum = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    fitting(
        conns,
        besides,
        usize::try_from(maximum).unwrap_or(usize::MAX),
    )
}

fn fitting(conns: usize, besides: usize, maximum: usize) -> usize {
    let most = maximum.saturating_sub(besides) / 2;
    conns.min(if most >= 100 { most - most % 100 } else { most })
}

/// Raises the limit of descriptors for this process and its children.
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
            // Root may also raise the hard limit.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_all_do_not_fit_hundreds_do() {
        assert_eq!(fitting(10_000, 200, 20_000), 9_900);
        assert_eq!(fitting(1_000, 200, 20_000), 1_000);
        assert_eq!(fitting(1_000, 200, 320), 60);
    }
}
