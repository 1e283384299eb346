//! Current resource usage of a device.

use crate::device::Device;
use uwarp_engine::limits::What;

/// Resources that a device holds now ([`Device::usage`]), for monitoring and for finding leaks. The
/// verbs report only limits. Each number has its limit in [`Limits`](crate::Limits).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceUsage {
    /// Number of QPs, including dropped ones whose connection has not ended yet.
    pub qps: u32,
    /// Number of CQs.
    pub cqs: u32,
    /// Number of shared receive queues.
    pub srqs: u32,
    /// Number of protection domains that have a handle or contain an object.
    pub pds: u32,
    /// Number of STags: regions, fast regions and memory windows, bound or not.
    pub stags: usize,
    /// Number of connections opened by peers that are in startup, wait for a decision, or are being
    /// closed after a rejection.
    pub half_open: u64,
    /// Number of connections opened by peers that the program accepted. They count until TCP is
    /// closed.
    pub connections: u64,
    /// Number of Reads and atomic operations that all peers together may have outstanding: the sum
    /// of the IRDs.
    pub ird: u64,
    /// Number of bytes of buffers for FPDUs that are partly received.
    pub receive_memory: u64,
    /// Number of bytes of buffers for FPDUs that peers have not read.
    pub send_memory: u64,
}

impl Device {
    /// Number of connections that were reset in startup since the device was opened, because a
    /// newer one needed their place ([`StartupError::Displaced`](crate::StartupError::Displaced)).
    /// It is 0 in the child of a fork.
    #[must_use]
    pub fn displaced_startups(&self) -> u64 {
        self.inner()
            .map_or(0, |inner| inner.startup_queue.displaced())
    }

    /// Returns the resources that the device holds now. All numbers are 0 in the child of a fork.
    #[must_use]
    pub fn usage(&self) -> DeviceUsage {
        let Ok(inner) = self.inner() else {
            return DeviceUsage::default();
        };
        let [qps, cqs, srqs, pds] = inner.objects();
        let used = |what| inner.accounts.used(what);
        DeviceUsage {
            qps,
            cqs,
            srqs,
            pds,
            stags: inner.table.live(),
            half_open: used(What::HalfOpen),
            connections: used(What::Connections),
            ird: used(What::Ird),
            receive_memory: used(What::ReceiveMemory),
            send_memory: used(What::SendMemory),
        }
    }
}
