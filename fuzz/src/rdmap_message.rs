//! One RDMAP stream receives valid, nearly valid and arbitrary ULPDUs. Between them, the stream
//! sends messages.
//!
//! * The stream handles each ULPDU as the model does, with the same error code.
//! * The segments that it sends have the bytes in the figures of the RFCs.
//! * Every error has its Terminate Message.
//! * After each step, memory equals the model's.

use crate::craft;
use crate::input::Input;
use crate::model::memory::regions;
use crate::play::Play;

/// Maximum number of steps in one input.
const MAX_STEPS: usize = 96;

/// Runs one input: IRD and ORD, then steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut play = Play::new((input.u8() % 5).into(), (input.u8() % 5).into());
    let regions = regions();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 32 {
            0..=3 => play.receive(input.slice(4096)),
            4..=15 => {
                let ulpdu = craft::ulpdu(&mut input, play.judge(), &regions);
                play.receive(&ulpdu);
            }
            16..=18 => play.post(input.u16() % 3000),
            19..=21 => play.take(),
            22..=24 => play.answer(input.u64(), usize::from(input.u16())),
            25..=30 => {
                let kind = input.u8();
                let (stag, to) = (input.u32(), input.u64());
                // At least 128, so that a segment has room for payload.
                let mulpdu = usize::from(input.u16()).max(128);
                play.send(kind, stag, to, input.u32(), mulpdu);
            }
            _ => play.close(input.flags()(0)),
        }
        play.check();
    }
}
