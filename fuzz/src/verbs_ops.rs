//! A program that calls the verbs in any order, in any state and with any arguments. Its device
//! connects to itself over TCP in memory.
//!
//! * The error of a refused call is justified.
//! * An accepted work request completes once, in order, in its own queue and with its own number.
//! * Objects in use are not destroyed.
//! * Bytes outside registered memory, or without write access, do not change.
//! * At the end no object is left.

mod change;
mod cm;
mod destroy;
mod make;
mod memory;
mod post;
mod work;
mod world;

use uwarp_verbs::QpState;

use crate::input::Input;
use world::World;

/// Maximum number of calls in one input.
const MAX_STEPS: usize = 160;

/// Runs the calls of one input. A byte holds the call's number and a flag (bit 5) to let all of its
/// effects happen before the next call. The arguments follow. The rest of the input is the order in
/// which everything is dropped.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        world.step(step & 31, &mut input);
        if step & 0x20 != 0 {
            world.progress(false);
        }
    }
    world.end(&mut input);
}

impl World {
    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        self.dropped |= matches!(step, 6..=11 | 26 | 27);
        match step {
            0 => self.alloc_pd(),
            1 => self.create_cq(input),
            2 => self.create_qp(input),
            3 => self.create_srq(input),
            4 | 31 => self.register(input),
            5 => self.alloc_window(input),
            6 => {
                let at = input.choice(self.memory.regions.len());
                if at < self.memory.regions.len() {
                    let sends = self
                        .queues
                        .iter()
                        .any(|queue| queue.qp.state() != QpState::Idle);
                    self.memory.deregister(at, input.u8() & 3 == 0, sends);
                }
            }
            7 => {
                let at = input.choice(self.memory.windows.len());
                if at < self.memory.windows.len() {
                    self.memory.windows.swap_remove(at);
                }
            }
            8 => self.destroy_qp(input),
            9 => self.destroy_cq(input),
            10 => self.destroy_srq(input),
            11 => {
                let at = input.choice(self.pds.len());
                if at < self.pds.len() {
                    self.pds.swap_remove(at);
                }
            }
            12..=14 => self.receive(input),
            15..=19 => self.send(input),
            20 => self.bind(input),
            21 | 22 => {
                let at = input.choice(self.cqs.len());
                self.poll(at);
            }
            23 => {
                self.progress(true);
            }
            24 => self.modify(input),
            25 => self.query(input),
            26 | 27 => self.cm(input),
            28 => {
                self.told(input.u8() & 7 == 0);
            }
            29 => self.event(input.u8() & 7 == 0),
            _ => self.more(input),
        }
    }

    /// Creates two connected QPs and a region with all rights. Creates a domain and a CQ first if
    /// there are none.
    fn begin(&mut self, input: &mut Input<'_>) {
        if self.pds.is_empty() {
            self.alloc_pd();
        }
        if self.cqs.is_empty() {
            self.create_cq(&mut Input::new(&[]));
        }
        let before = self.queues.len();
        // The QPs use an SRQ if the input chooses one.
        let choices = [0, 0, 0, input.u8()];
        self.create_qp(&mut Input::new(&choices));
        self.create_qp(&mut Input::new(&choices));
        // A region of 512 bytes with all rights, at the address of its buffer.
        self.register(&mut Input::new(&[0, 15, 2, 0, 31, 0]));
        if self.queues.len() == before + 2 {
            self.join(before, before + 1);
        }
    }
}
