//! Property test: small messages have the same bytes on the fast path as on the general path.

use crate::mem::RegionTable;

use super::*;
use crate::mem::RemoteBuffer;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send { solicited: bool, invalidate: bool },
    Write,
    Read,
    Immediate,
    WriteWithImmediate,
}

#[derive(Clone, Copy, Debug)]
enum Payload {
    Inline(usize),
    /// One element, of the source or of the receives.
    One {
        from: u32,
        len: u32,
        other: bool,
    },
    /// Two elements.
    Two {
        from: u32,
        len: u32,
    },
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post {
        kind: Kind,
        payload: Payload,
        fence: bool,
        signaled: bool,
    },
    Emss(usize),
    /// Lets the LLP take at most this many bytes.
    Take(usize),
    /// Invalidates one of the regions.
    Revoke {
        other: bool,
    },
    Disconnect,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![
        4 => any::<(bool, bool)>()
            .prop_map(|(solicited, invalidate)| Kind::Send { solicited, invalidate }),
        8 => Just(Kind::Write),
        1 => Just(Kind::Read),
        1 => Just(Kind::Immediate),
        1 => Just(Kind::WriteWithImmediate),
    ];
    let len = prop_oneof![6 => 1u32..70, 2 => 1u32..PAGE as u32];
    let payload = prop_oneof![
        3 => prop_oneof![0usize..70, 0usize..1024].prop_map(Payload::Inline),
        9 => (0u32..PAGE as u32, len.clone(), prop::bool::weighted(0.2))
            .prop_map(|(from, len, other)| Payload::One { from, len, other }),
        1 => (0u32..64, len).prop_map(|(from, len)| Payload::Two { from, len }),
        1 => Just(Payload::Nothing),
    ];
    let post = (kind, payload, prop::bool::weighted(0.1), any::<bool>());
    let post = post.prop_map(|(kind, payload, fence, signaled)| Step::Post {
        kind,
        payload,
        fence,
        signaled,
    });
    let emss = prop::sample::select(vec![0, 128, 134, 200, 536, 1460, 9000, 65_483]);
    let step = prop_oneof![
        60 => post,
        4 => emss.prop_map(Step::Emss),
        10 => prop_oneof![1usize..200, Just(1 << 20)].prop_map(Step::Take),
        1 => any::<bool>().prop_map(|other| Step::Revoke { other }),
        1 => Just(Step::Disconnect),
    ];
    prop::collection::vec(step, 1..100)
}

/// A client, with the bytes that it has sent.
struct Side {
    end: End,
    sent: Vec<u8>,
    completed: Vec<Completion>,
    /// All messages of this client take the general path.
    general: bool,
}

