//! Property tests of the sent bytes. Whatever the two sides post, and in any order, the bytes obey
//! the rules of [`super::wire`], and a responder sends nothing before it has received a complete
//! FPDU (5044-7.1.2-15).

use super::wire::{
    ENHANCED, IMMEDIATE, Segment, WRITE, check_segments, check_startup, segments, startup,
};
use super::*;
use crate::mem::RemoteBuffer;

/// Length of a message.
#[derive(Clone, Copy, Debug)]
enum Size {
    Bytes(u32),
    /// Total capacity of this number of full segments, plus or minus a few bytes.
    Segments(u32, i32),
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send {
        inline: bool,
    },
    Write {
        inline: bool,
    },
    /// A Read, into one element or into the same list as that of a Send.
    Read {
        several: bool,
    },
    /// Atomic operation on the nth word of the peer's region.
    Atomic {
        nth: u8,
        swap: bool,
    },
    Immediate {
        solicited: bool,
    },
    WriteWithImmediate {
        inline: bool,
    },
}

#[derive(Clone, Debug)]
enum Step {
    /// Posts a work request. `empty`: bits 0 to 4 each add an empty element at one position of the
    /// list; bit 5 makes the list one element long.
    Post {
        kind: Kind,
        size: Size,
        empty: u8,
        fence: bool,
    },
    /// Changes the EMSS.
    Emss(usize),
    /// Lets the LLP take at most this many bytes.
    Take(usize),
    /// Delivers at most this many of the sent bytes to the other side.
    Arrive(usize),
    /// Invalidates the region that has all payload.
    Revoke,
    Disconnect,
    /// Delivers bytes to this side that the peer has not sent.
    Garbage,
}

fn steps() -> impl Strategy<Value = Vec<(bool, Step)>> {
    let size = prop_oneof![
        3 => (0u32..=PAGE as u32).prop_map(Size::Bytes),
        2 => Just(Size::Bytes(0)),
        4 => (1u32..5, -1i32..=1).prop_map(|(full, more)| Size::Segments(full, more)),
    ];
    let kind = prop_oneof![
        any::<bool>().prop_map(|inline| Kind::Send { inline }),
        any::<bool>().prop_map(|inline| Kind::Write { inline }),
        any::<bool>().prop_map(|several| Kind::Read { several }),
        any::<(u8, bool)>().prop_map(|(nth, swap)| Kind::Atomic { nth, swap }),
        any::<bool>().prop_map(|solicited| Kind::Immediate { solicited }),
        any::<bool>().prop_map(|inline| Kind::WriteWithImmediate { inline }),
    ];
    let post =
        (kind, size, 0u8..64, any::<bool>()).prop_map(|(kind, size, empty, fence)| Step::Post {
            kind,
            size,
            empty,
            fence: fence && empty & 1 == 0,
        });
    let emss = prop::sample::select(vec![0, 1, 128, 134, 200, 536, 1460, 9000, 65_483]);
    let step = prop_oneof![
        40 => post,
        6 => emss.prop_map(Step::Emss),
        20 => prop_oneof![1usize..200, Just(1 << 20)].prop_map(Step::Take),
        20 => prop_oneof![1usize..200, Just(1 << 20)].prop_map(Step::Arrive),
        1 => Just(Step::Revoke),
        1 => Just(Step::Disconnect),
        1 => Just(Step::Garbage),
    ];
    prop::collection::vec((any::<bool>(), step), 1..60)
}

/// One side, with all bytes that it has sent in Full Operation and the number of them that have
/// arrived.
struct Side {
    end: End,
    sent: Vec<u8>,
    arrived: usize,
    markers: bool,
    responder: bool,
}

