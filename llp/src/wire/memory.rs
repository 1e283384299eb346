//! An in-memory cable between two hosts of one process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;

use super::{HEADER, Received, Wire};
use crate::LlpError;
use crate::smol::{Packet, PacketOffload};

/// One end of an in-memory cable. It loses no frame: if the queue to the other end is full,
/// `send_with` returns false. Frames to an end that was dropped are discarded.
pub(crate) struct MemoryWire {
    own: Arc<Queue>,
    other: Arc<Queue>,
    mac: [u8; 6],
    mtu: usize,
}

/// Frames to one end of the cable, and a descriptor that is readable while there are any.
struct Queue {
    state: Mutex<State>,
    readable: OwnedFd,
    capacity: usize,
}

struct State {
    frames: VecDeque<Frame>,
    /// Unused buffers of frames that were received.
    spare: Vec<Frame>,
    stage: Stage,
}

struct Frame {
    header: [u8; HEADER],
    packet: Packet,
    from: Received,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Plugged,
    /// The end that receives from this queue was dropped.
    Dropped,
    /// The cable was unplugged. Both ends return an error.
    Unplugged,
}

/// Error of all calls after the cable was unplugged.
const UNPLUGGED: LlpError = LlpError::LinkDown {
    why: "the cable was unplugged",
    errno: 0,
};

impl Queue {
    fn new(capacity: usize) -> Result<Self, LlpError> {
        let readable = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| LlpError::from_local_errno("make an eventfd", errno))?;
        Ok(Self {
            state: Mutex::new(State {
                frames: VecDeque::new(),
                spare: Vec::new(),
                stage: Stage::Plugged,
            }),
            readable,
            capacity,
        })
    }

    fn push(&self, header: &[u8; HEADER], bytes: &[u8], from: Received) -> Result<bool, LlpError> {
        let mut state = self.state.lock();
        match state.stage {
            Stage::Plugged => {}
            Stage::Dropped => return Ok(true),
            Stage::Unplugged => return Err(UNPLUGGED),
        }
        if state.frames.len() >= self.capacity {
            return Ok(false);
        }
        let mut frame = state.spare.pop().unwrap_or_else(|| Frame {
            header: [0; HEADER],
            packet: Packet::new(bytes.len()),
            from,
        });
        frame.header = *header;
        frame.from = from;
        frame.packet.resize(bytes.len()).copy_from_slice(bytes);
        state.frames.push_back(frame);
        if state.frames.len() == 1 {
            self.raise();
        }
        Ok(true)
    }

    fn take(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        let mut state = self.state.lock();
        if state.stage == Stage::Unplugged {
            return Err(UNPLUGGED);
        }
        let Some(mut frame) = state.frames.pop_front() else {
            return Ok(Received::Nothing);
        };
        if state.frames.is_empty() {
            let _ = rustix::io::read(&self.readable, &mut [0; 8]);
        }
        *header = frame.header;
        std::mem::swap(packet, &mut frame.packet);
        let from = frame.from;
        state.spare.push(frame);
        Ok(from)
    }

    fn raise(&self) {
        let _ = rustix::io::write(&self.readable, &1u64.to_ne_bytes());
    }

    /// Ends the queue in the given stage. After `Unplugged`, the descriptor stays readable, because
    /// `recv` returns an error.
    fn end(&self, stage: Stage) {
        let mut state = self.state.lock();
        if state.stage != Stage::Unplugged {
            state.stage = stage;
        }
        if stage == Stage::Unplugged {
            self.raise();
        }
    }
}

impl MemoryWire {
    /// Creates the two ends of a cable that holds up to `capacity` frames in each direction.
    pub(crate) fn pair(
        macs: [[u8; 6]; 2],
        mtu: usize,
        capacity: usize,
    ) -> Result<(Self, Self), LlpError> {
        let queues = [
            Arc::new(Queue::new(capacity)?),
            Arc::new(Queue::new(capacity)?),
        ];
        let end = |own: usize, mac| Self {
            own: Arc::clone(&queues[own]),
            other: Arc::clone(&queues[1 - own]),
            mac,
            mtu,
        };
        Ok((end(0, macs[0]), end(1, macs[1])))
    }

    /// Returns a function that unplugs the cable.
    pub(crate) fn plug(&self) -> impl Fn() + Send + Sync + 'static {
        let ends = [Arc::clone(&self.own), Arc::clone(&self.other)];
        move || {
            for end in &ends {
                end.end(Stage::Unplugged);
            }
        }
    }

    /// Sends a frame that the other end receives as a frame from its own kernel.
    #[cfg(test)]
    pub(crate) fn send_as_kernel(&self, header: &[u8; HEADER], packet: &[u8]) {
        self.other
            .push(header, packet, Received::FromOwnKernel)
            .unwrap();
    }
}

impl Wire for MemoryWire {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        _: PacketOffload,
    ) -> Result<bool, LlpError> {
        self.other.push(header, packet, Received::Frame)
    }

    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        self.own.take(header, packet)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.own.readable.as_fd()
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn describe(&self) -> String {
        "a cable in memory".to_owned()
    }
}

impl Drop for MemoryWire {
    fn drop(&mut self) {
        self.own.end(Stage::Dropped);
    }
}
