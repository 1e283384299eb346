//! DDP without the layers above it.
//!
//! * Parses arbitrary bytes as a segment. The fields must be at the offsets of RFC 5041 Figures 3
//!   and 4, and the emitted header must have the same bytes.
//! * Delivers segments to a queue, which must accept, place and refuse them as the model does.
//! * Cuts messages into segments.
//! * Checks an STag range against a TO and a length, in arithmetic that cannot wrap.

use uwarp_ddp::{
    DdpError, Header, MAX_HEADER, MAX_ULPDU, Msn, Qn, STag, Segmenter, TaggedFault, TaggedHeader,
    TaggedOffset, TaggedRange, UntaggedFault, UntaggedHeader, UntaggedReceiver,
};

use crate::input::Input;

/// Parses the whole input as a segment. Then derives a range, a message and a queue from the input.
pub fn run(data: &[u8]) {
    header(data);
    let mut input = Input::new(data);
    range(&mut input);
    message(&mut input);
    queue(&mut input);
}

fn field(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len]
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Checks that the parsed fields equal the bytes at their offsets, and that the emitted header
/// equals the input apart from reserved bits.
fn header(bytes: &[u8]) {
    let parsed = Header::parse(bytes);
    let Some(control) = bytes.first() else {
        assert_eq!(parsed, Err(DdpError::TooShort { len: 0, needed: 1 }));
        return;
    };
    let tagged = control & 0x80 != 0;
    let needed = if tagged { 14 } else { 18 };
    let (version, last) = (control & 3, control & 0x40 != 0);
    let wanted = if version != 1 {
        Err(DdpError::Version {
            tagged,
            got: version,
        })
    } else if bytes.len() < needed {
        Err(DdpError::TooShort {
            len: bytes.len(),
            needed,
        })
    } else if tagged {
        Ok(Header::Tagged(TaggedHeader {
            last,
            ulp: bytes[1],
            stag: STag(field(bytes, 2, 4) as u32),
            to: TaggedOffset(field(bytes, 6, 8)),
        }))
    } else {
        Ok(Header::Untagged(UntaggedHeader {
            last,
            ulp: bytes[1],
            ulp_word: field(bytes, 2, 4) as u32,
            qn: Qn(field(bytes, 6, 4) as u32),
            msn: Msn(field(bytes, 10, 4) as u32),
            mo: field(bytes, 14, 4) as u32,
        }))
    };
    assert_eq!(parsed, wanted.map(|header| (header, needed)));
    match parsed {
        Ok((header, len)) => {
            assert_eq!((header.last(), header.ulp()), (last, bytes[1]));
            let mut again = [0xEE; MAX_HEADER];
            assert_eq!(header.emit(&mut again), len);
            // The reserved bits are sent as zero (5041-4.1-08).
            let mut wanted = bytes[..len].to_vec();
            wanted[0] &= 0xC3;
            assert_eq!(again[..len], wanted);
            assert!(again[len..].iter().all(|byte| *byte == 0xEE));
        }
        Err(error) => numbered(error),
    }
}

/// Checks the error type and code for a Terminate Message (RFC 5041 section 7.2).
fn numbered(error: DdpError) {
    let number = match error {
        DdpError::TooShort { .. } => None,
        DdpError::Version { tagged: true, .. } => Some((1, 4)),
        DdpError::Version { tagged: false, .. } => Some((2, 6)),
        DdpError::LocalCatastrophic => Some((0, 0)),
        DdpError::Untagged(fault) => Some((
            2,
            match fault {
                UntaggedFault::InvalidQn(_) => 1,
                UntaggedFault::NoBuffer { .. } => 2,
                UntaggedFault::MsnRange { .. } => 3,
                UntaggedFault::InvalidMo { .. } => 4,
                UntaggedFault::MessageTooLong { .. } => 5,
            },
        )),
    };
    assert_eq!(error.etype().zip(error.code()), number);
    assert!(!error.to_string().is_empty());
}

