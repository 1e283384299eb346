//! Charges the memory of unsent bytes to the peer that does not read them.
//!
//! While the limits of the peer or the device leave no room for a full batch, memory is *short*: a
//! batch is then one FPDU of at most `SHORT_ULPDU` bytes. It fits the small buffer that every
//! connection may keep, so the connection goes on, and holds nothing that is not accounted for.

use std::sync::Arc;

use crate::limits::{Charge, PeerAccount, What};
use crate::policy::transfer::STAGING_KEPT;

/// Account of the bytes that one connection holds for sending.
#[derive(Default)]
pub(super) struct StagingAccount {
    charge: Option<Charge>,
    is_short: bool,
}

impl StagingAccount {
    /// Decides whether the next batch may have the full length.
    #[inline]
    pub(super) fn check(&mut self, peer: Option<&Arc<PeerAccount>>) {
        self.is_short =
            peer.is_some_and(|peer| !peer.has_room(What::SendMemory, STAGING_KEPT as u64, 1));
    }

    /// Returns true if the limits leave no room for a full batch.
    #[inline]
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Charges `bytes`, which are held after a turn, in place of the last charge.
    #[inline]
    pub(super) fn settle(&mut self, bytes: usize, peer: Option<&Arc<PeerAccount>>) {
        if bytes == 0 {
            self.charge = None;
        } else if let Some(peer) = peer {
            self.change(bytes as u64, peer);
        }
    }

    fn change(&mut self, bytes: u64, peer: &Arc<PeerAccount>) {
        match &mut self.charge {
            Some(charge) if charge.amount() == bytes => {}
            Some(charge) if charge.amount() > bytes => charge.shrink_to(bytes),
            charge => {
                *charge = None;
                *charge = Some(peer.take_in_any_case(What::SendMemory, bytes));
            }
        }
    }
}
