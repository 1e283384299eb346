//! Property test: Sends of one segment have the same effects on the fast path as on the general
//! path.
//!
//! Sends whose receive comes from an SRQ take the general path.

use super::*;
use crate::mem::RemoteBuffer;

/// A client and a server, with the SRQ of the server if it has one.
struct Side {
    client: End,
    server: End,
    pool: BufferPool,
    srq: Option<Arc<SrqInner>>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Lets the server post a receive.
    Receive,
    /// Lets the client send this many bytes.
    Send {
        len: u32,
        solicited: bool,
    },
    Write {
        len: u32,
    },
    /// Invalidates the memory of the receives.
    Revoke,
    /// Delivers at most this many of the sent bytes.
    Arrive(usize),
}

impl Side {
    fn new(settings: &Settings, shared: bool) -> Side {
        let (client, mut server, pool) = connected(settings, &Memory::new());
        let pattern: Vec<u8> = (0..PAGE).map(|n| (n as u8).wrapping_mul(3)).collect();
        client.memory.open.write_at(0, &pattern).unwrap();
        let srq = shared.then(|| server.share(64));
        Side {
            client,
            server,
            pool,
            srq,
        }
    }

    /// Runs a step. `way`: bytes that were sent and not yet delivered.
    fn step(&mut self, step: Step, posted: u64, way: &mut Vec<u8>) {
        let (region, sges) = (&self.server.memory.open, self.client.source(0));
        let (to, rkey) = (region.to_base(), region.stag().0);
        let sges = |len| [Sge { len, ..sges[0] }];
        match step {
            Step::Receive => {
                let sges = self.server.memory.receive(posted % 16);
                let wr = RecvWr::new(posted, &sges);
                // Posting fails once the memory is invalidated.
                let _ = match &self.srq {
                    Some(srq) => srq.post(&[wr]).is_ok(),
                    None => self.server.conn.post_recv(&wr).is_ok(),
                };
            }
            Step::Send { len, solicited } => {
                let sges = sges(len);
                let wr = SendWr::send(1, &sges);
                let wr = if solicited { wr.solicited() } else { wr };
                let _ = self.client.conn.post_send(&wr);
            }
            Step::Write { len } => {
                let _ = (self.client.conn).post_send(&SendWr::write(
                    2,
                    &sges(len),
                    RemoteBuffer::at(to, rkey),
                ));
            }
            Step::Revoke => {
                let memory = &self.server.memory;
                let _ = memory.table.invalidate(memory.receives.stag());
            }
            Step::Arrive(bytes) => {
                let rest = way.split_off(bytes.min(way.len()));
                self.server.deliver(way, &self.pool);
                *way = rest;
            }
        }
        way.extend(self.client.bytes());
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![8 => 1u32..=256, 1 => Just(0), 1 => 256u32..700];
    let step = prop_oneof![
        6 => Just(Step::Receive),
        6 => (len, any::<bool>()).prop_map(|(len, solicited)| Step::Send { len, solicited }),
        1 => (1u32..300).prop_map(|len| Step::Write { len }),
        6 => (1usize..2000).prop_map(Step::Arrive),
    ];
    (
        prop::collection::vec(step, 1..60),
        prop::option::weighted(0.2, 0usize..60),
    )
        .prop_map(|(mut steps, revoked)| {
            if let Some(at) = revoked {
                steps.insert(at.min(steps.len()), Step::Revoke);
            }
            steps
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 384 }))]

    #[test]
    fn whole_sends_are_placed_complete_and_fail_as_by_the_general_path(
        crc in any::<bool>(),
        markers in prop::bool::weighted(0.1),
        emss in prop::sample::select(vec![1460, 1460, 536, 200]),
        steps in steps(),
    ) {
        let settings = Settings { crc, markers, ..Settings::default() };
        let mut sides = [false, true].map(|shared| Side::new(&settings, shared));
        let mut ways = [Vec::new(), Vec::new()];
        let mut posted = 0;
        for side in &mut sides {
            side.client.conn.set_emss(emss);
        }
        for step in steps.iter().chain(&[Step::Arrive(1 << 20)]) {
            for (side, way) in sides.iter_mut().zip(&mut ways) {
                side.step(*step, posted, way);
            }
            posted += u64::from(matches!(step, Step::Receive));
            let [own, shared] = &sides;
            let outcomes = |side: &Side| -> Vec<_> {
                let completions = side.server.completions().into_iter();
                // Flushed receives are not compared, because an SRQ keeps its receives.
                let done = completions.filter(|completion| completion.status != Status::WrFlush);
                let rest = |it: &Completion| (it.opcode, it.written, it.immediate, it.invalidated);
                done.map(|it| (it.wr_id, it.status, it.byte_len, it.solicited, rest(&it))).collect()
            };
            prop_assert_eq!(outcomes(own), outcomes(shared));
            prop_assert_eq!(own.server.conn.state, shared.server.conn.state);
            let [own, shared] = [own, shared].map(|side| {
                let mut bytes = vec![0; 5 * PAGE];
                side.server.memory.buffer.read_at(0, &mut bytes).unwrap();
                // STags and times differ between the two sides.
                let record = side.server.conn.flight_record();
                let frames = record.frames().iter().map(|frame| {
                    let control = frame.head().get(..2).map(<[u8]>::to_vec);
                    (frame.direction(), frame.bytes(), frame.head().len(), control)
                });
                (bytes, frames.collect::<Vec<_>>())
            });
            prop_assert_eq!(own, shared);
        }
    }
}

#[test]
fn a_whole_send_is_taken_the_short_way_and_one_without_bytes_is_not() {
    let short = |len: u32| {
        let mut side = Side::new(&Settings::default(), false);
        let mut way = Vec::new();
        let solicited = false;
        // The first FPDU of a stream takes the general path.
        for _ in 0..2 {
            for step in [Step::Receive, Step::Send { len, solicited }] {
                side.step(step, 0, &mut way);
            }
            side.step(Step::Arrive(1 << 20), 0, &mut way);
            assert_eq!(side.server.completions().len(), 1);
        }
        side.server.conn.fast_sends
    };
    assert_eq!(short(200), 1);
    assert_eq!(short(0), 0);
}

#[test]
fn a_short_way_needs_a_receive_that_is_long_enough() {
    let taken = |bytes: u32, receive: bool| {
        let (_, mut server, _) = connected(&Settings::default(), &Memory::new());
        if receive {
            server.post_receives(1);
        }
        server.conn.rq.take_for(bytes)
    };
    assert!(taken(256, true));
    assert!(!taken(257, true));
    assert!(!taken(1, false));
}