/// Compares `TaggedRange::locate` with the same calculation in 128 bits.
fn range(input: &mut Input<'_>) {
    let range = TaggedRange {
        base: TaggedOffset(input.u64()),
        len: input.u64(),
    };
    let near = input.flags();
    let to = match (near(0), near(1)) {
        (false, _) => input.u64(),
        (true, false) => range.base.0.wrapping_add(input.u8().into()),
        (true, true) => range
            .base
            .0
            .wrapping_add(range.len)
            .wrapping_sub(input.u8().into()),
    };
    let len = if near(2) {
        input.u8().into()
    } else {
        input.u32()
    };
    let len = len.max(1);
    let end = u128::from(to) + u128::from(len);
    let wanted = if end >= 1 << 64 {
        Err(TaggedFault::ToWrap)
    } else if to < range.base.0 || end > u128::from(range.base.0) + u128::from(range.len) {
        Err(TaggedFault::BaseOrBounds)
    } else {
        Ok(to - range.base.0..to - range.base.0 + u64::from(len))
    };
    let found = range.locate(TaggedOffset(to), len);
    assert_eq!(found, wanted);
    if let Err(fault) = found {
        let code = match fault {
            TaggedFault::InvalidSTag | TaggedFault::NotAssociated | TaggedFault::AccessRights => 0,
            TaggedFault::BaseOrBounds => 1,
            TaggedFault::ToWrap => 3,
        };
        assert_eq!(fault.code(), code);
        assert!(!fault.to_string().is_empty());
    }
    assert_eq!(TaggedOffset(to).advance(len).0, end as u64);
}

/// Checks that segments cover a message once and in order, even if the MULPDU changes in between.
fn message(input: &mut Input<'_>) {
    let len = input.u32() % 300_000;
    let header_len = if input.flags()(0) { 14 } else { 18 };
    let mut segmenter = Segmenter::new(len);
    let mut at = 0;
    for step in 0_u32.. {
        assert_eq!((segmenter.position(), segmenter.is_done()), (at, false));
        // After the first eight segments the MULPDU is large, so that every message ends soon.
        let mulpdu = if step < 8 { input.u16().into() } else { 40_000 };
        let segment = segmenter
            .next_segment(header_len, mulpdu)
            .expect("it is not done");
        assert_eq!(
            (segment.offset, segment.range().len()),
            (at, segment.len as usize)
        );
        let room = mulpdu.min(MAX_ULPDU).saturating_sub(header_len).max(1);
        assert_eq!(segment.len as usize, room.min((len - at) as usize));
        at += segment.len;
        assert_eq!(segment.last, at == len);
        if segment.last {
            break;
        }
    }
    assert_eq!(
        (
            segmenter.next_segment(header_len, 1500),
            segmenter.message_len()
        ),
        (None, len)
    );
}

/// Delivers segments to an untagged queue and compares each result with the expected one.
fn queue(input: &mut Input<'_>) {
    let qn = u32::from(input.u8() & 3);
    let mut receiver = UntaggedReceiver::new(Qn(qn));
    let (mut msn, mut received) = (1_u32, 0_u32);
    while !input.is_empty() {
        let wrong = input.flags();
        let header = UntaggedHeader {
            last: wrong(0),
            ulp: 0x43,
            ulp_word: 0,
            qn: Qn(if wrong(7) { input.u32() } else { qn }),
            msn: Msn(if wrong(6) { input.u32() } else { msn }),
            mo: if wrong(5) { input.u32() } else { received },
        };
        let len = if wrong(4) {
            input.u32()
        } else {
            input.u8().into()
        };
        let buffer = match (wrong(1), wrong(2)) {
            (true, true) => None,
            (true, false) => Some(input.u32()),
            _ => Some(u32::MAX),
        };
        let end = u64::from(received) + u64::from(len);
        let wanted = match buffer {
            _ if header.qn.0 != qn => Err(1),
            _ if header.msn.0 != msn => Err(3),
            None => Err(2),
            Some(_) if header.mo != received => Err(4),
            Some(buffer) if end > u64::from(buffer) => Err(5),
            Some(_) => Ok((received, len, header.last, end as u32)),
        };
        let before = receiver;
        match receiver.accept(&header, len, buffer) {
            Ok(place) => {
                assert_eq!(
                    Ok((place.offset, place.len, place.last, place.message_len)),
                    wanted
                );
                assert_eq!(place.range(), received as usize..end as usize);
                received = if header.last { 0 } else { end as u32 };
                msn = msn.wrapping_add(header.last.into());
            }
            Err(fault) => {
                assert_eq!(Err(fault.code()), wanted, "{fault}");
                assert_eq!(receiver, before, "a refused segment changes nothing");
                numbered(DdpError::Untagged(fault));
            }
        }
        assert_eq!((receiver.msn(), receiver.received()), (Msn(msn), received));
    }
}
