//! Messages of one direction: DDP segments (RFC 5041 section 4) and RDMAP operations (RFC 5040
//! section 4, RFC 7306 section 4).

/// Length in bytes of the header of a tagged segment.
const TAGGED: usize = 14;
/// Length in bytes of the header of an untagged segment.
const UNTAGGED: usize = 18;
const TERMINATE: u8 = 7;

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
        let &[ddp, rdmap, ..] = ulpdu else {
            return Err(format!("a ULPDU of {} bytes", ulpdu.len()));
        };
        let (tagged, last, opcode) = (ddp & 0x80 != 0, ddp & 0x40 != 0, rdmap & 0xF);
        if ddp & 0x3F != 1 || rdmap & 0xF0 != 0x40 {
            return Err(format!("control bytes {ddp:02x} {rdmap:02x}"));
        }
        let queue = *QUEUES
            .get(usize::from(opcode))
            .ok_or_else(|| format!("opcode {opcode:x}"))?;
        let header = if tagged { TAGGED } else { UNTAGGED };
        if queue.is_none() != tagged || ulpdu.len() < header {
            return Err(format!(
                "opcode {opcode:x}, {ddp:02x}, {} bytes",
                ulpdu.len()
            ));
        }
        if let Some(queue) = queue {
            self.untagged(queue, ulpdu, last)?;
            // Only a Send with Invalidate carries an STag (RFC 5040 section 4.3).
            if !matches!(opcode, 4 | 6) && ulpdu[2..6] != [0; 4] {
                return Err(format!("opcode {opcode:x} carries an STag"));
            }
        }
        self.terminated = opcode == TERMINATE;
        self.asked += u64::from(matches!(opcode, 1 | 10));
        self.answered += u64::from(last && matches!(opcode, 2 | 11));
        Ok(())
    }

    /// Checks that the MSNs of a queue count from 1, and that the segments of a message are
    /// contiguous.
    fn untagged(&mut self, queue: usize, ulpdu: &[u8], last: bool) -> Result<(), String> {
        let word = |at: usize| {
            let word = ulpdu[at..at + 4].first_chunk().copied();
            u32::from_be_bytes(word.unwrap_or_default())
        };
        let (messages, bytes) = &mut self.queues[queue];
        let should = (queue as u32, messages.wrapping_add(1), *bytes);
        let is = (word(6), word(10), word(14) as usize);
        if is != should {
            return Err(format!("QN, MSN, MO are {is:?}, expected {should:?}"));
        }
        *bytes += ulpdu.len() - UNTAGGED;
        if last {
            (*messages, *bytes) = (should.1, 0);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn untagged(ddp: u8, rdmap: u8, [qn, msn, mo]: [u32; 3], payload: &[u8]) -> Vec<u8> {
        let mut ulpdu = vec![ddp, rdmap, 0, 0, 0, 0];
        for word in [qn, msn, mo] {
            ulpdu.extend(word.to_be_bytes());
        }
        ulpdu.extend(payload);
        ulpdu
    }

    #[test]
    fn messages_have_numbers_and_their_segments_offsets() {
        let mut messages = Messages::default();
        messages.next(&untagged(1, 0x43, [0, 1, 0], b"ab")).unwrap();
        messages
            .next(&untagged(0x41, 0x43, [0, 1, 2], b"c"))
            .unwrap();
        messages
            .next(&untagged(0x41, 0x43, [0, 2, 0], b""))
            .unwrap();
        messages
            .next(&untagged(0x41, 0x41, [1, 1, 0], &[0; 28]))
            .unwrap();
        assert_eq!((messages.asked, messages.fpdus), (1, 4));
        for wrong in [[0, 2, 0], [0, 3, 1], [1, 3, 0]] {
            assert!(messages.next(&untagged(0x41, 0x43, wrong, b"")).is_err());
        }
    }

    #[test]
    fn nothing_comes_behind_a_terminate() {
        let mut messages = Messages::default();
        messages
            .next(&untagged(0x41, 0x47, [2, 1, 0], &[0; 4]))
            .unwrap();
        let send = untagged(0x41, 0x43, [0, 1, 0], b"");
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
            let send = untagged(ddp, rdmap, [0, 1, 0], b"");
            assert!(Messages::default().next(&send).is_err());
        }
    }
}
