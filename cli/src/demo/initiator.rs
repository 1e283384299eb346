//! Endpoint A: connects and starts every operation.

use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use uwarp_verbs::{
    Access, ConnectOptions, ConnectionInfo, Device, MemoryRegion, RemoteBuffer, SendWr,
};

use super::Story;
use super::endpoint::{End, Endpoint, PATIENCE, local};
use super::plan::{self, Kind, SIZES};
use super::responder::Offer;
use super::table::{Row, Verdict};
use crate::explain;
use crate::failure::Failure;
use crate::output::grouped;

mod extensions;

/// Private data of A's MPA Request.
pub(super) const HELLO: &[u8] = b"hello from A";
/// Length in bytes of the Write that must fail because it exceeds the region.
pub(super) const BEYOND: u32 = 64;
/// Number of bytes of that Write that fit into the region.
const FITTING: u64 = 16;
/// Number of messages in the plan. Each transfer step moves all of them.
const COUNT: usize = SIZES.len();

/// Endpoint A with the state that every step needs.
struct Initiator<'a> {
    endpoint: Endpoint,
    inbox: MemoryRegion,
    story: &'a mut Story,
    from_b: &'a Receiver<Row>,
}

pub(super) fn run(
    device: &Device,
    to: SocketAddr,
    between: &str,
    story: &mut Story,
    from_b: &Receiver<Row>,
) -> Result<End, Failure> {
    let endpoint = Endpoint::new("endpoint A", device)?;
    let inbox = endpoint.register(plan::blank(), Access::LOCAL_WRITE)?;
    // All receives are posted before connecting, so that every message finds a receive.
    endpoint.post_receives(&inbox, 2)?;
    let mut a = Initiator {
        endpoint,
        inbox,
        story,
        from_b,
    };
    let offer = a.connect(device, to, between)?;
    a.send_and_receive()?;
    a.write(&offer)?;
    a.read(&offer)?;
    a.write_with_immediate(&offer)?;
    a.atomics(&offer)?;
    a.write_beyond(&offer)
}

