//! An independent reader of the sent bytes: startup frames, FPDUs and segments.
//!
//! It checks the rules whose violation ends a connection to Linux siw or crashes its kernel.

/// Fields of a startup frame (RFC 5044 section 7.1, RFC 6581 section 6).
#[derive(Debug)]
pub(super) struct Startup {
    pub(super) reply: bool,
    pub(super) flags: u8,
    pub(super) revision: u8,
    pub(super) pd_length: usize,
    pub(super) len: usize,
}

/// Flag S: the Private Data begins with enhanced connection data.
pub(super) const ENHANCED: u8 = 0x10;

/// Parses the startup frame at the beginning of `bytes`, which must be complete.
pub(super) fn startup(bytes: &[u8]) -> Startup {
    let reply = match &bytes[..16] {
        b"MPA ID Req Frame" => false,
        b"MPA ID Rep Frame" => true,
        other => panic!("no startup frame: {other:02x?}"),
    };
    let pd_length = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
    assert!(bytes.len() >= 20 + pd_length, "cut short");
    Startup {
        reply,
        flags: bytes[16],
        revision: bytes[17],
        pd_length,
        len: 20 + pd_length,
    }
}

/// Linux 6.1 crashes on an enhanced Reply without room for IRD and ORD.
pub(super) fn check_startup(frame: &Startup) {
    if frame.revision == 2 && frame.flags & ENHANCED != 0 {
        assert!(frame.pd_length >= 4, "{frame:?}");
    }
}

/// One DDP segment with its RDMAP opcode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) opcode: u8,
    pub(super) last: bool,
    /// Bytes after the DDP header.
    pub(super) len: usize,
    /// Tagged: STag and 0; `offset` is the TO. Untagged: Queue Number and MSN; `offset` is the MO.
    pub(super) stream: (u32, u32),
    pub(super) offset: u64,
}

pub(super) const WRITE: u8 = 0;
pub(super) const READ_REQUEST: u8 = 1;
pub(super) const READ_RESPONSE: u8 = 2;
pub(super) const SEND: u8 = 3;
pub(super) const SEND_SE: u8 = 5;
pub(super) const TERMINATE: u8 = 7;
pub(super) const IMMEDIATE: u8 = 8;
pub(super) const IMMEDIATE_SE: u8 = 9;
pub(super) const ATOMIC_REQUEST: u8 = 10;
pub(super) const ATOMIC_RESPONSE: u8 = 11;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn segment(ulpdu: &[u8]) -> Segment {
    let (control, opcode) = (ulpdu[0], ulpdu[1] & 0x0F);
    let last = control & 0x40 != 0;
    if control & 0x80 != 0 {
        Segment {
            opcode,
            last,
            len: ulpdu.len() - 14,
            stream: (word(ulpdu, 2), 0),
            offset: u64::from(word(ulpdu, 6)) << 32 | u64::from(word(ulpdu, 10)),
        }
    } else {
        Segment {
            opcode,
            last,
            len: ulpdu.len() - 18,
            stream: (word(ulpdu, 6), word(ulpdu, 10)),
            offset: u64::from(word(ulpdu, 14)),
        }
    }
}

/// Parses the segments of all complete FPDUs. The second value is true if no bytes are left after
/// them.
///
/// `markers`: the bytes contain Markers of 4 bytes, at stream offset 0 and at every multiple of 512
/// (RFC 5044 section 4.3).
pub(super) fn segments(fpdus: &[u8], markers: bool) -> (Vec<Segment>, bool) {
    let plain: Vec<u8> = if markers {
        let behind = fpdus.chunks(512).map(|chunk| chunk.get(4..).unwrap_or(&[]));
        behind.flatten().copied().collect()
    } else {
        fpdus.to_vec()
    };
    let (mut at, mut out) = (0, Vec::new());
    while let Some(&[high, low]) = plain.get(at..at + 2) {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let end = at + (2 + len).next_multiple_of(4) + 4;
        if end > plain.len() {
            break;
        }
        out.push(segment(&plain[at + 2..at + 2 + len]));
        at = end;
    }
    (out, at == plain.len())
}

/// Returns the Queue Number and the length of a message whose length is fixed. Such messages fit
/// into one segment.
fn of_one_size(opcode: u8) -> Option<(u32, usize)> {
    match opcode {
        READ_REQUEST => Some((1, 28)),
        IMMEDIATE | IMMEDIATE_SE => Some((0, 8)), // 7306-6.3-04, 7306-6.3-05
        ATOMIC_REQUEST => Some((1, 52)),          // 7306-5.2-01
        ATOMIC_RESPONSE => Some((3, 12)),         // 7306-5-04
        _ => None,
    }
}

/// The last MSN of each untagged queue.
#[derive(Default)]
struct Numbers([u32; 4]);

