//! Tests of a connection and its LLP without a network. The ends are those of the tests of
//! `uwarp-engine`, on completion queues of this crate.

use std::sync::Arc;
use std::time::Instant;

use uwarp_engine::completion::FreedPlaces;
use uwarp_engine::connection::BufferPool;
use uwarp_engine::event::EndReason;
use uwarp_engine::mem::{Buffer, Sge};
use uwarp_engine::state::QpState;
use uwarp_engine::wr::{RecvWr, SendWr};
use uwarp_mpa::{FpduSegments, InitiatorConfig, Model, RtrKinds};

use crate::completion::{Completion, CqInner, CqOfQueue as QueueOfRing, Status};
use ends::*;

mod batches;
#[allow(dead_code, reason = "the tests of `uwarp-engine` use the rest")]
#[path = "../../../../engine/src/connection/tests/ends.rs"]
mod ends;
mod late_confirmations;
mod line;
mod one_send;
mod read_order;
mod stalled;
mod wake_up;
#[allow(dead_code, reason = "the tests of `uwarp-engine` use the rest")]
#[path = "../../../../engine/src/connection/tests/wire.rs"]
mod wire;

/// A completion queue with the methods that [`ends`] calls.
struct Ring(Arc<CqInner>);

impl Ring {
    fn new(num: u32, capacity: usize) -> Arc<Self> {
        Arc::new(Ring(CqInner::new(num, 0, capacity, None).unwrap()))
    }

    fn attach(&self, freed: Arc<FreedPlaces>) -> QueueOfRing {
        QueueOfRing::new(&self.0, freed)
    }

    fn poll(&self) -> Option<Completion> {
        self.0.poll_one()
    }
}
