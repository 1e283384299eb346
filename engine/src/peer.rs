//! Effects of a peer profile on a connection; `docs/peers.md` describes them for users.
//!
//! With every profile, this side sends as the RFCs say. A profile changes how a Terminate Message
//! is read (`rdmap/src/terminate/layout.rs`), and what this side avoids.

use std::fmt;
use std::time::Duration;

use uwarp_mpa::NO_AUTO;
use uwarp_rdmap::Peer;

use crate::settings::{ConnectionSettings, SIW_FIRST_FPDU_DELAY};

/// Maximum number of bytes of Private Data that siw accepts, including enhanced connection data.
const SIW_PRIVATE_DATA: usize = 256;

/// Error: the peer cannot take this much Private Data (RFC 5044 section 7.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct PrivateDataLimit {
    /// Given length, in bytes.
    pub got: usize,
    /// Length that the peer accepts, in bytes.
    pub max: usize,
    /// Peer profile that has the limit.
    pub peer: Peer,
}

impl PrivateDataLimit {
    /// Writes the fact without the hint.
    #[doc(hidden)]
    pub fn fact(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrivateDataLimit { got, max, peer } = self;
        write!(
            f,
            "{got} bytes of private data, but {peer} takes at most {max} here"
        )
    }
}

impl fmt::Display for PrivateDataLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fact(f)?;
        f.write_str("; send less, or move it into a first Send")
    }
}

/// Returns the delay between the MPA Reply and an initiator's first FPDU.
pub fn first_fpdu_delay(settings: &ConnectionSettings) -> Duration {
    settings.first_fpdu_delay.unwrap_or(match settings.peer {
        Peer::Siw => SIW_FIRST_FPDU_DELAY,
        _ => Duration::ZERO,
    })
}

/// Refuses private data that the peer cannot take. `enhanced`: the frame also carries IRD and ORD.
pub fn check_private_data(
    peer: Peer,
    enhanced: bool,
    private_data: &[u8],
) -> Result<(), PrivateDataLimit> {
    let max = match (peer, enhanced) {
        (Peer::Siw, true) => SIW_PRIVATE_DATA - 4,
        // siw accepts 256 bytes, but reports none to its consumer, because the count wraps.
        (Peer::Siw, false) => SIW_PRIVATE_DATA - 1,
        _ => return Ok(()),
    };
    let got = private_data.len();
    if got > max {
        return Err(PrivateDataLimit { got, max, peer });
    }
    Ok(())
}

/// Returns the IRD to advertise to the peer. siw rounds its ORD up to a power of two and keeps that
/// many Reads outstanding. So siw gets a power of two: the smallest one that is at least `ird`. If
/// that exceeds `limit`, siw gets the largest one that exceeds neither `ird` nor `limit`.
pub fn ird(peer: Peer, ird: u16, limit: u16) -> u16 {
    if peer != Peer::Siw || ird == NO_AUTO || ird == 0 {
        return ird;
    }
    match ird.checked_next_power_of_two() {
        Some(power) if power <= limit => power,
        _ => previous_power_of_two(limit.min(ird)),
    }
}

/// Returns the IRD that a responder advertises. For siw, an enhanced Request that asks for more
/// Reads (`requested`, its ORD) raises the IRD, up to `limit`.
pub fn responder_ird(peer: Peer, own: u16, requested: Option<u16>, limit: u16) -> u16 {
    match (peer, requested) {
        (Peer::Siw, Some(requested)) if requested != NO_AUTO && own != NO_AUTO => {
            ird(Peer::Siw, own.max(requested.min(limit)), limit)
        }
        (peer, _) => ird(peer, own, limit),
    }
}

fn previous_power_of_two(depth: u16) -> u16 {
    depth.checked_ilog2().map_or(0, |log| 1 << log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siw_is_told_a_power_of_two_within_the_limit() {
        for limit in 0..=300 {
            for depth in 0..=300 {
                let told = ird(Peer::Siw, depth, limit);
                assert_eq!(ird(Peer::Rfc, depth, limit), depth);
                if depth == 0 || limit == 0 {
                    assert_eq!(told, 0);
                    continue;
                }
                assert!(told.is_power_of_two() && told <= limit, "{depth} {limit}");
                // No more than needed, and as much as the limit allows.
                assert!(told < 2 * depth && told > depth.min(limit) / 2);
            }
        }
        assert_eq!(ird(Peer::Siw, NO_AUTO, 128), NO_AUTO);
    }

    #[test]
    fn a_responder_rounds_what_the_request_has_raised() {
        for (own, requested, siw) in [
            (4, Some(3), 4),
            (4, Some(5), 8),
            (4, Some(300), 64),
            (3, None, 4),
            (3, Some(NO_AUTO), 4),
            (0, Some(0), 0),
        ] {
            assert_eq!(responder_ird(Peer::Rfc, own, requested, 100), own);
            assert_eq!(responder_ird(Peer::Siw, own, requested, 100), siw);
        }
    }

    #[test]
    fn private_data_is_refused_only_where_it_cannot_work() {
        let bytes = [0; 512];
        for (peer, enhanced, max) in [
            (Peer::Siw, true, 252),
            (Peer::Siw, false, 255),
            (Peer::Rfc, true, 512),
        ] {
            assert_eq!(check_private_data(peer, enhanced, &bytes[..max]), Ok(()));
            if max < 512 {
                let refused = check_private_data(peer, enhanced, &bytes[..=max]);
                assert_eq!(
                    refused.unwrap_err().to_string(),
                    format!(
                        "{} bytes of private data, but Linux siw takes at most {max} here; send less, or move it into a first Send",
                        max + 1
                    )
                );
            }
        }
    }

    #[test]
    fn only_siw_is_waited_for_unless_the_settings_say_so() {
        let mut settings = ConnectionSettings::default();
        assert_eq!(first_fpdu_delay(&settings), Duration::ZERO);
        settings.peer = Peer::Siw;
        assert_eq!(first_fpdu_delay(&settings), SIW_FIRST_FPDU_DELAY);
        settings.first_fpdu_delay = Some(Duration::ZERO);
        assert_eq!(first_fpdu_delay(&settings), Duration::ZERO);
    }
}
