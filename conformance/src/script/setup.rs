//! Setup of a connection, and requests to the application on the target.

use super::frame_changes::FrameChanges;
use super::value::{Data, Name};
use crate::wire::startup::StartupFrame;

/// Reaction of the application to a connection request from the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accept,
    /// Rejects the request with this Private Data.
    Reject(Vec<u8>),
    /// Does not answer, because no request is expected to reach the application.
    Never,
    /// The agent accepts any request by itself. No request is required.
    Auto,
}

/// An RTR indication (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rtr {
    Send,
    Write,
    Read,
}

/// Setup of a connection, for the suite and for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Receives that the application posts before it connects or accepts: their number, and the
    /// size of each in bytes.
    pub(crate) receives: (u32, usize),
    /// Number of the protection domain that the application uses.
    pub(crate) pd: u32,
    /// Number of Reads and Atomics that the suite may have outstanding. For the application these
    /// are its responder resources.
    pub(crate) ird: u16,
    /// Number of Reads and Atomics that the application may have outstanding (its initiator depth).
    pub(crate) ord: u16,
    /// Private Data that the application sends.
    pub(crate) private_data: Vec<u8>,
    pub(crate) answer: Answer,
    /// Request or Reply of the suite; `None` for the configured one.
    pub(crate) frame: Option<StartupFrame>,
    /// Changes to the startup frame of the suite.
    pub(crate) frame_changes: FrameChanges,
    /// C bit of the suite; `None` for the configured one.
    pub(crate) crc: Option<bool>,
    /// M bit of the suite, which makes the target send Markers; `None` for the configured one.
    pub(crate) markers: Option<bool>,
    /// The suite sends a zero-length RDMA Write right after startup. A Responder may send only
    /// after it has received an FPDU.
    pub(crate) nudge: bool,
    /// MSS that the suite announces; `None` for the MSS of the path.
    pub(crate) mss: Option<u16>,
    /// The application, as Initiator, asks for the peer-to-peer model.
    pub(crate) peer_to_peer: bool,
    /// Number of connections that the suite opens and ends without a Request before it opens the
    /// connection of the case.
    pub(crate) aborted: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            receives: (8, 4096),
            pd: 0,
            ird: 16,
            ord: 16,
            private_data: Vec::new(),
            answer: Answer::Accept,
            frame: None,
            frame_changes: FrameChanges::default(),
            crc: None,
            markers: None,
            nudge: true,
            mss: None,
            peer_to_peer: false,
            aborted: 0,
        }
    }
}

impl Setup {
    /// Returns true if the setup needs an agent, because an ordinary server does not do what the
    /// setup asks for.
    pub(crate) fn needs_agent(&self) -> bool {
        let plain = Setup::default();
        self.receives != plain.receives
            || self.pd != plain.pd
            || (self.ird, self.ord) != (plain.ird, plain.ord)
            || !self.private_data.is_empty()
            || matches!(self.answer, Answer::Reject(_))
            || self.peer_to_peer
    }

    pub(crate) fn receives(mut self, count: u32, len: usize) -> Self {
        self.receives = (count, len);
        self
    }

    pub(crate) fn pd(mut self, pd: u32) -> Self {
        self.pd = pd;
        self
    }

    pub(crate) fn depths(mut self, ird: u16, ord: u16) -> Self {
        (self.ird, self.ord) = (ird, ord);
        self
    }

    pub(crate) fn private_data(mut self, bytes: &[u8]) -> Self {
        self.private_data = bytes.to_vec();
        self
    }

    pub(crate) fn reject(mut self, bytes: &[u8]) -> Self {
        self.answer = Answer::Reject(bytes.to_vec());
        self
    }

    pub(crate) fn never_answers(mut self) -> Self {
        self.answer = Answer::Never;
        self
    }

    /// Replaces the startup frame of the suite.
    pub(crate) fn frame(mut self, frame: StartupFrame) -> Self {
        self.frame = Some(frame);
        self
    }

    /// Makes the agent accept any request by itself. No request is required.
    pub(crate) fn auto(mut self) -> Self {
        self.answer = Answer::Auto;
        self
    }

    /// Changes single fields of the startup frame of the suite.
    pub(crate) fn frame_changes(mut self, frame_changes: FrameChanges) -> Self {
        self.frame_changes = frame_changes;
        self
    }

    pub(crate) fn crc(mut self, crc: bool) -> Self {
        self.crc = Some(crc);
        self
    }

    pub(crate) fn markers(mut self, markers: bool) -> Self {
        self.markers = Some(markers);
        self
    }

    pub(crate) fn no_nudge(mut self) -> Self {
        self.nudge = false;
        self
    }

    pub(crate) fn mss(mut self, mss: u16) -> Self {
        self.mss = Some(mss);
        self
    }

    pub(crate) fn peer_to_peer(mut self) -> Self {
        self.peer_to_peer = true;
        self
    }

    /// Makes the suite first open and end this many connections to the same listener, without a
    /// Request.
    pub(crate) fn aborted(mut self, aborted: u32) -> Self {
        self.aborted = aborted;
        self
    }
}

/// Initial content of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Zero,
    /// Pattern with this seed.
    Pattern(u64),
}

