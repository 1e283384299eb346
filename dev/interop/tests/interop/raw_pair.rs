//! A connection between the raw peer and a QP of the agent.

use std::thread;
use std::time::Duration;

use uwarp_interop::raw::{C, REPLY, REQUEST, RawListener, RawPeer, StartupFrame};
use uwarp_interop::{Answer, Conn, Event, Listen, Region, Result, Rig, sge};

/// Pause before the first FPDU. siw's responder can miss bytes right after its Reply; see `SETTLE`
/// in `pair`.
const SETTLE: Duration = Duration::from_millis(250);

/// Length in bytes of each region in the guest.
pub(crate) const LEN: usize = 128;

/// Parameters of the guest and of the raw peer.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Parameters of the guest's application.
    pub(crate) answer: Answer,
    /// Length in bytes of each receive of the guest. The receives are numbered from 100.
    pub(crate) receives: Vec<usize>,
    /// True if the raw peer requests CRCs.
    pub(crate) crc: bool,
    /// IRD and ORD that the raw peer announces.
    pub(crate) depths: (u16, u16),
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            answer: Answer {
                ird: 4,
                ord: 4,
                private_data: Vec::new(),
            },
            receives: vec![LEN, LEN],
            crc: true,
            depths: (4, 4),
        }
    }
}

impl Terms {
    fn flags(&self) -> u8 {
        if self.crc { C } else { 0 }
    }
}

pub(crate) struct RawPair {
    pub(crate) peer: RawPeer,
    pub(crate) conn: Conn,
    /// Region with the receive buffers, one after another.
    pub(crate) inbox: Region,
    /// Region with all access rights.
    pub(crate) all: Region,
    /// Region without remote rights.
    pub(crate) local: Region,
}

struct Regions {
    inbox: Region,
    all: Region,
    local: Region,
}

fn regions(rig: &mut Rig) -> Result<Regions> {
    Ok(Regions {
        inbox: rig.agent.reg(4 * LEN, "lw")?,
        all: rig.agent.reg(LEN, "lw,rw,rr")?,
        local: rig.agent.reg(LEN, "lw")?,
    })
}

fn post_receives(rig: &mut Rig, conn: Conn, inbox: &Region, lens: &[usize]) -> Result<()> {
    for (number, len) in (0_u16..).zip(lens) {
        let place = sge(inbox, usize::from(number) * LEN, *len);
        rig.agent
            .recv(conn, 100 + u64::from(number), &place, 1, 0)?;
    }
    Ok(())
}

/// Connects the raw peer to the guest and sends `bytes`. Waits for the guest's event of a
/// connection request.
pub(crate) fn request(rig: &mut Rig, bytes: &[u8]) -> Result<(RawPeer, Event)> {
    let (peer, listener) = connect_and_send(rig, bytes)?;
    let event = rig.agent.request(listener)?;
    Ok((peer, event))
}

/// Connects the raw peer to a new listener of the guest and sends `bytes`. Does not wait for an
/// event.
pub(crate) fn connect_and_send(
    rig: &mut Rig,
    bytes: &[u8],
) -> Result<(RawPeer, uwarp_interop::ListenerNum)> {
    let port = rig.guest_port();
    let listener = rig.agent.listen(port, &Listen::default())?;
    let mut peer = RawPeer::connect(rig.wire.guest_addr(port))?;
    // All bytes are sent at once, because siw does not handle a Request in many pieces (Q9).
    peer.send(bytes)?;
    Ok((peer, listener))
}

/// Connects with siw as the responder.
pub(crate) fn guest_serves(rig: &mut Rig, terms: &Terms) -> Result<RawPair> {
    let (ird, ord) = terms.depths;
    let frame = StartupFrame::enhanced(REQUEST, terms.flags(), ird, ord);
    let regions = regions(rig)?;
    let (mut peer, event) = request(rig, &frame.bytes())?;
    let conn = event.conn;
    post_receives(rig, conn, &regions.inbox, &terms.receives)?;
    rig.agent.accept(conn, &terms.answer)?;
    peer.startup_frame()?;
    rig.agent.event(conn, "established")?;
    if terms.crc {
        peer.use_crc();
    }
    thread::sleep(SETTLE);
    Ok(open(peer, conn, &regions))
}

/// Connects with siw as the initiator, and receives its Request.
pub(crate) fn guest_calls(rig: &mut Rig, answer: &Answer) -> Result<(RawPeer, Conn, StartupFrame)> {
    let listener = RawListener::bind(rig.wire.our_ip())?;
    let ip = rig.wire.our_ip_for_guest();
    let qp_params = uwarp_interop::QpParams::default();
    let conn = rig.agent.open_conn(ip, listener.port()?, &qp_params)?;
    rig.agent.connect(conn, answer)?;
    let mut peer = listener.accept()?;
    let frame = peer.startup_frame()?;
    Ok((peer, conn, frame))
}

/// Connects with siw as the initiator.
pub(crate) fn guest_connects(rig: &mut Rig, terms: &Terms) -> Result<RawPair> {
    let regions = regions(rig)?;
    let (mut peer, conn, _) = guest_calls(rig, &terms.answer)?;
    post_receives(rig, conn, &regions.inbox, &terms.receives)?;
    let (ird, ord) = terms.depths;
    let reply = StartupFrame::enhanced(REPLY, terms.flags(), ird, ord);
    peer.send(&reply.bytes())?;
    rig.agent.event(conn, "established")?;
    if terms.crc {
        peer.use_crc();
    }
    Ok(open(peer, conn, &regions))
}

fn open(peer: RawPeer, conn: Conn, regions: &Regions) -> RawPair {
    RawPair {
        peer,
        conn,
        inbox: regions.inbox,
        all: regions.all,
        local: regions.local,
    }
}
