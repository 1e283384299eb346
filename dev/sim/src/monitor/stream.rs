//! Messages of one direction: DDP segments (RFC 5041 section 4) and RDMAP operations (RFC 5040
//! section 4, RFC 7306 section 4).

use uwarp_oracle::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, READ_REQUEST, READ_RESPONSE, SEND_INVALIDATE,
    SEND_SOLICITED_INVALIDATE, Segment, TERMINATE, Untagged,
};

/// State of the messages that one direction has sent.
#[derive(Default)]
pub(super) struct Messages {
    pub(super) fpdus: u64,
    /// Number of Read and Atomic Requests.
    pub(super) asked: u64,
    /// Number of Read and Atomic Responses.
    pub(super) answered: u64,
    /// For each queue: the number of complete messages, and the number of bytes of the current one.
    queues: [(u32, usize); 4],
    terminated: bool,
}

/// Queue number of each opcode; `None` for tagged messages.
const QUEUES: [Option<usize>; 12] = [
    None,
    Some(1),
    None,
    Some(0),
    Some(0),
    Some(0),
    Some(0),
    Some(2),
    Some(0),
    Some(0),
    Some(1),
    Some(3),
];

impl Messages {
    /// Checks the next ULPDU and counts its message.
    pub(super) fn next(&mut self, ulpdu: &[u8]) -> Result<(), String> {
        if self.terminated {
            return Err(format!("{} bytes after a Terminate Message", ulpdu.len()));
        }
        self.fpdus += 1;
        let segment = Segment::parse(ulpdu).map_err(|error| error.to_string())?;
        let (last, opcode, versions) = match &segment {
            Segment::Tagged(s) => (s.last, s.opcode, (s.ddp_version, s.rdmap_version)),
            Segment::Untagged(s) => (s.last, s.opcode, (s.ddp_version, s.rdmap_version)),
        };
        if versions != (1, 1) {
            return Err(format!("control bytes {:02x?}", &ulpdu[..2]));
        }
        let queue = *QUEUES
            .get(usize::from(opcode))
            .ok_or_else(|| format!("opcode {opcode:x}"))?;
        match (queue, &segment) {
            (None, Segment::Tagged(_)) => {}
            (Some(queue), Segment::Untagged(segment)) => self.untagged(queue, segment)?,
            _ => return Err(format!("opcode {opcode:x} in {:02x?}", &ulpdu[..2])),
        }
        self.terminated = opcode == TERMINATE;
        self.asked += u64::from(matches!(opcode, READ_REQUEST | ATOMIC_REQUEST));
        self.answered += u64::from(last && matches!(opcode, READ_RESPONSE | ATOMIC_RESPONSE));
        Ok(())
    }

    /// Checks that the MSNs of a queue count from 1, that the segments of a message are contiguous,
    /// and that only a Send with Invalidate carries an STag (RFC 5040 section 4.3).
    fn untagged(&mut self, queue: usize, segment: &Untagged) -> Result<(), String> {
        let (messages, bytes) = &mut self.queues[queue];
        let should = (queue as u32, messages.wrapping_add(1), *bytes);
        let is = (segment.qn, segment.msn, segment.mo as usize);
        if is != should {
            return Err(format!("QN, MSN, MO are {is:?}, expected {should:?}"));
        }
        *bytes += segment.payload.len();
        if segment.last {
            (*messages, *bytes) = (should.1, 0);
        }
        let opcode = segment.opcode;
        if !matches!(opcode, SEND_INVALIDATE | SEND_SOLICITED_INVALIDATE) && segment.word != 0 {
            return Err(format!("opcode {opcode:x} carries an STag"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untagged(last: bool, opcode: u8, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
        let segment = Untagged {
            last,
            mo,
            ..Untagged::new(opcode, qn, msn, payload)
        };
        segment.bytes()
    }

    #[test]
    fn messages_have_numbers_and_their_segments_offsets() {
        let mut messages = Messages::default();
        messages
            .next(&untagged(false, 3, [0, 1, 0], b"ab"))
            .unwrap();
        messages.next(&untagged(true, 3, [0, 1, 2], b"c")).unwrap();
        messages.next(&untagged(true, 3, [0, 2, 0], b"")).unwrap();
        messages
            .next(&untagged(true, 1, [1, 1, 0], &[0; 28]))
            .unwrap();
        assert_eq!((messages.asked, messages.fpdus), (1, 4));
        for wrong in [[0, 2, 0], [0, 3, 1], [1, 3, 0]] {
            assert!(messages.next(&untagged(true, 3, wrong, b"")).is_err());
        }
    }

    #[test]
    fn nothing_comes_behind_a_terminate() {
        let mut messages = Messages::default();
        messages
            .next(&untagged(true, 7, [2, 1, 0], &[0; 4]))
            .unwrap();
        let send = untagged(true, 3, [0, 1, 0], b"");
        assert!(messages.next(&send).unwrap_err().contains("after"));
    }

    #[test]
    fn reserved_bits_and_versions_are_looked_at() {
        for (ddp, rdmap) in [
            (0x45, 0x43),
            (0x42, 0x43),
            (0x41, 0x83),
            (0x41, 0x53),
            (0x41, 0x4C),
        ] {
            let mut send = untagged(true, 3, [0, 1, 0], b"");
            send[..2].copy_from_slice(&[ddp, rdmap]);
            assert!(Messages::default().next(&send).is_err());
        }
    }
}
