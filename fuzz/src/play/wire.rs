//! Compares events of the stream with the model, and its segments with the figures of the RFCs.

use uwarp_oracle::{Tagged, Untagged};
use uwarp_rdmap::{
    HEAD_LEN, Inbound, MAX_HEADER, MAX_TERMINATE_HEADER, Opcode, OutMessage, Stream, StreamError,
    Terminate,
};

use crate::model::stream::{Code, Event};

/// Converts an event of the stream to the model's type.
pub(super) fn meaning(inbound: &Inbound<(usize, usize)>) -> Event {
    match *inbound {
        Inbound::Write {
            target,
            payload_at,
            len,
            last,
        } => Event::Write {
            place: target,
            payload_at,
            len,
            last,
        },
        Inbound::Send {
            payload_at,
            offset,
            len,
            delivered,
        } => Event::Send {
            payload_at,
            offset,
            len,
            delivered: delivered.map(|message| {
                let stag = message.invalidated.map(|stag| stag.0);
                (message.len, message.solicited, stag)
            }),
        },
        Inbound::ReadRequest => Event::ReadRequest,
        Inbound::ReadResponse {
            payload_at,
            offset,
            len,
            complete,
        } => Event::ReadResponse {
            payload_at,
            offset,
            len,
            complete,
        },
        Inbound::Immediate { data, solicited } => Event::Immediate { data, solicited },
        Inbound::AtomicRequest => Event::AtomicRequest,
        Inbound::AtomicResponse { original } => Event::AtomicResponse { original },
        Inbound::Terminate(_) => Event::Terminate,
    }
}

/// Checks the Terminate Message for an error: its code, and the headers that RFC 5040 Figure 10
/// requires. Also checks that it parses to the same fields.
pub(super) fn terminate(error: &StreamError, ulpdu: &[u8], code: Option<Code>) {
    let head = &ulpdu[..ulpdu.len().min(HEAD_LEN)];
    let Some(message) = Stream::terminate_for(error, Some((head, ulpdu.len()))) else {
        assert_eq!((*error, code), (StreamError::Ended, None));
        return;
    };
    let code = code.expect("an error with a Terminate has a code");
    let mut bytes = [0; MAX_TERMINATE_HEADER];
    let len = message.emit(&mut bytes);
    let header_len = if head.first().is_some_and(|control| control & 0x80 != 0) {
        14
    } else {
        18
    };
    let with_ddp = code.1 != 0 && head.len() >= header_len;
    let with_read = with_ddp
        && matches!(error, StreamError::Access(error) if error.opcode == Opcode::ReadRequest);
    let mut wanted = vec![code.0 << 4 | code.1, code.2, 0, 0];
    if with_ddp {
        let segment_len = u16::try_from(ulpdu.len());
        wanted[2] |= 0x40 | if segment_len.is_ok() { 0x80 } else { 0 };
        wanted.extend_from_slice(&segment_len.unwrap_or(0).to_be_bytes());
        wanted.extend_from_slice(&head[..header_len]);
    }
    if with_read {
        wanted[2] |= 0x20;
        wanted.extend_from_slice(&head[18..46]);
    }
    assert_eq!(&bytes[..len], wanted, "{error}");
    let again = Terminate::parse_from(uwarp_rdmap::Peer::Rfc, &bytes[..len]).expect("it is whole");
    assert_eq!((again.layer(), again.etype(), again.code()), code);
    assert_eq!(again.ddp_bytes(), with_ddp.then(|| &head[..header_len]));
    assert_eq!(again.rdma_header().is_some(), with_read);
}

/// Checks that a message has no further segment. A message begun after the end of the stream has no
/// segment at all.
pub(super) fn nothing(mut message: OutMessage) {
    assert!(message.is_done());
    assert_eq!(message.next_segment(1500, &mut [0; MAX_HEADER]), None);
}

/// Checks the segments of a message. `header` returns the expected header for an offset and the
/// value of flag L.
pub(super) fn segments(
    mut message: OutMessage,
    mulpdu: usize,
    len: u32,
    header: impl Fn(u32, bool) -> Vec<u8>,
) {
    let header_len = header(0, true).len();
    let room = (mulpdu.min(64_768).saturating_sub(header_len)).max(1) as u32;
    let mut offset = 0;
    loop {
        let left = len - offset;
        let last = left <= room;
        let mut bytes = [0xEE; MAX_HEADER];
        let segment = message
            .next_segment(mulpdu, &mut bytes)
            .expect("the message goes on");
        assert_eq!(
            (segment.offset, segment.len, segment.last),
            (offset, left.min(room), last)
        );
        assert_eq!(bytes[..segment.header_len], header(offset, last));
        offset += segment.len;
        if last {
            break;
        }
    }
    assert!(message.is_done() && message.payload_len() == len);
    assert_eq!(message.next_segment(mulpdu, &mut [0; MAX_HEADER]), None);
}

/// Checks tagged segments (RFC 5041 Figure 3, RFC 5040 Figure 3).
pub(super) fn tagged(message: OutMessage, mulpdu: usize, opcode: u8, stag: u32, to: u64, len: u32) {
    segments(message, mulpdu, len, |offset, last| {
        let segment = Tagged {
            last,
            ..Tagged::new(opcode, stag, to.wrapping_add(u64::from(offset)), &[])
        };
        segment.bytes()
    });
}

/// Checks untagged segments (RFC 5041 Figure 4, RFC 5040 Figure 3).
pub(super) fn untagged(
    message: OutMessage,
    mulpdu: usize,
    opcode: u8,
    word: u32,
    (qn, msn): (u32, u32),
    len: u32,
) {
    segments(message, mulpdu, len, |offset, last| {
        let segment = Untagged {
            last,
            word,
            mo: offset,
            ..Untagged::new(opcode, qn, msn, &[])
        };
        segment.bytes()
    });
}

/// Checks that a message without payload is sent as one segment. `bytes` is the expected header
/// after the DDP header.
pub(super) fn headed(mut message: OutMessage, opcode: u8, qn: u32, msn: u32, bytes: &[u8]) {
    let mut header = [0xEE; MAX_HEADER];
    let segment = message
        .next_segment(128, &mut header)
        .expect("it has a segment");
    let wanted = Untagged::new(opcode, qn, msn, bytes).bytes();
    assert_eq!(
        (&header[..segment.header_len], segment.len, segment.last),
        (&wanted[..], 0, true)
    );
    nothing(message);
}
