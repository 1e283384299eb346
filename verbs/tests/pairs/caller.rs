//! A peer without an RDMA stack that speaks the private data of a rendezvous, and then sends what
//! a test wants.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{PairOptions, PeerQp, Qp, QpCaps, RecvWr, RendezvousOptions, Settings};

use crate::peer::Peer;
use crate::wire::{
    CRC, ENHANCED, IMMEDIATE, PEER_TO_PEER, REPLY, REQUEST, RTR_WRITE, SEND, Tagged, Untagged,
    WRITE, words,
};
use crate::{Host, LOOPBACK};

/// Number of the QP of a [`Caller`]. It is smaller than any number of a rendezvous, so the caller
/// is the one that calls.
pub(crate) const CALLER: u32 = 0x0004_0000;
/// Flags of private data: Immediate Data of Sends is taken; the QP is unreliable.
pub(crate) const SEND_IMMEDIATE: u8 = 2;
pub(crate) const UNRELIABLE: u8 = 4;

/// Receives that [`host`] posts have this length, at this offset for each `wr_id`.
const RECEIVE: u64 = 16;
const RECEIVES_AT: u64 = 1024;

/// Returns the private data of a call.
pub(crate) fn hello(flags: u8, own: u32, peer: u32) -> Vec<u8> {
    let addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let numbers = [own.to_be_bytes(), peer.to_be_bytes()].concat();
    [
        &[b'u', b'w', b'Q', b'P', 1, flags, 0, 0],
        &numbers[..],
        &addr,
    ]
    .concat()
}

/// The private data of a Reply with this status.
pub(crate) fn answer(status: u8) -> Vec<u8> {
    vec![b'u', b'w', b'Q', b'P', 1, SEND_IMMEDIATE, status, 0]
}

/// Address at which the QP is called.
pub(crate) fn port(qp: &Qp) -> SocketAddr {
    SocketAddr::new(LOOPBACK, u16::try_from(qp.qp_num() >> 8).unwrap())
}

/// A host for tests with raw peers. Wake-ups are off, because such tests count messages.
pub(crate) fn host() -> Host {
    let options = RendezvousOptions::default().addr(Some(LOOPBACK));
    let network = Arc::<KernelNetwork>::default();
    Host::with(
        network,
        LOOPBACK,
        options,
        Settings::default().wake_up(None),
    )
}

/// Gives the QP the [`Caller`] for its peer.
pub(crate) fn await_caller(qp: &Qp) {
    let peer = PeerQp::new(LOOPBACK, CALLER);
    qp.pair(peer, &PairOptions::default()).unwrap();
}

/// Posts a receive for up to [`RECEIVE`] bytes.
pub(crate) fn receive(host: &Host, qp: &Qp, wr_id: u64) {
    let sges = [host
        .region
        .sge(RECEIVES_AT + wr_id * RECEIVE, RECEIVE as u32)];
    qp.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
}

/// Returns an unreliable QP with a receive queue of its own.
pub(crate) fn unreliable(host: &Host) -> Qp {
    let builder = host.pd.qp().rendezvous(&host.rendezvous).unreliable(true);
    builder
        .caps(QpCaps::default())
        .build(&host.cq, &host.cq)
        .unwrap()
}

/// The raw peer, which has called a QP.
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    /// MSN of its next message on queue 0.
    pub(crate) msn: u32,
}

impl Caller {
    /// Calls the QP, which awaits it, and sends the RTR indication.
    pub(crate) fn new(qp: &Qp, flags: u8) -> Caller {
        let mut caller = Caller::dial(port(qp), &hello(flags, CALLER, qp.qp_num()));
        assert_eq!(caller.reply(), Ok(answer(0)));
        caller.send_rtr();
        caller
    }

    /// Sends an MPA Request with this private data.
    pub(crate) fn dial(to: SocketAddr, private_data: &[u8]) -> Caller {
        let IpAddr::V4(_) = to.ip() else {
            panic!("{to} is no address of this kind of peer");
        };
        let mut peer = Peer::connect(to);
        let asks = [&words(PEER_TO_PEER | 4, RTR_WRITE | 4)[..], private_data].concat();
        peer.send_startup(REQUEST, CRC | ENHANCED, 2, &asks);
        Caller { peer, msn: 1 }
    }

    /// Receives the Reply. Returns its private data, as an error if the Reply rejects.
    pub(crate) fn reply(&mut self) -> Result<Vec<u8>, Vec<u8>> {
        const REJECT: u8 = crate::wire::REJECT;
        let reply = self.peer.receive_startup();
        assert_eq!(&reply[..16], REPLY);
        let private_data = reply[24..].to_vec();
        match reply[16] & REJECT {
            0 => Ok(private_data),
            _ => Err(private_data),
        }
    }

    /// Sends an empty Write, the RTR indication.
    pub(crate) fn send_rtr(&mut self) {
        self.send_ulpdu(&Tagged::new(WRITE, 0, 0, b"").bytes());
    }

    pub(crate) fn send_ulpdu(&mut self, ulpdu: &[u8]) {
        self.peer.send_ulpdus(&[ulpdu]);
    }

    /// Returns the next message on queue 0.
    pub(crate) fn next(&mut self, opcode: u8, payload: &[u8]) -> Untagged {
        self.msn += 1;
        Untagged::new(opcode, 0, self.msn - 1, payload)
    }

    /// Sends Immediate Data that belongs to the next Send.
    pub(crate) fn send_marked(&mut self, data: &[u8; 4]) {
        let ulpdu = self.next(IMMEDIATE, &marked(data)).bytes();
        self.send_ulpdu(&ulpdu);
    }

    pub(crate) fn send(&mut self, payload: &[u8]) {
        let ulpdu = self.next(SEND, payload).bytes();
        self.send_ulpdu(&ulpdu);
    }
}

/// Returns Immediate Data that belongs to the next Send.
pub(crate) fn marked(data: &[u8; 4]) -> [u8; 8] {
    let [a, b, c, d] = *data;
    [a, b, c, d, b'S', b'I', b'm', b'm']
}
