//! Endpoint B: listens, offers memory, answers the Sends, and checks the data it received.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use uwarp_verbs::{AcceptOptions, Access, ConnectRequest, Device, Listener};

use super::endpoint::{End, Endpoint, PATIENCE, local};
use super::initiator::{self, received, row};
use super::plan::{self, Kind, SIZES};
use super::shared;
use super::table::{Row, Verdict};
use crate::advert::{ADVERT_LEN, Advert};
use crate::failure::Failure;

/// Text in the private data of B's MPA Reply, before its adverts.
pub(super) const HELLO: &[u8] = b"hello from B";
/// Number of messages in the plan. Each transfer step moves all of them.
const COUNT: usize = SIZES.len();

/// Memory that B offers to A. B's private data lists it.
pub(super) struct Offer {
    /// Target of A's Writes.
    pub(super) sink: Advert,
    /// Source of A's Reads.
    pub(super) source: Advert,
    /// Target of A's atomics and its Write with Immediate Data.
    pub(super) shared: Advert,
}

impl Offer {
    fn emit(&self) -> Vec<u8> {
        [
            HELLO,
            &self.sink.emit(),
            &self.source.emit(),
            &self.shared.emit(),
        ]
        .concat()
    }

    pub(super) fn parse(private_data: &[u8]) -> Option<Offer> {
        let adverts = private_data.strip_prefix(HELLO)?;
        let (sink, rest) = adverts.split_first_chunk::<ADVERT_LEN>()?;
        let (source, rest) = rest.split_first_chunk::<ADVERT_LEN>()?;
        let shared = rest.try_into().ok()?;
        Some(Offer {
            sink: Advert::parse(*sink),
            source: Advert::parse(*source),
            shared: Advert::parse(shared),
        })
    }
}

/// Effects of the Write that must fail, as B saw them.
pub(super) struct Seen {
    pub(super) end: End,
    /// `Ok` if the Write left the region unchanged.
    pub(super) untouched: Result<(), String>,
}

pub(super) fn run(
    device: &Device,
    listener: Listener,
    given_up: &AtomicBool,
    found: &Sender<Row>,
) -> Result<Seen, Failure> {
    let mut b = Endpoint::new("endpoint B", device)?;
    let inbox = b.register(plan::blank(), Access::LOCAL_WRITE)?;
    let replies = b.register(plan::filled(Kind::SentByB), Access::NONE)?;
    // A may use each region only for its purpose (RFC 5042 section 6.3.5).
    let sink = b.register(plan::blank(), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let source = b.register(plan::filled(Kind::Read), Access::REMOTE_READ)?;
    let shared = b.register(
        vec![0; shared::LEN],
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
    )?;
    b.post_receives(&inbox, 4)?;

    let request = await_request(&listener, given_up)?;
    drop(listener);
    let offer = Offer {
        sink: Advert::of(&sink),
        source: Advert::of(&source),
        shared: Advert::of(&shared),
    };
    // If A has failed, the channel is closed. A reports its own error then.
    let tell = |row| drop(found.send(row));
    tell(accept(request, &b, &offer)?);

    b.wait(0, COUNT, "waiting for A's Sends")?;
    tell(row("Send A -> B", received(&b, &inbox, Kind::SentByA)));
    b.post_sends(&replies)?;

    b.wait(COUNT, COUNT + 1, "waiting for A's Send after the Writes")?;
    tell(row(
        "RDMA Write A -> B",
        plan::verify(&sink, Kind::Written).into(),
    ));
    b.signal()?;

    // The library answers A's Reads and atomics without this thread.
    b.wait(COUNT + 1, COUNT + 2, "waiting for A's Immediate Data")?;
    tell(Row {
        operation: "Write with Immediate A -> B",
        messages: 1,
        bytes: (shared::TEXT.len() + shared::IMMEDIATE.len()) as u64,
        verdict: shared::verify_note(&shared, b.received.last()).into(),
    });
    b.wait(
        COUNT + 1,
        COUNT + 3,
        "waiting for A's Send after the atomics",
    )?;
    tell(Row {
        operation: "Atomics A -> B",
        messages: shared::ATOMICS,
        bytes: 8 * shared::ATOMICS as u64,
        verdict: shared::verify_words(&shared).into(),
    });
    let end = b.wait_end()?;
    Ok(Seen {
        end,
        untouched: plan::verify(&sink, Kind::Written),
    })
}

/// Waits for A's connection request. Fails soon after A has failed.
fn await_request(listener: &Listener, given_up: &AtomicBool) -> Result<ConnectRequest, Failure> {
    const LOOK: Duration = Duration::from_millis(50);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.wait_request(Some(LOOK)) {
            Ok(request) => return Ok(request),
            Err(_) if given_up.load(Ordering::Relaxed) || deadline < Instant::now() => {
                return Err(Failure::because("endpoint B: A did not connect"));
            }
            Err(_) => {}
        }
    }
}

/// Answers A with the offer, and checks A's private data.
fn accept(request: ConnectRequest, b: &Endpoint, offer: &Offer) -> Result<Row, Failure> {
    let heard = request.private_data().to_vec();
    let options = AcceptOptions::default().private_data(offer.emit());
    request.accept(&b.qp, &options).map_err(local)?;
    let verdict = if heard == initiator::HELLO {
        Verdict::Verified
    } else {
        Verdict::Wrong(format!("B received \"{}\"", heard.escape_ascii()))
    };
    Ok(Row {
        operation: "Private data A <-> B",
        messages: 1,
        bytes: heard.len() as u64,
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_survives_the_wire_and_anything_else_is_refused() {
        let advert = Advert {
            addr: 1,
            rkey: 2,
            len: 3,
        };
        let bytes = Offer {
            sink: advert,
            source: Advert::default(),
            shared: advert,
        }
        .emit();
        let offer = Offer::parse(&bytes).unwrap();
        assert_eq!((offer.sink, offer.source), (advert, Advert::default()));
        assert_eq!(offer.shared, advert);
        assert!(Offer::parse(&bytes[1..]).is_none());
        assert!(Offer::parse(&bytes[..bytes.len() - 1]).is_none());
        assert!(Offer::parse(&[&bytes[..], &[0]].concat()).is_none());
    }
}
