//! Placement of data from the peer. Writes, Sends and Read Responses target the edges of regions,
//! receive buffers and Read sinks. After every step all memory must equal the model's, including
//! the guard bytes around each buffer.

use uwarp_oracle::Tagged;

use crate::craft;
use crate::input::Input;
use crate::model::memory::regions;
use crate::play::Play;

/// Maximum number of steps in one input.
const MAX_STEPS: usize = 64;

/// Runs the steps of the input. Five of eight steps deliver a crafted segment.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut play = Play::new(2, 16);
    let regions = regions();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0 => play.post(input.u16() % 300),
            1 => play.send(10, input.u32(), input.u64(), u32::from(input.u16()), 1500),
            2 => write(&mut input, &mut play),
            _ => {
                let ulpdu = craft::ulpdu(&mut input, play.judge(), &regions);
                play.receive(&ulpdu);
            }
        }
        play.check();
    }
}

/// Delivers a Write to a region or to STag 7, with an arbitrary TO and length.
fn write(input: &mut Input<'_>, play: &mut Play) {
    let all = regions();
    let stag = all
        .get(input.choice(all.len() + 1))
        .map_or(7, |region| region.stag);
    let to = input.u64();
    let ulpdu = Tagged::write(stag, to).with(input.slice(2100));
    play.receive(&ulpdu);
}
