//! Writes a pcapng file for each failed case. It contains the connections of the case with
//! synthesized IP and TCP headers.

use std::io;
use std::path::Path;

use uwarp_capture::{Capture, Flow, LinkType};

use crate::run::{Outcome, Verdict, Who};

/// Maximum number of payload bytes in a synthesized TCP segment.
const MSS: usize = 1460;

/// Writes a file for each failed case into `directory`, which is created if needed. Returns the
/// number of files.
///
/// # Errors
/// If a file cannot be written.
pub fn pcaps(directory: &Path, outcomes: &[Outcome]) -> io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let mut written = 0;
    for outcome in outcomes {
        if matches!(outcome.verdict, Verdict::Fail(_)) {
            let name = format!("{}.pcapng", outcome.id.replace('/', "_"));
            pcap(&directory.join(name), outcome)?;
            written += 1;
        }
    }
    Ok(written)
}

fn pcap(path: &Path, outcome: &Outcome) -> io::Result<()> {
    let capture = Capture::create(path)?;
    let interface = capture.interface(&outcome.id, LinkType::RawIp);
    let mut flows: Vec<Flow> = outcome
        .addresses
        .iter()
        .map(|(local, peer)| {
            let mut flow = Flow::new(interface.clone(), *local, *peer, MSS);
            flow.opened(true);
            flow
        })
        .collect();
    for entry in &outcome.log {
        let Some(flow) = flows.get_mut(entry.connection) else {
            continue;
        };
        match entry.who {
            Who::Suite => flow.sent(&entry.bytes),
            Who::Target => flow.received(&entry.bytes),
            Who::Note => {}
        }
    }
    match capture.error() {
        Some(error) => Err(io::Error::other(error)),
        None => Ok(()),
    }
}
