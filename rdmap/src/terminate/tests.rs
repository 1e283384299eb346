use super::*;
use crate::error::AccessError;
use crate::read_request::tests::requests;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write as _;
use proptest::prelude::*;
use uwarp_ddp::{DdpError, STag, TaggedFault, TaggedOffset};

mod peers;

/// Codes that an RFC defines: layer, type, codes (RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044
/// section 8, RFC 6581 section 8).
const DEFINED: [(u8, u8, &[u8]); 7] = [
    (0, 0, &[0x00, 0x01, 0x7F, 0xFF]), // any
    (0, 1, &[0x00, 0x01, 0x02, 0x03, 0x04, 0x09, 0xFF]),
    (0, 2, &[0x05, 0x06, 0x07, 0x08, 0x09, 0xFF]),
    (1, 0, &[0x00]),
    (1, 1, &[0x00, 0x01, 0x02, 0x03, 0x04]),
    (1, 2, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x06]),
    (2, 0, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07]),
];

fn codes() -> impl Strategy<Value = TerminateCode> {
    let all: Vec<TerminateCode> = DEFINED
        .iter()
        .flat_map(|&(layer, etype, codes)| {
            codes
                .iter()
                .map(move |&code| TerminateCode::new(layer, etype, code))
        })
        .collect();
    proptest::sample::select(all)
}

fn messages() -> impl Strategy<Value = Terminate> {
    let bytes = proptest::collection::vec(any::<u8>(), UNTAGGED_HEADER);
    (
        codes(),
        any::<Option<u16>>(),
        proptest::option::of(bytes),
        proptest::option::of(requests()),
    )
        .prop_map(|(code, segment_len, ddp, rdma_header)| Terminate {
            reading: Reading::Rfc,
            code,
            segment_len,
            ddp_header: ddp.and_then(|bytes| DdpBytes::take(&bytes)),
            rdma_header,
        })
}

/// Reads a message without a profile. Marks it as read in RFC 5040's layout even if siw might have
/// sent it. Other tests cover siw's layout.
fn rfc(bytes: &[u8]) -> Option<Terminate> {
    let message = Terminate::parse(bytes)?;
    assert_ne!(message.reading, Reading::Siw);
    Some(Terminate {
        reading: Reading::Rfc,
        ..message
    })
}

proptest! {
    #[test]
    fn parse_gives_back_what_emit_wrote(message in messages()) {
        let mut out = [0xEE; MAX_TERMINATE_HEADER];
        let len = message.emit(&mut out);
        prop_assert_eq!(rfc(&out[..len]), Some(message));
        prop_assert_eq!(Terminate::bytes_needed(&out[..len]), len);
        // 5040-4.8-07: the 13 reserved bits.
        prop_assert_eq!((out[2] & 0x1F, out[3]), (0, 0));
        for short in 0..len {
            prop_assert_eq!(rfc(&out[..short]), None);
        }
    }

    #[test]
    fn reserved_bits_and_trailing_bytes_are_ignored(
        message in messages(),
        reserved in any::<(u8, u8)>(),
        trailing in proptest::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut out = [0; MAX_TERMINATE_HEADER];
        let len = message.emit(&mut out);
        out[2] |= reserved.0 & 0x1F;
        out[3] = reserved.1; // 5040-4.8-08
        let mut bytes = out[..len].to_vec();
        bytes.extend(trailing);
        prop_assert_eq!(rfc(&bytes), Some(message));
    }

    #[test]
    fn any_bytes_give_a_message_or_none_and_words_for_it(
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        for peer in [Peer::Rfc, Peer::Siw] {
            if let Some(message) = Terminate::parse_from(peer, &bytes) {
                prop_assert!(!message.to_string().is_empty());
            }
        }
    }
}

