//! One stream: ULPDUs arrive, right ones, nearly right ones and any bytes, between messages of our own. What the stream
//! makes of each is what the model makes of it, code for code; our own segments have the bytes of the RFCs' figures; every
//! error has its Terminate Message; memory is that of the model.

use crate::craft;
use crate::input::Input;
use crate::model::memory::regions;
use crate::play::Play;

/// At most so many steps in one input.
const MAX_STEPS: usize = 96;

/// IRD and ORD, then steps.
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
                // A segment has place for payload.
                let mulpdu = usize::from(input.u16()).max(128);
                play.send(kind, stag, to, input.u32(), mulpdu);
            }
            _ => play.close(input.flags()(0)),
        }
        play.check();
    }
}
