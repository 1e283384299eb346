//! Two live connections that keep to the rules, with operations of both sides, over a line that the input carries: octets
//! in pieces, late, and with a CRC perhaps damaged. Without damage all completes with the octets of the model. With it, what
//! was reported as a success is right all the same, no octet of memory has a value that nobody wrote there, and everything
//! that was posted completes once.

use uwarp_verbs::{QpState, StreamOptions};

use crate::input::Input;
use crate::live::{self, End, HandClock, Line, Side};

/// At most so many steps in one input.
const MAX_STEPS: usize = 120;

/// Flags (bit 0: CRC, bit 1: Markers of the first side, bit 2: of the second), then steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.flags();
    let (line, ends) = Line::new();
    let mut number = 0;
    let [first, second] = ends.map(|stream| {
        let options = StreamOptions {
            initiator: number == 0,
            crc: flags(0),
            tx_markers: flags(1 + number),
            rx_markers: flags(2 - number),
            ..StreamOptions::default()
        };
        number += 1;
        let clock = HandClock::new();
        let seed = u64::from(number);
        let end = End::new(live::device(&clock, seed), clock, seed);
        end.qp
            .attach_stream(stream, &[], &options)
            .expect("the stream stands");
        end
    });
    let mut ends = [first, second];
    // The second side may not send before an FPDU of the first has come.
    let [first, second] = &mut ends;
    first.post(second, 5, &mut Input::new(&[]));
    let mut damaged = false;
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let (from, side) = if step & 1 == 0 {
            (0, Side::First)
        } else {
            (1, Side::Second)
        };
        match step >> 1 & 7 {
            0 | 1 => {
                line.carry(side, input.u16().into());
            }
            2 if flags(0) => damaged |= line.damage(side, input.u16().into(), input.u8()),
            2 | 3 => ends[from].receive(),
            kind => {
                let [first, second] = &mut ends;
                let (ours, theirs) = if from == 0 {
                    (first, second)
                } else {
                    (second, first)
                };
                ours.post(theirs, kind, &mut input);
            }
        }
        ends.iter_mut().for_each(|end| end.look(damaged));
    }
    rest(&line, &mut ends, damaged);
}

/// All that is under way arrives; then all has to be there.
fn rest(line: &Line, ends: &mut [End; 2], damaged: bool) {
    loop {
        let moved = line.carry(Side::First, usize::MAX) | line.carry(Side::Second, usize::MAX);
        ends.iter_mut().for_each(|end| end.look(damaged));
        if !moved && !line.is_loaded() {
            break;
        }
    }
    for end in ends.iter() {
        if !damaged {
            assert_eq!(end.qp.state(), QpState::Rts, "{:?}", end.qp.end_reason());
            assert!(end.is_done(), "not completed");
        }
        end.memory(damaged);
    }
    line.cut();
    for end in ends.iter_mut() {
        end.look(true);
        assert_eq!(end.qp.state(), QpState::Error);
        end.completed_all();
    }
}
