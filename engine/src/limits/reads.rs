//! Places for Reads and atomic operations that a peer may have outstanding (IRD).

use std::sync::Arc;

use super::{Charge, OfPd, PdAccount, PdCharge, PeerAccount, What};

/// Places for Reads of one connection. They count for the device, for the peer and for the
/// protection domain of the QP.
#[derive(Debug)]
pub struct ReadPlaces {
    of_peer: Charge,
    of_pd: PdCharge,
}

impl ReadPlaces {
    /// Takes up to `wanted` places: as many as the device, the peer and the domain all have left,
    /// which may be 0.
    pub fn up_to(wanted: u16, peer: &Arc<PeerAccount>, pd: &Arc<PdAccount>) -> Self {
        let limit = OfPd::Reads.limit(&peer.accounts.limits.per_pd);
        let of_pd = pd.take_up_to(OfPd::Reads, wanted.into(), limit);
        let of_peer = peer.take_up_to(What::Ird, of_pd.amount().into());
        let mut places = ReadPlaces { of_peer, of_pd };
        places.shrink_to(places.amount());
        places
    }

    /// Number of places.
    pub fn amount(&self) -> u16 {
        // The amount is at most the wanted number, which has 16 bits.
        u16::try_from(self.of_peer.amount()).unwrap_or(u16::MAX)
    }

    /// Gives back all but `amount`.
    pub fn shrink_to(&mut self, amount: u16) {
        self.of_peer.shrink_to(amount.into());
        self.of_pd.shrink_to(amount.into());
    }
}
