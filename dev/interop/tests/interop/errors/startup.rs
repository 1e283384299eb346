//! Failing MPA startup between a raw peer and siw in both roles.

use uwarp_interop::raw::{C, M, R, REPLY, REQUEST, S, StartupFrame};
use uwarp_interop::{Answer, Outcome, Result, Rig};

use super::raw::pinned;
use super::{case, same};
use crate::Case;
use crate::raw_pair::{connect_and_send, guest_calls};

/// A Reply of the raw peer to siw's Request.
struct Reply {
    name: &'static str,
    title: &'static str,
    bytes: fn() -> Vec<u8>,
    /// First bytes of siw's Terminate Header; `None` if it sends no Terminate Message.
    terminate: Option<[u8; 3]>,
    /// Event for siw's application, with librdmacm's status.
    event: (&'static str, i64),
    /// Private data of the event.
    private_data: &'static [u8],
    /// Deviation from the RFCs; empty if there is none.
    departs: &'static str,
}

fn enhanced(flags: u8, ird: u16, ord: u16) -> Vec<u8> {
    StartupFrame::enhanced(REPLY, flags, ird, ord).bytes()
}

const LAYOUT: &str = "Layer and EType of the Terminate Message are exchanged";

const REPLIES: &[Reply] = &[
    // 5044-7.1.1-04 requires siw to close. RFC 6581 section 7 permits a Terminate Message before
    // the close.
    Reply {
        name: "key",
        title: "with the key of a Request",
        bytes: || StartupFrame::enhanced(REQUEST, 0, 4, 4).bytes(),
        terminate: Some([0x02, 0x04, 0x00]),
        event: ("connect_error", -22),
        private_data: &[],
        departs: LAYOUT,
    },
    // 5044-7.1.1-06. A peer that is asked for Markers must send them (Q2).
    Reply {
        name: "markers",
        title: "that asks for Markers",
        bytes: || enhanced(M, 4, 4),
        terminate: None,
        event: ("rejected", -111),
        private_data: &[],
        departs: "siw has no Markers: RFC 5044 section 4.3 demands them",
    },
    // RFC 6581 section 10 (Q4).
    Reply {
        name: "revision_1",
        title: "of revision 1",
        bytes: || StartupFrame::new(REPLY, 0, 1, &[]).bytes(),
        terminate: None,
        event: ("rejected", -104),
        private_data: &[],
        departs: "siw does not try again with revision 1",
    },
    Reply {
        name: "not_enhanced",
        title: "of revision 2 without IRD and ORD",
        bytes: || StartupFrame::new(REPLY, 0, 2, &[]).bytes(),
        terminate: None,
        event: ("rejected", -104),
        private_data: &[],
        departs: "",
    },
    Reply {
        name: "revision_3",
        title: "of revision 3",
        bytes: || StartupFrame::new(REPLY, S, 3, &[0, 4, 0, 4]).bytes(),
        terminate: None,
        event: ("connect_error", -22),
        private_data: &[],
        departs: "",
    },
    Reply {
        name: "rejected",
        title: "that rejects with private data",
        bytes: || StartupFrame::new(REPLY, S | R, 2, b"\0\x04\0\x04full").bytes(),
        terminate: None,
        event: ("rejected", -104),
        private_data: b"full",
        departs: "",
    },
    // siw removes four bytes, even if S is not set.
    Reply {
        name: "rejected_revision_1",
        title: "that rejects with private data, of revision 1",
        bytes: || StartupFrame::new(REPLY, R, 1, b"rejected").bytes(),
        terminate: None,
        event: ("rejected", -104),
        private_data: b"cted",
        departs: "siw handles the first 4 bytes of private data as IRD and ORD",
    },
    // 6581-9.1-08.
    Reply {
        name: "ord_129",
        title: "with an ORD of 129",
        bytes: || enhanced(0, 4, 129),
        terminate: Some([0x02, 0x06, 0x00]),
        event: ("connect_error", -22),
        private_data: &[],
        departs: LAYOUT,
    },
    // 6581-9.1-13. Nothing is negotiated, so the initiator's IRD must not change.
    Reply {
        name: "ord_3fff",
        title: "with an ORD of 0x3FFF",
        bytes: || enhanced(0, 4, 0x3fff),
        terminate: Some([0x02, 0x06, 0x00]),
        event: ("connect_error", -22),
        private_data: &[],
        departs: "siw handles 0x3FFF as a number: by RFC 6581 section 9.1 (6581-9.1-13) IRD does not change",
    },
    // 5044-7.1.2-15 forbids the responder to send before it has received an FPDU. So siw may refuse
    // the byte.
    Reply {
        name: "bytes_behind",
        title: "with another byte right after it",
        bytes: || [enhanced(0, 4, 4), vec![0]].concat(),
        terminate: None,
        event: ("connect_error", -22),
        private_data: &[],
        departs: "",
    },
];

/// A Request of the raw peer to siw.
struct Request {
    name: &'static str,
    title: &'static str,
    bytes: fn() -> Vec<u8>,
    /// Returns all bytes that siw sends before it closes.
    says: fn() -> Vec<u8>,
    departs: &'static str,
}

fn nothing() -> Vec<u8> {
    Vec::new()
}

const REQUESTS: &[Request] = &[
    // 5044-7.1.1-05. A peer that is asked for Markers must send them (Q2).
    Request {
        name: "markers",
        title: "that asks for Markers, revision 1",
        bytes: || StartupFrame::new(REQUEST, M, 1, &[]).bytes(),
        says: || StartupFrame::new(REPLY, R, 1, &[]).bytes(),
        departs: "siw has no Markers and rejects: RFC 5044 section 4.3 demands them",
    },
    Request {
        name: "markers_crc",
        title: "that asks for Markers and CRC, revision 1",
        bytes: || StartupFrame::new(REQUEST, M | C, 1, &[]).bytes(),
        says: || StartupFrame::new(REPLY, R | C, 1, &[]).bytes(),
        departs: "siw has no Markers and rejects: RFC 5044 section 4.3 demands them",
    },
    Request {
        name: "markers_enhanced",
        title: "that asks for Markers, revision 2",
        bytes: || StartupFrame::enhanced(REQUEST, M, 4, 4).bytes(),
        says: || StartupFrame::enhanced(REPLY, R, 0, 0).bytes(),
        departs: "siw has no Markers and rejects: RFC 5044 section 4.3 demands them",
    },
    Request {
        name: "revision_3",
        title: "of revision 3",
        bytes: || StartupFrame::new(REQUEST, 0, 3, &[]).bytes(),
        says: nothing,
        departs: "",
    },
    Request {
        name: "key",
        title: "with the key of a Reply",
        bytes: || StartupFrame::new(REPLY, 0, 1, &[]).bytes(),
        says: nothing,
        departs: "",
    },
    // 6581-6-04. The private data must begin with IRD and ORD. 5044-7.1.2-04 requires the responder
    // to close.
    Request {
        name: "enhanced_without_depths",
        title: "that announces IRD and ORD, and has two bytes",
        bytes: || StartupFrame::new(REQUEST, S, 2, &[0, 4]).bytes(),
        says: || StartupFrame::new(REPLY, R | S, 2, &[]).bytes(),
        departs: "siw rejects, with a Reply that has the same fault",
    },
    // 5044-7.1.1-17 permits up to 512 bytes.
    Request {
        name: "private_data_257",
        title: "with 257 bytes of private data",
        bytes: || StartupFrame::new(REQUEST, 0, 1, &[7; 257]).bytes(),
        says: nothing,
        departs: "siw accepts 256: RFC 5044 section 7.1.1 (5044-7.1.1-17) permits 512",
    },
    // 5044-7.1.1-16.
    Request {
        name: "bytes_behind",
        title: "with another byte right after it",
        bytes: || [StartupFrame::new(REQUEST, 0, 1, &[]).bytes(), vec![0]].concat(),
        says: nothing,
        departs: "",
    },
];

pub(super) fn cases() -> Vec<Case> {
    let replies = REPLIES.iter().map(|row| {
        let title = format!("MPA Reply {}: siw does not connect", row.title);
        case(&format!("startup::reply::{}", row.name), title, |rig| {
            reply(rig, row)
        })
    });
    let requests = REQUESTS.iter().map(|row| {
        let title = format!("MPA Request {}: siw does not accept", row.title);
        case(&format!("startup::request::{}", row.name), title, |rig| {
            request(rig, row)
        })
    });
    replies.chain(requests).collect()
}

fn outcome(departs: &str) -> Outcome {
    match departs {
        "" => Outcome::Passed,
        departs => Outcome::Deviation(departs.to_owned()),
    }
}

fn reply(rig: &mut Rig, row: &Reply) -> Result<Outcome> {
    let answer = Answer {
        ird: 4,
        ord: 4,
        private_data: Vec::new(),
    };
    let (mut peer, conn, _) = guest_calls(rig, &answer)?;
    peer.send(&(row.bytes)())?;
    let event = rig.agent.event(conn, row.event.0)?;
    same("status", &event.status, &row.event.1)?;
    same(
        "private data",
        &event.private_data,
        &row.private_data.to_vec(),
    )?;
    if let Some(bytes) = row.terminate {
        pinned(&peer.terminate()?, bytes)?;
    }
    peer.closed()?;
    Ok(outcome(row.departs))
}

fn request(rig: &mut Rig, row: &Request) -> Result<Outcome> {
    let (mut peer, _) = connect_and_send(rig, &(row.bytes)())?;
    same("bytes from siw", &peer.rest()?, &(row.says)())?;
    // The application of siw gets no event.
    same("reports of the guest", &rig.agent.unread(), &Vec::new())?;
    Ok(outcome(row.departs))
}