impl Numbers {
    /// Checks the MSN at the beginning of a message.
    ///
    /// It must be the next number of its queue (5041-4.3-07), from 1 on (5041-4.3-08). Different
    /// operations may share a queue.
    fn begin(&mut self, segment: &Segment) -> Result<(), String> {
        if matches!(segment.opcode, WRITE | READ_RESPONSE) {
            return Ok(());
        }
        let (queue, msn) = segment.stream;
        let last = self.0.get_mut(queue as usize).ok_or("no such queue")?;
        *last += 1;
        if msn == *last {
            Ok(())
        } else {
            Err(format!("{segment:?}: message {last} of the queue is due"))
        }
    }
}

/// Checks the rules for all segments that one side has sent, in order.
pub(super) fn check_segments(segments: &[Segment]) -> Result<(), String> {
    let mut open: Option<Segment> = None;
    let mut terminated = false;
    let mut numbers = Numbers::default();
    for segment in segments {
        if terminated {
            return Err(format!("{segment:?} after a Terminate")); // 5040-5.4-07
        }
        if segment.len == 0 && !segment.last {
            // 5041-5.2-09. An empty Write segment crashes Linux 6.1.
            return Err(format!("{segment:?}: empty, and not the last"));
        }
        if segment.opcode == TERMINATE {
            terminated = true;
            continue;
        }
        if let Some(before) = open {
            // 5041-5.3-01. Linux siw closes the connection on such a segment.
            let expected = (
                before.opcode,
                before.stream,
                before.offset + before.len as u64,
            );
            if (segment.opcode, segment.stream, segment.offset) != expected {
                return Err(format!("{segment:?} within the message of {before:?}"));
            }
        } else {
            numbers.begin(segment)?;
            let untagged = !matches!(segment.opcode, WRITE | READ_RESPONSE);
            if untagged && segment.offset != 0 {
                return Err(format!("{segment:?} begins in the middle"));
            }
        }
        if let Some((queue, len)) = of_one_size(segment.opcode)
            && (segment.stream.0, segment.len, segment.last) != (queue, len, true)
        {
            return Err(format!("{segment:?} is not one segment of {len}"));
        }
        open = (!segment.last).then_some(*segment);
    }
    match open {
        Some(open) if !terminated => Err(format!("{open:?} has no last segment")),
        _ => Ok(()),
    }
}

#[test]
fn the_rules_find_what_they_are_for() {
    let write = |len, last, offset| Segment {
        opcode: WRITE,
        last,
        len,
        stream: (1, 0),
        offset,
    };
    let with = |opcode, segment| Segment { opcode, ..segment };
    let untagged = |opcode, len, stream| Segment {
        stream,
        ..with(opcode, write(len, true, 0))
    };
    let request = untagged(READ_REQUEST, 28, (1, 1));
    let send = |last, offset| Segment {
        stream: (0, 1),
        ..with(SEND, write(10, last, offset))
    };
    for good in [
        &[write(0, true, 0)][..],
        &[write(8, false, 0), write(8, true, 8), request],
        &[send(false, 0), with(TERMINATE, write(4, true, 0))],
        // Different operations that share a queue.
        &[
            send(true, 0),
            untagged(IMMEDIATE, 8, (0, 2)),
            request,
            untagged(ATOMIC_REQUEST, 52, (1, 2)),
            untagged(ATOMIC_RESPONSE, 12, (3, 1)),
        ],
    ] {
        assert_eq!(check_segments(good), Ok(()));
    }
    for bad in [
        // Crashes Linux 6.1.
        &[write(0, false, 0), write(8, true, 0)][..],
        // siw closes the connection on these.
        &[send(false, 0), request, send(true, 10)],
        &[
            with(READ_RESPONSE, write(8, false, 0)),
            write(8, true, 0),
            with(READ_RESPONSE, write(8, true, 8)),
        ],
        &[write(8, false, 0), write(8, true, 9)],
        &[write(8, false, 0)],
        &[with(TERMINATE, write(4, true, 0)), write(0, true, 0)],
        // MSNs counted separately on a shared queue, a skipped MSN, and a wrong length.
        &[send(true, 0), untagged(IMMEDIATE, 8, (0, 1))],
        &[request, untagged(ATOMIC_REQUEST, 52, (1, 3))],
        &[untagged(IMMEDIATE_SE, 4, (0, 1))],
    ] {
        assert!(check_segments(bad).is_err(), "{bad:?}");
    }
    let bytes = [&[0, 14, 0x81, 0x40][..], &[0; 12], &[0; 4]].concat();
    assert_eq!(
        segments(&bytes, false),
        (
            vec![Segment {
                stream: (0, 0),
                ..write(0, false, 0)
            }],
            true
        )
    );
    let marked = [&[0; 4][..], &bytes].concat();
    assert_eq!(segments(&marked, true).0.len(), 1);
    assert_eq!(segments(&bytes[..19], false), (vec![], false));
    let short = [&b"MPA ID Rep Frame\x10\x02\x00\x00"[..]].concat();
    assert!(std::panic::catch_unwind(|| check_startup(&startup(&short))).is_err());
}