/// Builds the ULPDU of an untagged message: the DDP header, then the header of a Read Request, or
/// zeros.
fn ulpdu(control: u8, word: u32, qn: u32, request: Option<ReadRequestHeader>) -> Vec<u8> {
    let mut bytes = [0x41, control].to_vec();
    for field in [word, qn, 1, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(request.map_or([0; 28], |request| request.emit()));
    bytes
}

fn request() -> ReadRequestHeader {
    ReadRequestHeader {
        sink_stag: STag(0x51),
        sink_to: TaggedOffset(0x1000),
        len: 4096,
        source_stag: STag(0x52),
        source_to: TaggedOffset(0x2000),
    }
}

fn tagged() -> Vec<u8> {
    let mut bytes = [0xC1, 0x40, 0, 0, 0x1A, 0x2B].to_vec();
    bytes.extend(0x1000u64.to_be_bytes());
    bytes.resize(1038, 0xAB);
    bytes
}

/// Returns the error of the Write in [`tagged`].
fn bounds() -> StreamError {
    StreamError::Access(AccessError {
        opcode: Opcode::Write,
        fault: TaggedFault::BaseOrBounds,
        stag: STag(0x1A2B),
        to: TaggedOffset(0x1000),
        len: 1024,
    })
}

/// Returns an error of the Read in [`request`].
fn protection(fault: TaggedFault) -> StreamError {
    StreamError::Access(AccessError::of_read(&request(), fault))
}

#[test]
fn lengths_are_those_of_the_rfc() {
    let protection = protection(TaggedFault::AccessRights);
    let bounds = bounds();
    let send = ulpdu(0x43, 0, 0, None);
    let version = StreamError::RdmapVersion(0);
    let read = ulpdu(0x41, 0, 1, Some(request()));
    let cases: [(&StreamError, Option<&[u8]>, usize); 5] = [
        (&StreamError::LocalCatastrophic, None, 4),
        (&StreamError::Mpa(2), Some(&send), 4),
        (&bounds, Some(&tagged()), 20),
        (&version, Some(&send), 24),
        (&protection, Some(&read), 52),
    ];
    for (error, offending, len) in cases {
        let offending = offending.map(|bytes| (bytes, bytes.len()));
        let message = Terminate::for_error(error, offending).unwrap();
        assert_eq!(message.emit(&mut [0; MAX_TERMINATE_HEADER]), len, "{error}");
    }
}

#[test]
fn bytes_of_a_terminate_for_a_write_out_of_bounds() {
    let error = bounds();
    let ulpdu = tagged();
    let message = Terminate::for_error(&error, Some((&ulpdu[..70], ulpdu.len()))).unwrap();
    let mut out = [0; MAX_TERMINATE_HEADER];
    let len = message.emit(&mut out);
    let expected = [
        0x11, 0x01, 0xC0, 0x00, // DDP, tagged; base or bounds; M and D
        0x04, 0x0E, // 1038
        0xC1, 0x40, 0x00, 0x00, 0x1A, 0x2B, 0, 0, 0, 0, 0, 0, 0x10, 0,
    ];
    assert_eq!(&out[..len], expected);
    assert!(message.is_about_tagged());
    assert!(!message.is_about_read_request());
}

#[test]
fn a_read_that_was_under_way_tells_how_far_it_came() {
    let error = protection(TaggedFault::InvalidSTag);
    let message = Terminate::for_partial_read(&error, &request(), 2048);
    assert_eq!(message.rdma_header(), Some(&request().advance(2048))); // 5040-4.8-i03
    assert!(message.is_about_read_request());
    assert_eq!(message.reason(), TerminateCode::new(0, 1, 0));
}

#[test]
fn a_segment_length_without_m_is_there_but_means_nothing() {
    let mut bytes = [0x12, 0x05, DDP_HEADER, 0, 0x12, 0x34].to_vec();
    bytes.extend([0x41, 0x43]);
    bytes.resize(6 + 18, 0);
    let message = Terminate::parse(&bytes).unwrap();
    assert_eq!(message.segment_len(), None); // 5040-4.8-10
    assert_eq!(message.opcode(), Some(Opcode::Send));
}

#[test]
fn words() {
    let protection = protection(TaggedFault::AccessRights);
    let bounds = bounds();
    let invalidate = StreamError::Access(AccessError {
        opcode: Opcode::SendSolicitedInvalidate,
        fault: TaggedFault::NotAssociated,
        stag: STag(0x1A2B),
        to: TaggedOffset(0),
        len: 0,
    });
    let version = StreamError::Ddp(DdpError::Version {
        tagged: false,
        got: 2,
    });
    let tagged = tagged();
    let read = ulpdu(0x41, 0, 1, Some(request()));
    let send = ulpdu(0x46, 0x1A2B, 0, None);
    let mut other = ulpdu(0x43, 0, 0, None);
    other[0] = 0x42;
    let messages = [
        Terminate::for_error(&bounds, Some((&tagged, tagged.len()))),
        Terminate::for_error(&protection, Some((&read, read.len()))),
        Some(Terminate::for_partial_read(&protection, &request(), 96)),
        Terminate::for_error(&invalidate, Some((&send, send.len()))),
        Terminate::for_error(&version, Some((&other, other.len()))),
        Terminate::for_error(&StreamError::Mpa(2), None),
        Terminate::for_error(&StreamError::LocalCatastrophic, None),
        Some(Terminate::new(TerminateCode::new(9, 9, 0x99))),
        Terminate::for_error(&StreamError::Ended, None),
    ];
    let mut table = String::new();
    for message in messages {
        let _ = match message {
            Some(message) => writeln!(table, "{message}"),
            None => writeln!(table, "(none)"),
        };
    }
    insta::assert_snapshot!(table);
}