impl Side {
    fn post(&mut self, kind: Kind, payload: Payload, fence: bool, signaled: bool) {
        let memory = &self.end.memory;
        let (open, receives) = (&memory.open, &memory.receives);
        let sge = |region: &Region, from: u32, len: u32| Sge {
            addr: region.to_base() + u64::from(from),
            len: len.min(PAGE as u32 - from),
            lkey: region.stag().0,
        };
        let inline: Vec<u8> = (0..=255).cycle().take(1024).collect();
        let sges: Vec<Sge> = match payload {
            Payload::Inline(_) | Payload::Nothing => Vec::new(),
            Payload::One { from, len, other } => {
                vec![sge(if other { receives } else { open }, from, len)]
            }
            Payload::Two { from, len } => vec![sge(open, from, len), sge(receives, from, 8)],
        };
        let inlined = match payload {
            Payload::Inline(len) => Some(&inline[..len]),
            _ => None,
        };
        let (to, rkey) = (0x0102_0304_0506_0708, 0x1122_3344);
        let wr = match (kind, inlined) {
            (Kind::Send { .. }, Some(bytes)) => SendWr::send_inline(1, bytes),
            (Kind::Send { .. }, None) => SendWr::send(2, &sges),
            (Kind::Write, Some(bytes)) => {
                SendWr::write_inline(3, bytes, RemoteBuffer::at(to, rkey))
            }
            (Kind::Write, None) => SendWr::write(4, &sges, RemoteBuffer::at(to, rkey)),
            (Kind::Read, _) => SendWr::read(5, &sges, RemoteBuffer::at(to, rkey)),
            (Kind::Immediate, _) => SendWr::immediate(6, *b"imm data"),
            (Kind::WriteWithImmediate, Some(bytes)) => SendWr::write_with_immediate_inline(
                7,
                bytes,
                RemoteBuffer::at(to, rkey),
                *b"imm data",
            ),
            (Kind::WriteWithImmediate, None) => {
                SendWr::write_with_immediate(8, &sges, RemoteBuffer::at(to, rkey), *b"imm data")
            }
        };
        let wr = match kind {
            Kind::Send {
                solicited: true, ..
            } => wr.solicited(),
            _ => wr,
        };
        let wr = match kind {
            Kind::Send {
                invalidate: true, ..
            } => wr.invalidate(0x5566_7788),
            _ => wr,
        };
        let wr = if fence { wr.fence() } else { wr };
        let wr = if signaled { wr } else { wr.unsignaled() };
        // Posting fails if the queue is full or the region was invalidated.
        let _ = self.end.conn.post_send(&wr);
        if self.general {
            self.end.conn.sq.force_general_path();
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Post {
                kind,
                payload,
                fence,
                signaled,
            } => self.post(kind, payload, fence, signaled),
            Step::Emss(emss) => self.end.conn.set_emss(emss),
            Step::Take(limit) => {
                self.end.conn.fill();
                let mut pieces = [crate::llp::Piece::from(&[][..]); PARTS_PER_CALL];
                let count = self.end.conn.tx.pieces(&mut pieces);
                let before = self.sent.len();
                for piece in &pieces[..count] {
                    let room = limit - (self.sent.len() - before);
                    piece.append_to(piece.len().min(room), &mut self.sent);
                }
                let taken = self.sent.len() - before;
                self.end.conn.taken(taken);
            }
            // The caller does this once, because both sides use the same memory.
            Step::Revoke { .. } => {}
            Step::Disconnect => {
                self.end.conn.disconnect();
            }
        }
        self.completed.extend(self.end.completions());
    }
}

/// Returns a client with this memory that is connected to a server.
fn client(settings: &Settings, memory: &Arc<Memory>, general: bool) -> Side {
    let (end, _, _) = connected_from(memory, settings, &Memory::new());
    Side {
        end,
        sent: Vec::new(),
        completed: Vec::new(),
        general,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn plain_requests_go_out_complete_and_fail_as_by_the_general_path(
        crc in any::<bool>(),
        markers in prop::bool::weighted(0.1),
        segments in prop::sample::select(vec![1, 1, 2, 45]),
        steps in steps(),
    ) {
        let fpdu_segments = FpduSegments::new(segments).unwrap();
        let settings = Settings { crc, markers, fpdu_segments, ..Settings::default() };
        let memory = Memory::new();
        for (region, first) in [(&memory.open, 1_u8), (&memory.receives, 7)] {
            let pattern: Vec<u8> = (0..PAGE).map(|n| (n as u8).wrapping_mul(first + 2)).collect();
            region.write_at(0, &pattern).unwrap();
        }
        let mut sides = [true, false].map(|general| client(&settings, &memory, general));
        for step in steps.iter().chain(&[Step::Take(1 << 24); 3]) {
            for side in &mut sides {
                side.step(*step);
            }
            if let Step::Revoke { other } = *step {
                let region = if other { &memory.receives } else { &memory.open };
                let table: &RegionTable = &memory.table;
                let _ = table.invalidate(region.stag());
            }
            let [general, plain] = &sides;
            prop_assert_eq!(&plain.sent, &general.sent);
            prop_assert_eq!(&plain.completed, &general.completed);
            prop_assert_eq!(plain.end.conn.state, general.end.conn.state);
            let [one, other] = [plain, general].map(|side| format!("{:?}", side.end.conn.end));
            prop_assert_eq!(one, other);
            let [plain, general] = [plain, general].map(|side| side.end.conn.flight_record());
            prop_assert_eq!(plain.to_string(), general.to_string());
        }
    }
}

#[test]
fn a_batch_of_plain_requests_takes_the_fast_path_and_the_twin_does_not() {
    let memory = Memory::new();
    let mut side = client(&Settings::default(), &memory, false);
    let one = Payload::One {
        from: 0,
        len: 8,
        other: false,
    };
    for general in [true, false] {
        side.general = general;
        side.post(Kind::Write, one, false, true);
        side.end.conn.tx.reset();
        assert_eq!(side.end.conn.frame_plain(), !general);
        side.step(Step::Take(1 << 20));
    }
    assert_eq!(side.completed.len(), 2);
}
