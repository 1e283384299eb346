//! Queue of frames that wait because the wire is full.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::LlpError;
use crate::smol::{Mailbox, Packet};
use crate::wire::{HEADER, Wire};

/// Number of frames accepted beyond the bound, for senders that do not check for room.
const ANSWERS: usize = 256;

/// Queue that keeps frames in order. It drops no frame below its bound.
///
/// While no frame waits, frames are sent directly on the wire. Otherwise all frames go through the
/// queue until it is empty. One thread at a time empties the queue, and holds no lock while it
/// sends. As a result, two frames that one thread sends in succession reach the wire in that order.
pub(super) struct OutQueue {
    state: Mutex<State>,
    /// Number of frames that wait, plus one while a thread empties the queue.
    waiting: AtomicUsize,
    bound: usize,
}

#[derive(Default)]
struct State {
    frames: VecDeque<([u8; HEADER], Packet)>,
    emptying: bool,
    /// Connections that wait for room, by the address of their inbox.
    held_back: HashMap<usize, Arc<Mailbox>>,
}

/// Result of sending a frame.
pub(super) enum Sent {
    /// The frame is on the wire. Contains the buffer.
    Done(Packet),
    /// The frame waits. [`OutQueue::flush`] has to be called soon.
    Waits,
    /// The queue is full, and the frame was not sent. Contains the buffer.
    Dropped(Packet),
}

impl OutQueue {
    /// Creates a queue. Connections hold packets back once `bound` frames wait.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            state: Mutex::default(),
            waiting: AtomicUsize::new(0),
            bound,
        }
    }

    /// Sends a frame, or queues it if other frames wait.
    pub(super) fn send(
        &self,
        wire: &dyn Wire,
        header: &[u8; HEADER],
        packet: Packet,
    ) -> Result<Sent, LlpError> {
        if !self.is_busy() && wire.send_with(header, packet.bytes(), packet.offload)? {
            return Ok(Sent::Done(packet));
        }
        Ok(match self.push(*header, packet) {
            None => Sent::Waits,
            Some(packet) => Sent::Dropped(packet),
        })
    }

    /// Queues a frame. Returns the packet if the queue is full.
    pub(super) fn push(&self, header: [u8; HEADER], packet: Packet) -> Option<Packet> {
        let mut state = self.state.lock();
        if state.frames.len() >= self.bound + ANSWERS {
            return Some(packet);
        }
        state.frames.push_back((header, packet));
        self.count(&state);
        None
    }

    /// Returns true if frames wait or are being sent from the queue.
    pub(super) fn is_busy(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Returns true if a connection has to hold its packets back. In that case, the signal of
    /// `sender` is raised once there is room.
    pub(super) fn subscribe_if_full(&self, sender: &Arc<Mailbox>) -> bool {
        if self.waiting.load(Ordering::Acquire) < self.bound {
            return false;
        }
        let mut state = self.state.lock();
        let full = state.frames.len() >= self.bound;
        if full {
            let key = Arc::as_ptr(sender).addr();
            state.held_back.insert(key, Arc::clone(sender));
        }
        full
    }

    /// Sends queued frames until the wire accepts no more, and passes each sent frame to `sent`.
    /// Returns true if the queue is empty, or if another thread is emptying it.
    pub(super) fn flush(
        &self,
        wire: &dyn Wire,
        mut sent: impl FnMut(&[u8; HEADER], Packet),
    ) -> Result<bool, LlpError> {
        if !self.is_busy() {
            return Ok(true);
        }
        let mut state = self.state.lock();
        if state.emptying {
            return Ok(true);
        }
        state.emptying = true;
        let mut result = Ok(true);
        while let Some((header, packet)) = state.frames.pop_front() {
            self.count(&state);
            drop(state);
            let taken = wire.send_with(&header, packet.bytes(), packet.offload);
            if taken.is_ok_and(|taken| taken) {
                sent(&header, packet);
                state = self.state.lock();
                continue;
            }
            state = self.state.lock();
            state.frames.push_front((header, packet));
            result = taken;
            break;
        }
        state.emptying = false;
        self.count(&state);
        let room = state.frames.len() <= self.bound / 2;
        let held_back = if room {
            std::mem::take(&mut state.held_back)
        } else {
            HashMap::new()
        };
        drop(state);
        for sender in held_back.values() {
            sender.signal.raise();
        }
        result
    }

    fn count(&self, state: &State) {
        let waiting = state.frames.len() + usize::from(state.emptying);
        self.waiting.store(waiting, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{MemoryWire, Received};

    fn numbered(number: u8) -> Packet {
        let mut packet = Packet::new(1);
        packet.resize(1).fill(number);
        packet
    }

    fn wires(capacity: usize) -> (MemoryWire, MemoryWire) {
        MemoryWire::pair([[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]], 1500, capacity).unwrap()
    }

    fn received(wire: &MemoryWire) -> Option<u8> {
        let mut packet = Packet::new(1);
        match wire.recv(&mut [0; HEADER], &mut packet).unwrap() {
            Received::Nothing => None,
            _ => Some(packet.bytes()[0]),
        }
    }

    #[test]
    fn frames_that_wait_keep_their_order_and_none_is_lost() {
        let (wire, far) = wires(2);
        let queue = OutQueue::new(100);
        for number in 0..50 {
            assert!(!matches!(
                queue.send(&wire, &[0; HEADER], numbered(number)).unwrap(),
                Sent::Dropped(_)
            ));
        }
        for number in 0..50 {
            assert_eq!(received(&far), Some(number));
            let all = queue.flush(&wire, |_, _| ()).unwrap();
            assert_eq!(all, !queue.is_busy());
        }
        assert!(!queue.is_busy());
        assert_eq!(received(&far), None);
    }

    #[test]
    fn senders_hold_back_at_the_bound_and_are_told_when_half_of_it_is_free() {
        let (wire, far) = wires(1);
        let queue = OutQueue::new(4);
        let sender = Arc::new(Mailbox::alone().unwrap());
        for number in 0..5 {
            assert!(!queue.subscribe_if_full(&sender), "{number}");
            let _ = queue.send(&wire, &[0; HEADER], numbered(number)).unwrap();
        }
        assert!(queue.subscribe_if_full(&sender));
        for _ in 0..2 {
            assert!(!sender.signal.is_raised());
            assert!(received(&far).is_some());
            assert!(!queue.flush(&wire, |_, _| ()).unwrap());
        }
        assert!(sender.signal.is_raised());
        assert!(!queue.subscribe_if_full(&sender));
    }

    #[test]
    fn beyond_what_answers_may_take_frames_are_given_back() {
        let (wire, _far) = wires(1);
        let queue = OutQueue::new(1);
        let mut dropped = 0;
        for _ in 0..2 * ANSWERS {
            let sent = queue.send(&wire, &[0; HEADER], numbered(0)).unwrap();
            dropped += usize::from(matches!(sent, Sent::Dropped(_)));
        }
        assert_eq!(dropped, 2 * ANSWERS - (1 + 1 + ANSWERS));
    }
}
