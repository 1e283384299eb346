//! QPs that are connected by their numbers: how two of them meet, what a QP is told of a peer that
//! has gone, what strangers can do at a rendezvous, and what a hostile peer can do.

mod between;
mod caller;
#[path = "../common/mod.rs"]
mod common;
mod datagrams;
mod immediate;
mod marked;
mod meeting;
mod numbers;
#[path = "../common/raw/peer.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod peer;
mod placed;
mod quiet;
mod strangers;
mod unreliable;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use common::CqHandle;
use uwarp_oracle as wire;
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    Access, Device, MemoryRegion, PairOptions, Pd, PeerQp, Qp, QpCaps, RecvWr, Rendezvous,
    RendezvousOptions, SendWr, Settings, Status,
};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A device with a rendezvous, and the objects that a program needs.
struct Host {
    device: Device,
    addr: IpAddr,
    rendezvous: Rendezvous,
    pd: Pd,
    cq: CqHandle,
    region: MemoryRegion,
}

impl Host {
    fn new(network: Arc<dyn Network>, addr: IpAddr, options: RendezvousOptions) -> Host {
        Host::with(network, addr, options, Settings::default())
    }

    fn with(
        network: Arc<dyn Network>,
        addr: IpAddr,
        options: RendezvousOptions,
        settings: Settings,
    ) -> Host {
        let device = Device::open(network, settings).unwrap();
        let pd = device.alloc_pd().unwrap();
        Host {
            rendezvous: device.rendezvous(options).unwrap(),
            cq: CqHandle(device.create_cq(4096).unwrap()),
            region: pd.register(vec![0; 4096], Access::ALL).unwrap(),
            pd,
            device,
            addr,
        }
    }

    /// A host on the loopback interface of this machine.
    fn here() -> Host {
        Host::new(
            Arc::new(KernelNetwork::default()),
            LOOPBACK,
            RendezvousOptions::default().addr(Some(LOOPBACK)),
        )
    }

    /// Two hosts on an in-memory link.
    fn two_in_memory() -> [Host; 2] {
        let settings = MemorySettings::default();
        let (a, b) = MemoryNetwork::pair(&settings).unwrap();
        let addr = |side: usize| settings.addresses[side][0];
        [
            Host::new(Arc::new(a), addr(0), RendezvousOptions::default()),
            Host::new(Arc::new(b), addr(1), RendezvousOptions::default()),
        ]
    }

    fn qp(&self) -> Qp {
        let builder = self.pd.qp().rendezvous(&self.rendezvous);
        builder
            .caps(QpCaps::default())
            .build(&self.cq, &self.cq)
            .unwrap()
    }

    fn peer(&self, qp: &Qp) -> PeerQp {
        PeerQp::new(self.addr, qp.qp_num())
    }

    /// Posts a receive of up to 64 bytes.
    fn receive(&self, qp: &Qp, wr_id: u64) {
        qp.post_recv(&RecvWr::new(wr_id, &[self.region.sge(2048, 64)]))
            .unwrap();
    }

    /// Posts a Send of 8 bytes.
    fn send(&self, qp: &Qp, wr_id: u64) {
        qp.post_send(&SendWr::send_inline(wr_id, b"12345678"))
            .unwrap();
    }

    /// Waits for the success of these requests, in any order.
    #[track_caller]
    fn done<const N: usize>(&self, mut wr_ids: [u64; N]) {
        let mut done = [(); N].map(|()| {
            let completion = self.cq.next();
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            completion.wr_id
        });
        wr_ids.sort_unstable();
        done.sort_unstable();
        assert_eq!(done, wr_ids);
    }

    /// Waits for the next completion, which must be the failure of `wr_id` because the peer is not
    /// there.
    #[track_caller]
    fn gone(&self, wr_id: u64) {
        let completion = self.cq.next();
        let seen = (completion.wr_id, completion.status);
        assert_eq!(seen, (wr_id, Status::RetryExceeded), "{completion:?}");
    }
}

/// Hosts with one QP each, in the order of the numbers: each is to call those after it.
fn in_order<const N: usize>() -> [(Host, Qp); N] {
    let mut hosts = [(); N].map(|()| {
        let host = Host::here();
        let qp = host.qp();
        (host, qp)
    });
    hosts.sort_by_key(|(_, qp)| qp.qp_num());
    hosts
}

/// Brings QPs of two hosts together. Neither knows which one calls.
fn meet([a, b]: [&Host; 2], [x, y]: [&Qp; 2]) {
    x.pair(b.peer(y), &PairOptions::default()).unwrap();
    y.pair(a.peer(x), &PairOptions::default()).unwrap();
}

/// Sends one message in each direction, and waits until both have arrived.
fn exchange([a, b]: [&Host; 2], [x, y]: [&Qp; 2]) {
    a.receive(x, 1);
    b.receive(y, 2);
    a.send(x, 3);
    b.send(y, 4);
    a.done([1, 3]);
    b.done([2, 4]);
}
