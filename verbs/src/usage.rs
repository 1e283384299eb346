//! What a device holds now.

use crate::device::Device;
use crate::limits::What;

/// What a device holds now ([`Device::usage`]; the verbs tell of limits alone): for who watches a program, or looks for
/// what it forgot to give back. Each number has its limit in [`Limits`](crate::Limits).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceUsage {
    /// QPs, also those that were dropped while their connection is still to end.
    pub qps: u32,
    /// CQs.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Protection domains: those with a handle, or with an object in them.
    pub pds: u32,
    /// STags: regions, fast regions and memory windows, bound or not.
    pub stags: usize,
    /// Connections that peers have opened and nobody has accepted, or that are being closed after that.
    pub half_open: u64,
    /// Connections that peers have opened and the program accepted, until TCP is gone.
    pub connections: u64,
    /// Reads and atomic operations that all peers together may have outstanding: the sum of the IRDs.
    pub ird: u64,
    /// Bytes of buffers for FPDUs that have begun to come and are not whole.
    pub receive_memory: u64,
}

impl Device {
    /// How many connections in startup were reset because all places were taken and a newer one came
    /// ([`StartupError::Displaced`](crate::StartupError::Displaced)), since the device was opened.
    #[must_use]
    pub fn displaced_startups(&self) -> u64 {
        self.inner().startups.displaced()
    }

    /// What the device holds now. In the child of a fork it holds nothing.
    #[must_use]
    pub fn usage(&self) -> DeviceUsage {
        let inner = self.inner();
        if inner.fork_guard.check().is_err() {
            return DeviceUsage::default();
        }
        let [qps, cqs, srqs, pds] = inner.objects();
        let used = |what| inner.accounts.used(what);
        DeviceUsage {
            qps,
            cqs,
            srqs,
            pds,
            stags: inner.table.len(),
            half_open: used(What::HalfOpen),
            connections: used(What::Connections),
            ird: used(What::Ird),
            receive_memory: used(What::ReceiveMemory),
        }
    }
}
