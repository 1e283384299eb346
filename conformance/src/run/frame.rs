//! Evaluates the checks of a startup frame.

use super::enhanced::rtr_bits;
use crate::script::StartupCheck;
use crate::wire::startup::{C, R, REPLY_KEY, REQUEST_KEY, S, StartupFrame};

/// Returns true if the startup frame passes the check.
pub(super) fn keeps(frame: &StartupFrame, check: StartupCheck) -> bool {
    let enhanced = frame.enhanced_data();
    let consumer = match enhanced {
        Some(_) => frame.private_data.get(4..).unwrap_or_default(),
        None => &frame.private_data,
    };
    let rtr = enhanced.map_or(0, rtr_bits);
    let rejects = frame.flags & R != 0;
    let is_request = frame.key == REQUEST_KEY;
    match check {
        StartupCheck::Key => is_request || frame.key == REPLY_KEY,
        StartupCheck::ReservedZero => {
            let reserved = if frame.rev >= 2 { 0x0f } else { 0x1f };
            frame.flags & reserved == 0
        }
        StartupCheck::Rejected(due) => rejects == due,
        StartupCheck::Crc => frame.flags & C != 0,
        StartupCheck::Rev(rev) => frame.rev == rev,
        StartupCheck::RevFitsS => frame.rev == 1 && frame.flags & S == 0 || frame.rev >= 2,
        StartupCheck::Enhanced(due) => (frame.flags & S != 0) == due && enhanced.is_some() == due,
        StartupCheck::PrivateDataWithin512 => frame.private_data.len() <= 512,
        StartupCheck::PrivateData(due) => consumer == due,
        StartupCheck::Depths { ird, ord } => enhanced.is_some_and(|data| {
            ird.is_none_or(|due| due == data.ird) && ord.is_none_or(|due| due == data.ord)
        }),
        StartupCheck::OrdAtMost(most) => rejects || enhanced.is_some_and(|data| data.ord <= most),
        StartupCheck::IrdAtLeast(least) => enhanced.is_some_and(|data| data.ird >= least),
        StartupCheck::IrdAtMost(most) => enhanced.is_some_and(|data| data.ird <= most),
        StartupCheck::PeerToPeer(due) => enhanced.is_some_and(|data| data.a == due),
        StartupCheck::NoRtr => rtr == 0,
        StartupCheck::SomeRtr => rtr != 0,
        // This check compares several frames; see `check_startup`.
        StartupCheck::RtrOfBefore => true,
    }
}