impl Side {
    fn new(end: End, responder: bool) -> Self {
        let mut end = end;
        let sges = [Sge {
            addr: end.memory.receives.to_base(),
            len: PAGE as u32,
            lkey: end.memory.receives.stag().0,
        }];
        for wr_id in 0..64 {
            end.conn.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        let markers = end.conn.negotiated.as_ref().unwrap().tx_markers;
        Side {
            end,
            sent: Vec::new(),
            arrived: 0,
            markers,
            responder,
        }
    }

    /// Lets the LLP take at most `limit` bytes.
    fn take(&mut self, limit: usize, other: &Side) {
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
        if self.responder && taken > 0 {
            let came = &other.sent[..other.arrived];
            let (fpdus, _) = segments(came, other.markers);
            assert!(!fpdus.is_empty(), "sent before the initiator's first FPDU");
        }
    }

    fn post(&mut self, other: &Memory, kind: Kind, size: Size, empty: u8, fence: bool) {
        let Stage::Open(stream) = &self.end.conn.stage else {
            return;
        };
        let header = if matches!(kind, Kind::Send { .. }) {
            18
        } else {
            14
        };
        let room = (stream.outbound.framing.mulpdu() - header) as u32;
        let len = match size {
            Size::Bytes(bytes) => bytes,
            Size::Segments(full, more) => (full * room).saturating_add_signed(more),
        }
        .min(PAGE as u32);
        let (base, lkey) = (
            self.end.memory.open.to_base(),
            self.end.memory.open.stag().0,
        );
        let sge = |from: u32, len| Sge {
            addr: base + u64::from(from),
            len,
            lkey,
        };
        let cuts = [0, len / 3, len / 2, len];
        let mut sges = Vec::new();
        for place in 0..5u32 {
            if empty & 1 << place != 0 {
                sges.push(sge(0, 0));
            }
            if let Some(&[from, to]) = cuts.get(place as usize..place as usize + 2) {
                sges.push(sge(from, to - from));
            }
        }
        if empty & 32 != 0 {
            sges = vec![sge(0, len)];
        }
        let inline = vec![0x5A; len.min(1024) as usize];
        let (whole, word) = ([sge(0, len)], [sge(0, 8)]);
        let imm = *b"imm data";
        let (to, rkey) = (other.open.to_base(), other.open.stag().0);
        let wr = match kind {
            Kind::Send { inline: true } => SendWr::send_inline(1, &inline),
            Kind::Send { inline: false } => SendWr::send(2, &sges),
            Kind::Write { inline: true } => {
                SendWr::write_inline(3, &inline, RemoteBuffer::at(to, rkey))
            }
            Kind::Write { inline: false } => SendWr::write(4, &sges, RemoteBuffer::at(to, rkey)),
            Kind::Read { several: false } => SendWr::read(5, &whole, RemoteBuffer::at(to, rkey)),
            Kind::Read { several: true } => SendWr::read(5, &sges, RemoteBuffer::at(to, rkey)),
            Kind::Atomic { nth, swap: false } => {
                SendWr::fetch_add(6, &word, RemoteBuffer::at(to + 8 * u64::from(nth), rkey), 1)
            }
            Kind::Atomic { nth, swap: true } => {
                SendWr::swap(7, &word, RemoteBuffer::at(to + 8 * u64::from(nth), rkey), 1)
            }
            Kind::Immediate { solicited: false } => SendWr::immediate(8, imm),
            Kind::Immediate { solicited: true } => SendWr::immediate(9, imm).solicited(),
            Kind::WriteWithImmediate { inline: true } => {
                SendWr::write_with_immediate_inline(10, &inline, RemoteBuffer::at(to, rkey), imm)
            }
            Kind::WriteWithImmediate { inline: false } => {
                SendWr::write_with_immediate(11, &sges, RemoteBuffer::at(to, rkey), imm)
            }
        };
        let wr = if fence { wr.fence() } else { wr };
        // Posting fails if the queue is full or the region was invalidated.
        let _ = self.end.conn.post_send(&wr);
    }

    fn step(&mut self, other: &mut Side, step: &Step, pool: &BufferPool) {
        match *step {
            Step::Post {
                kind,
                size,
                empty,
                fence,
            } => self.post(&other.end.memory, kind, size, empty, fence),
            Step::Emss(emss) => self.end.conn.set_emss(emss),
            Step::Take(limit) => self.take(limit, other),
            Step::Arrive(limit) => {
                let to = self.sent.len().min(self.arrived + limit);
                let bytes = self.sent[self.arrived..to].to_vec();
                self.arrived = to;
                if other.end.conn.wants_bytes() {
                    other.end.deliver(&bytes, pool);
                }
            }
            Step::Revoke => {
                let _ = self
                    .end
                    .memory
                    .table
                    .invalidate(self.end.memory.open.stag());
            }
            Step::Disconnect => {
                self.end.conn.disconnect();
            }
            Step::Garbage => {
                let (came, between) = segments(&other.sent[..other.arrived], other.markers);
                if self.end.conn.wants_bytes() && between && !came.is_empty() {
                    let bytes = [&[0, 14][..], &[0xFF; 18]].concat();
                    self.end.deliver(&bytes, pool);
                }
            }
        }
    }

    /// Checks all sent bytes, and returns their segments.
    #[track_caller]
    fn check(&self) -> Vec<Segment> {
        let (segments, whole) = segments(&self.sent, self.markers);
        // Bytes that the LLP had not taken when the connection was given up are missing.
        assert!(whole || !self.end.conn.wants_bytes());
        if whole && let Err(broken) = check_segments(&segments) {
            let open = broken.contains("no last segment");
            assert!(open && self.end.conn.end.is_some(), "{broken}");
        }
        segments
    }
}

/// Returns two sides that are connected in the client/server or the peer-to-peer model.
fn sides(settings: &[Settings; 2], peer_to_peer: bool) -> (Side, Side, BufferPool) {
    let pool = BufferPool::default();
    let mut client = End::new(&Memory::new(), &settings[0]);
    let mut config = initiator_config(&settings[0]);
    if peer_to_peer {
        config.model = Model::PeerToPeer(RtrKinds::ALL);
    }
    assert!(client.conn.start_initiator(config, true).unwrap());
    client.conn.emss = 536;
    client.conn.tcp_connected();
    let request = client.bytes();
    assert_eq!(startup(&request).len, request.len());
    let mut server = accept(&settings[1], &Memory::new(), &request);
    let reply = server.bytes();
    let frame = startup(&reply);
    check_startup(&frame);
    assert!(
        frame.reply && frame.len == reply.len(),
        "nothing follows the Reply"
    );
    client.deliver(&reply, &pool);
    assert_eq!(client.conn.state, QpState::Rts);
    (Side::new(client, false), Side::new(server, true), pool)
}

/// Runs the steps, and then delivers all bytes. Returns the segments that each side has sent.
fn play(settings: &[Settings; 2], peer_to_peer: bool, steps: &[(bool, Step)]) -> [Vec<Segment>; 2] {
    let (mut client, mut server, pool) = sides(settings, peer_to_peer);
    for (by_client, step) in steps {
        if *by_client {
            client.step(&mut server, step, &pool);
        } else {
            server.step(&mut client, step, &pool);
        }
    }
    // All remaining bytes are sent and delivered.
    loop {
        let before = (client.sent.len(), server.sent.len());
        for step in [Step::Take(1 << 24), Step::Arrive(1 << 24)] {
            client.step(&mut server, &step, &pool);
            server.step(&mut client, &step, &pool);
        }
        if before == (client.sent.len(), server.sent.len()) {
            break;
        }
    }
    [client.check(), server.check()]
}

fn one_settings() -> impl Strategy<Value = Settings> {
    let segments = prop::sample::select(vec![1, 1, 2, 45]).prop_map(FpduSegments::new);
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    (switches, segments).prop_map(|((crc, markers, send_in_place), segments)| Settings {
        crc,
        markers,
        send_in_place,
        fpdu_segments: segments.unwrap_or_default(),
        ..Settings::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn what_is_posted_in_any_order_goes_out_by_the_rules(
        ours in one_settings(),
        theirs in one_settings(),
        peer_to_peer in any::<bool>(),
        steps in steps(),
    ) {
        play(&[ours, theirs], peer_to_peer, &steps);
    }

    #[test]
    fn every_answer_to_a_request_has_a_place_for_what_it_declares(
        revision in 1u8..=2,
        flags in prop::sample::select(vec![0u8, 0x10, 0x40, 0x50, 0x80, 0xD0]),
        words in any::<[u8; 4]>(),
        theirs in prop::collection::vec(any::<u8>(), 0..260),
        private_data in prop::collection::vec(any::<u8>(), 0..520),
        depths in (0u16..0x4000, 0u16..0x4000, prop::option::of(0u16..0x4000)),
        reject in any::<bool>(),
    ) {
        let enhanced = revision == 2 && flags & ENHANCED != 0;
        let mut request = b"MPA ID Req Frame".to_vec();
        let data = if enhanced { [&words[..], &theirs].concat() } else { theirs };
        request.extend([flags, revision]);
        request.extend((data.len() as u16).to_be_bytes());
        request.extend(&data);
        let mut responder = Responder::new(ResponderConfig {
            crc: true,
            markers: false,
            max_revision: Revision::Two,
            max_ird: 128,
            rtr: RtrKinds::ALL,
        }).unwrap();
        let (_, whole) = responder.receive(&request).unwrap();
        prop_assert!(whole.is_some());
        let answer = if reject {
            responder.reject(&private_data, depths.2)
        } else {
            let accept = Accept { ird: depths.0, ord: depths.1, private_data: &private_data };
            responder.accept(accept).map(|(reply, _)| reply)
        };
        // The only reason to refuse is too much private data.
        let Ok(reply) = answer else {
            prop_assert!(private_data.len() > 508);
            return Ok(());
        };
        let frame = startup(&reply);
        check_startup(&frame);
        prop_assert_eq!(frame.len, reply.len());
        prop_assert_eq!(frame.flags & ENHANCED != 0, enhanced);
        prop_assert_eq!(frame.revision, revision);
    }
}

/// Sends empty messages, exact multiples of a segment's capacity and lists with empty elements, in
/// every combination, with and without Markers.
#[test]
fn full_segments_and_empty_elements_make_no_empty_segment() {
    let kinds = [
        Kind::Send { inline: false },
        Kind::Send { inline: true },
        Kind::Write { inline: false },
        Kind::Write { inline: true },
        Kind::Read { several: false },
        Kind::WriteWithImmediate { inline: false },
        Kind::WriteWithImmediate { inline: true },
    ];
    for markers in [false, true] {
        let settings = [false, true].map(|crc| Settings {
            crc,
            markers,
            ..Settings::default()
        });
        for emss in [0, 200, 536] {
            let mut script = vec![(true, Step::Emss(emss)), (false, Step::Emss(emss))];
            let mut posted = 0;
            for kind in kinds {
                for size in [Size::Bytes(0), Size::Bytes(1)]
                    .into_iter()
                    .chain((1..4).map(|full| Size::Segments(full, 0)))
                {
                    let post = Step::Post {
                        kind,
                        size,
                        empty: 0b10101,
                        fence: false,
                    };
                    script.push((true, post.clone()));
                    script.push((false, post));
                    posted += 1;
                }
            }
            for segments in play(&settings, false, &script) {
                let messages = segments.iter().filter(|segment| segment.last).count();
                // All posted messages, the Immediate Data after ten Writes, and the Responses to
                // the other side's five Reads.
                assert_eq!(messages, posted + 10 + 5);
                assert!(
                    segments.len() > messages,
                    "some messages have several segments"
                );
                let empty = segments.iter().filter(|segment| segment.len == 0).count();
                // Two Sends, four Writes, and one empty Response.
                assert_eq!(empty, 7);
                // Immediate Data follows its Write directly.
                for pair in segments.windows(2) {
                    assert!(pair[1].opcode != IMMEDIATE || pair[0].opcode == WRITE);
                }
            }
        }
    }
}