impl Initiator<'_> {
    fn connect(
        &mut self,
        device: &Device,
        to: SocketAddr,
        between: &str,
    ) -> Result<Offer, Failure> {
        let since = Instant::now();
        self.story.step(
            "1. Connect (MPA startup): TCP, then one frame each way with what each side can do.",
        )?;
        let options = ConnectOptions::default().private_data(HELLO.to_vec());
        let qp = &self.endpoint.qp;
        let connected = qp
            .connect(to, &options)
            .map_err(|error| explain::connect(&error, to, &explain::Server::demo()))?;
        let info = qp
            .connection()
            .ok_or_else(|| Failure::because("connected, but there is no connection"))?;
        self.story.say(format_args!(
            "   A is {}, the initiator; B is {}, the responder.",
            info.local, info.peer
        ))?;
        self.story.say(format_args!(
            "   Between them: {between} ({}).",
            device.describe()
        ))?;
        self.story
            .say(format_args!("   Agreed: {}.", agreed(&info)))?;

        let hello = self.await_b()?;
        let offer = Offer::parse(&connected.private_data);
        let verdict = match (&offer, &hello.verdict) {
            (None, _) => Verdict::Wrong("B's private data did not arrive as sent".to_owned()),
            (Some(_), heard) => heard.clone(),
        };
        let bytes = hello.bytes + connected.private_data.len() as u64;
        self.story.row(Row {
            operation: "Private data A <-> B",
            messages: 2,
            bytes,
            verdict,
        });
        let what = format!(
            "A's private data says \"{}\"; B's says \"{}\" and where its memory is.",
            HELLO.escape_ascii(),
            super::responder::HELLO.escape_ascii()
        );
        self.story.done(&what, 1, since)?;
        offer.ok_or_else(|| Failure::because("B's private data names no memory to write to"))
    }

    /// Waits for the next row of results from B.
    fn await_b(&self) -> Result<Row, Failure> {
        self.from_b
            .recv_timeout(PATIENCE)
            .map_err(|_| Failure::because("endpoint B gave up"))
    }

    fn send_and_receive(&mut self) -> Result<(), Failure> {
        let since = Instant::now();
        self.story.step(
            "2. Send and Receive: each message goes into a buffer that its receiver posted.",
        )?;
        let source = self
            .endpoint
            .register(plan::filled(Kind::SentByA), Access::NONE)?;
        self.endpoint.post_sends(&source)?;
        self.endpoint.wait(COUNT, COUNT, "Send and Receive")?;
        let at_b = self.await_b()?;
        self.story.row(at_b);
        let verdict = received(&self.endpoint, &self.inbox, Kind::SentByB);
        self.story.row(row("Send B -> A", verdict));
        let what = format!(
            "{}, each way; scattered and gathered over three pieces each.",
            amount()
        );
        self.story.done(&what, 2, since)
    }

    fn write(&mut self, offer: &Offer) -> Result<(), Failure> {
        let since = Instant::now();
        self.story
            .step("3. RDMA Write: A writes into memory that B lends; B's program takes no part.")?;
        let source = self
            .endpoint
            .register(plan::filled(Kind::Written), Access::NONE)?;
        let pieces: Vec<_> = plan::slots()
            .map(|slot| (slot, slot.pieces(&source)))
            .collect();
        let list: Vec<_> = pieces
            .iter()
            .map(|(slot, sges)| {
                let place = offer.sink.addr + u64::from(slot.offset);
                SendWr::write(
                    slot.index as u64,
                    sges,
                    RemoteBuffer::at(place, offer.sink.rkey),
                )
            })
            .collect();
        self.endpoint.qp.post_send_list(&list).map_err(local)?;
        // A Send is delivered after the Writes before it. B therefore checks its memory when this
        // Send arrives.
        self.endpoint.signal()?;
        self.endpoint.wait(2 * COUNT + 1, COUNT + 1, "RDMA Write")?;
        let at_b = self.await_b()?;
        self.story.row(at_b);
        self.story.done(
            &format!("{}; a Send after them tells B to check.", amount()),
            1,
            since,
        )
    }

    fn read(&mut self, offer: &Offer) -> Result<(), Failure> {
        let since = Instant::now();
        self.story
            .step("4. RDMA Read: A reads memory that B lends; again B's program takes no part.")?;
        let sink = self.endpoint.register(plan::blank(), Access::LOCAL_WRITE)?;
        let places: Vec<_> = plan::slots()
            .map(|slot| (slot, slot.whole(&sink)))
            .collect();
        let list: Vec<_> = places
            .iter()
            .map(|(slot, sges)| {
                let place = offer.source.addr + u64::from(slot.offset);
                SendWr::read(
                    slot.index as u64,
                    sges,
                    RemoteBuffer::at(place, offer.source.rkey),
                )
            })
            .collect();
        let before = self.endpoint.sent.len();
        self.endpoint.qp.post_send_list(&list).map_err(local)?;
        self.endpoint.wait(before + COUNT, COUNT + 1, "RDMA Read")?;
        let lens = self.endpoint.sent[before..]
            .iter()
            .map(|read| read.byte_len);
        let verdict = if lens.eq(SIZES) {
            plan::verify(&sink, Kind::Read).into()
        } else {
            Verdict::Wrong("a Read completed with a length that it did not ask for".to_owned())
        };
        self.story.row(row("RDMA Read A <- B", verdict));
        let ord = self.endpoint.qp.connection().map_or(0, |info| info.ord);
        let what = format!(
            "{}; all posted at once, up to {ord} under way at a time.",
            amount()
        );
        self.story.done(&what, 1, since)
    }

    fn write_beyond(&mut self, offer: &Offer) -> Result<End, Failure> {
        self.story.step(
            "7. One thing that must fail: A writes 64 bytes where 16 are left of B's region.",
        )?;
        let source = self
            .endpoint
            .register(vec![0xBD; BEYOND as usize], Access::NONE)?;
        let sges = [source.sge(0, BEYOND)];
        let place = offer.sink.addr + u64::from(offer.sink.len) - FITTING;
        let wr = SendWr::write(u64::MAX, &sges, RemoteBuffer::at(place, offer.sink.rkey));
        self.endpoint.qp.post_send(&wr).map_err(local)?;
        self.endpoint.wait_end()
    }
}

/// Describes the negotiated parameters of the connection, as A sees them.
fn agreed(info: &ConnectionInfo) -> String {
    let on = |on| if on { "on" } else { "off" };
    let markers = match (info.tx_markers, info.rx_markers) {
        (false, false) => "off",
        (true, true) => "on",
        (true, false) => "from A to B only",
        (false, true) => "from B to A only",
    };
    format!(
        "MPA revision {}, CRC {}, Markers {markers}, RDMA Reads under way: {} from A (ORD), {} from B (IRD)",
        info.revision.code(),
        on(info.crc),
        info.ord,
        info.ird
    )
}

fn amount() -> String {
    let largest = SIZES.iter().max().copied().unwrap_or(0);
    format!(
        "{COUNT} messages of 0 to {} bytes at odd offsets",
        grouped(largest.into())
    )
}

/// Checks the length and the content of the messages received by Sends.
pub(super) fn received(endpoint: &Endpoint, inbox: &MemoryRegion, kind: Kind) -> Verdict {
    let lens = endpoint
        .received
        .iter()
        .take(COUNT)
        .map(|done| done.byte_len);
    if !lens.eq(SIZES) {
        return Verdict::Wrong("a message arrived with a length that was not sent".to_owned());
    }
    plan::verify(inbox, kind).into()
}

/// Returns the table row of an operation that moved all messages of the plan.
pub(super) fn row(operation: &'static str, verdict: Verdict) -> Row {
    Row {
        operation,
        messages: COUNT,
        bytes: plan::total(),
        verdict,
    }
}
