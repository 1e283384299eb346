//! Two live ends of one connection that obey the protocol, with operations from both sides. The
//! input drives the relay between them. The relay delivers bytes in pieces or late, holds one
//! direction, damages bytes if there is a CRC, or cuts a direction in the middle. Either end may
//! close or abort at any time.
//!
//! Without damage, all work requests complete with the bytes of the model. With damage or an early
//! end:
//!
//! * Each completion with success is still correct. Memory holds only its initial bytes and bytes
//!   that were written there.
//! * Within a bounded time, either everything has completed and memory equals the model's, or both
//!   ends are in Error and have a reason.
//!
//! Every posted work request completes exactly once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_verbs::llp::smol::{Clock, ManualClock};
use uwarp_verbs::{QpModify, QpState, StreamOptions};

use crate::input::Input;
use crate::live::{self, End, Line, Side};

/// Maximum number of steps in one input.
const MAX_STEPS: usize = 120;
/// After this much virtual time the connection may end by a timeout (`Timeouts::stalled` is 120 s),
/// so completion is no longer required.
const PATIENCE: Duration = Duration::from_secs(100);
/// Virtual time after the last step within which the connection must complete or end: 2 x
/// `Timeouts::stalled`, plus time to close.
const BOUND: Duration = Duration::from_secs(300);

/// Expected outcome of the connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// All work requests complete and the connection stays in RTS.
    Completes,
    /// Either all work requests complete, or the connection ends.
    MayEnd,
    /// The connection ends, and both ends detect it.
    Ends,
}

struct Pair {
    line: Line,
    ends: [End; 2],
    clock: Arc<ManualClock>,
    begun: Instant,
    fate: Fate,
}

/// Runs one input: flags (bit 0: CRC, bit 1: the first side sends Markers, bit 2: the second side
/// sends Markers), then steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.flags();
    let mut pair = Pair::new(flags(0), [flags(1), flags(2)]);
    // The second side may not send before it has received an FPDU from the first.
    pair.post(0, 5, &mut Input::new(&[]));
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let from = usize::from(step & 1);
        match (step >> 4, step >> 1 & 7) {
            (15, fault) => pair.fault(from, fault, &mut input),
            (_, 0 | 1) => {
                pair.line.carry(side(from), input.u16().into());
            }
            (_, 2) if flags(0) => {
                if pair.line.damage(side(from), input.u16().into(), input.u8()) {
                    pair.at_least(Fate::MayEnd);
                }
            }
            (_, 2 | 3) => pair.ends[from].receive(),
            (_, kind) => pair.post(from, kind, &mut input),
        }
        pair.look();
    }
    pair.rest();
}

const fn side(number: usize) -> Side {
    if number == 0 {
        Side::First
    } else {
        Side::Second
    }
}

impl Pair {
    fn new(crc: bool, markers: [bool; 2]) -> Self {
        let clock = Arc::new(ManualClock::new());
        let (line, streams) = Line::new();
        let mut number = 0;
        let ends = streams.map(|stream| {
            let options = StreamOptions::default()
                .initiator(number == 0)
                .crc(crc)
                .tx_markers(markers[number])
                .rx_markers(markers[1 - number]);
            number += 1;
            let seed = number as u64;
            let end = End::new(live::device(&clock, seed), Arc::clone(&clock), seed);
            end.qp
                .attach_stream(stream, &[], &options)
                .expect("the stream is connected");
            end
        });
        Self {
            line,
            ends,
            begun: clock.now(),
            clock,
            fate: Fate::Completes,
        }
    }

    fn at_least(&mut self, fate: Fate) {
        self.fate = self.fate.max(fate);
    }

    fn post(&mut self, from: usize, kind: u8, input: &mut Input<'_>) {
        let [first, second] = &mut self.ends;
        let (ours, theirs) = if from == 0 {
            (first, second)
        } else {
            (second, first)
        };
        ours.post(theirs, kind, input);
    }

    /// Injects a fault, ends the connection from one side, holds a direction or advances the clock.
    fn fault(&mut self, from: usize, fault: u8, input: &mut Input<'_>) {
        let qp = &self.ends[from].qp;
        match fault {
            // The rest of the bytes in flight never arrives.
            0 => self.line.end(side(from), input.u16().into()),
            1 => self.line.end(side(from), usize::MAX),
            2 => self.line.cut(),
            3 => qp.disconnect(),
            4 => qp.abort(),
            5 => {
                let over = QpModify::new().state(QpState::Terminate);
                // Returns an error unless the QP is in RTS.
                let _ = qp.modify(&over);
            }
            6 => return self.line.hold(side(from), input.u8() & 1 == 1),
            _ => {
                self.clock
                    .advance(Duration::from_millis(u64::from(input.u8()) * 250));
                if self.clock.now() - self.begun >= PATIENCE {
                    self.at_least(Fate::MayEnd);
                }
                return;
            }
        }
        self.at_least(Fate::Ends);
    }

    /// Runs both devices at the current time and checks their completions. Returns the time of
    /// their next timer.
    fn look(&mut self) -> Option<Instant> {
        let failing = self.fate > Fate::Completes;
        let due = self.ends.each_mut().map(|end| end.look(failing));
        due.into_iter().flatten().min()
    }

    /// Delivers all bytes in flight until nothing more happens. Advances the clock only if the
    /// connection may end. Then checks that all work completed or that both ends are in Error.
    fn rest(mut self) {
        self.line.hold(Side::First, false);
        self.line.hold(Side::Second, false);
        let until = self.clock.now() + BOUND;
        loop {
            let moved = [Side::First, Side::Second].map(|side| self.line.carry(side, usize::MAX));
            // Twice, because the first end must also process a reset sent by the second.
            self.look();
            let due = self.look();
            if moved.contains(&true) || self.line.is_loaded() {
                continue;
            }
            match due.filter(|due| *due <= until) {
                Some(due) if self.fate > Fate::Completes => self.clock.set(due),
                _ => break,
            }
        }
        let ended = self.ends.each_ref().map(End::has_ended);
        match (self.fate, ended) {
            (Fate::MayEnd | Fate::Ends, [true, true]) => {
                self.ends.iter().for_each(|end| end.memory(true));
            }
            (Fate::Completes | Fate::MayEnd, [false, false]) => {
                for end in &self.ends {
                    assert_eq!(end.qp.state(), QpState::Rts);
                    assert!(end.is_done(), "not completed");
                    end.memory(false);
                }
            }
            _ => {
                let states = self
                    .ends
                    .each_ref()
                    .map(|end| (end.qp.state(), end.qp.end_reason()));
                panic!("neither completed nor ended: {states:?}");
            }
        }
        self.line.cut();
        self.at_least(Fate::Ends);
        self.look();
        for end in &self.ends {
            assert!(end.has_ended());
            end.completed_all();
        }
    }
}