/// Memory region that the application registers, and whose STag and address it gives to the suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) name: Name,
    pub(crate) len: usize,
    /// Access rights, as any of `lw`, `rw`, `rr` and `ra`, separated by commas.
    pub(crate) access: &'static str,
    pub(crate) fill: Fill,
    pub(crate) pd: u32,
    /// Only the connection that is in use at registration can access the region.
    pub(crate) scoped: bool,
    /// TOs begin at 0 instead of the virtual address.
    pub(crate) zero_based: bool,
    /// Offset of the first byte from the beginning of a page.
    pub(crate) skew: usize,
}

impl Region {
    /// Describes a region of zeros that peers may write.
    pub(crate) fn writable(name: Name, len: usize) -> Self {
        Region {
            name,
            len,
            access: "lw,rw",
            fill: Fill::Zero,
            pd: 0,
            scoped: false,
            zero_based: false,
            skew: 0,
        }
    }

    /// Describes a region that peers may read. It contains the pattern with seed 1.
    pub(crate) fn readable(name: Name, len: usize) -> Self {
        Region {
            access: "rr",
            fill: Fill::Pattern(1),
            ..Self::writable(name, len)
        }
    }

    /// Describes a region of zeros for Atomics, Reads and Writes.
    pub(crate) fn atomic(name: Name, len: usize) -> Self {
        Region {
            access: "lw,rw,rr,ra",
            ..Self::writable(name, len)
        }
    }

    pub(crate) fn access(mut self, access: &'static str) -> Self {
        self.access = access;
        self
    }

    pub(crate) fn pd(mut self, pd: u32) -> Self {
        self.pd = pd;
        self
    }

    /// Makes TOs in the region begin at 0.
    pub(crate) fn zero_based(mut self) -> Self {
        self.zero_based = true;
        self
    }

    /// Sets the offset of the first byte from the beginning of a page.
    pub(crate) fn skew(mut self, skew: usize) -> Self {
        self.skew = skew;
        self
    }

    pub(crate) fn filled(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// Restricts access to the connection in use.
    pub(crate) fn scoped(mut self) -> Self {
        self.scoped = true;
        self
    }
}

/// Work request that the application posts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// Operation: `send`, `send_inv`, `write`, `read`, `cas`, `fadd`, `imm` or `write_imm`.
    pub(crate) op: &'static str,
    /// Data to send, given by seed, offset and length of a pattern. For a Read, only the length is
    /// used, as the size of the buffer.
    pub(crate) data: Data,
    /// Region that serves as the buffer. `None` creates a buffer for this request.
    pub(crate) from: Option<Name>,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) invalidate: Option<u32>,
    pub(crate) immediate: Option<[u8; 8]>,
    /// Value to compare with in a `cas`.
    pub(crate) compare: u64,
    /// New value in a `cas`, or addend in a `fadd`.
    pub(crate) swap: u64,
    /// Name by which later steps refer to the buffer of this request.
    pub(crate) memory: Option<Name>,
}

impl Post {
    fn new(op: &'static str, data: Data) -> Self {
        Post {
            op,
            data,
            from: None,
            stag: 0,
            to: 0,
            solicited: false,
            fence: false,
            invalidate: None,
            immediate: None,
            compare: 0,
            swap: 0,
            memory: None,
        }
    }

    pub(crate) fn send(len: usize) -> Self {
        Self::new("send", Data::len(len))
    }

    pub(crate) fn send_invalidate(len: usize, stag: u32) -> Self {
        Post {
            invalidate: Some(stag),
            ..Self::new("send_inv", Data::len(len))
        }
    }

    pub(crate) fn write(stag: u32, to: u64, len: usize) -> Self {
        Post {
            stag,
            to,
            ..Self::new("write", Data::len(len))
        }
    }

    pub(crate) fn read(stag: u32, to: u64, len: usize) -> Self {
        Post {
            op: "read",
            ..Self::write(stag, to, len)
        }
    }

    pub(crate) fn fetch_add(stag: u32, to: u64, add: u64) -> Self {
        Post {
            op: "fadd",
            swap: add,
            ..Self::write(stag, to, 8)
        }
    }

    pub(crate) fn compare_swap(stag: u32, to: u64, compare: u64, swap: u64) -> Self {
        Post {
            op: "cas",
            compare,
            swap,
            ..Self::write(stag, to, 8)
        }
    }

    pub(crate) fn immediate(bytes: [u8; 8]) -> Self {
        Post {
            immediate: Some(bytes),
            ..Self::new("imm", Data::none())
        }
    }

    pub(crate) fn write_immediate(stag: u32, to: u64, len: usize, bytes: [u8; 8]) -> Self {
        Post {
            op: "write_imm",
            immediate: Some(bytes),
            ..Self::write(stag, to, len)
        }
    }

    /// Uses this region with its present content as the buffer, instead of a new one.
    pub(crate) fn from(mut self, region: Name) -> Self {
        self.from = Some(region);
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Gives the buffer a name, so that later steps can inspect it.
    pub(crate) fn memory(mut self, name: Name) -> Self {
        self.memory = Some(name);
        self
    }

    pub(crate) fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}
