//! A program that calls the verbs in any order, from any state, with any arguments, on a device that reaches itself over TCP
//! in memory. What is refused is refused for the reason that is given; a work request that was taken completes once, in
//! order, in the queue and with the number that it has to; what is in use is not destroyed; bytes outside of registered
//! memory, and of memory that nobody may write, stay as they are; and in the end nothing is left.

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

/// At most so many calls in one input.
const MAX_STEPS: usize = 160;

/// Calls: which, whether everything that it leads to happens before the next one (bit 5), and its arguments. In the end
/// the order in which everything is dropped.
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

    /// A domain, a CQ, two QPs and a connection of them; a region of all rights.
    fn begin(&mut self, input: &mut Input<'_>) {
        if self.pds.is_empty() {
            self.alloc_pd();
        }
        if self.cqs.is_empty() {
            self.create_cq(&mut Input::new(&[]));
        }
        let before = self.queues.len();
        // With the SRQ, if there is one.
        let choices = [0, 0, 0, input.u8()];
        self.create_qp(&mut Input::new(&choices));
        self.create_qp(&mut Input::new(&choices));
        // All rights, at its own address.
        self.register(&mut Input::new(&[0, 15, 2, 0, 31, 0]));
        if self.queues.len() == before + 2 {
            self.join(before, before + 1);
        }
    }
}
