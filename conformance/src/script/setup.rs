//! Setup of a connection, and actions of the application on the target.

use super::twist::Twist;
use super::value::{Data, Name};
use crate::wire::startup::StartupFrame;

/// Reaction of the application to a connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accept,
    /// Rejects, with this Private Data.
    Reject(Vec<u8>),
    /// Does not answer, because the request is not expected to reach it.
    Never,
    /// Accepts any request by itself, if one comes.
    Auto,
}

/// An RTR indication (RFC 6581 section 9.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rtr {
    Send,
    Write,
    Read,
}

/// Setup of a connection, on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    /// Receives that the application posts before it connects or accepts: their number, and the
    /// bytes of each.
    pub(crate) receives: (u32, usize),
    /// Protection domain of the application.
    pub(crate) pd: u32,
    /// Reads and atomics that the suite may have outstanding (the application's responder
    /// resources).
    pub(crate) ird: u16,
    /// Reads and atomics that the application may have outstanding (its initiator depth).
    pub(crate) ord: u16,
    /// Private Data of the application.
    pub(crate) private_data: Vec<u8>,
    pub(crate) answer: Answer,
    /// Request or Reply of the suite, if it is not the configured one.
    pub(crate) frame: Option<StartupFrame>,
    /// Changes to that frame.
    pub(crate) twist: Twist,
    /// C bit of the suite, if it is not the configured one.
    pub(crate) crc: Option<bool>,
    /// M bit of the suite: the target has to send Markers.
    pub(crate) markers: Option<bool>,
    /// The suite sends a zero-length RDMA Write right after startup, so that a Responder may send.
    pub(crate) nudge: bool,
    /// MSS that the suite announces.
    pub(crate) mss: Option<u16>,
    /// The connecting application asks for the peer-to-peer model.
    pub(crate) peer_to_peer: bool,
    /// Connections that the suite ends without a Request before the connection of the case.
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
            twist: Twist::default(),
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
    /// Returns true if the application has to do more for it than an ordinary server does.
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

    /// Sets the suite's startup frame.
    pub(crate) fn frame(mut self, frame: StartupFrame) -> Self {
        self.frame = Some(frame);
        self
    }

    /// Makes the application accept any request; none has to come.
    pub(crate) fn auto(mut self) -> Self {
        self.answer = Answer::Auto;
        self
    }

    /// Changes the suite's startup frame.
    pub(crate) fn twist(mut self, twist: Twist) -> Self {
        self.twist = twist;
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

    /// Ends this many connections to the same listener without a Request first.
    pub(crate) fn aborted(mut self, aborted: u32) -> Self {
        self.aborted = aborted;
        self
    }
}

/// Initial content of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fill {
    Zero,
    /// Pattern of this seed.
    Pattern(u64),
}

/// A region that the application registers and advertises through its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) name: Name,
    pub(crate) len: usize,
    /// `lw`, `rw`, `rr` and `ra`, separated by commas.
    pub(crate) access: &'static str,
    pub(crate) fill: Fill,
    pub(crate) pd: u32,
    /// Restricted to the connection that is in use when it is registered.
    pub(crate) scoped: bool,
    /// Its first byte has TO 0.
    pub(crate) zero_based: bool,
    /// Offset of its first byte in a page.
    pub(crate) skew: usize,
}

impl Region {
    /// A region of zeros that peers may write.
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

    /// A region with the pattern of seed 1, which peers may read.
    pub(crate) fn readable(name: Name, len: usize) -> Self {
        Region {
            access: "rr",
            fill: Fill::Pattern(1),
            ..Self::writable(name, len)
        }
    }

    /// A region of zeros for atomics, Reads and Writes.
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

    /// Makes its TOs begin at 0.
    pub(crate) fn zero_based(mut self) -> Self {
        self.zero_based = true;
        self
    }

    /// Sets the offset of its first byte in a page.
    pub(crate) fn skew(mut self, skew: usize) -> Self {
        self.skew = skew;
        self
    }

    pub(crate) fn filled(mut self, fill: Fill) -> Self {
        self.fill = fill;
        self
    }

    /// Restricts it to the connection in use.
    pub(crate) fn scoped(mut self) -> Self {
        self.scoped = true;
        self
    }
}

/// A work request that the application posts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Post {
    /// `send`, `send_inv`, `write`, `read`, `cas`, `fadd`, `imm`, `write_imm`.
    pub(crate) op: &'static str,
    /// Data to send, or the size of the buffer. For data to send, its seed and offset in the
    /// pattern count.
    pub(crate) data: Data,
    /// Region that is the buffer, if it is not one made for this request.
    pub(crate) from: Option<Name>,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    pub(crate) invalidate: Option<u32>,
    pub(crate) immediate: Option<[u8; 8]>,
    /// For `cas`: the value to compare with and the new one. For `fadd`, `swap` is the number to
    /// add.
    pub(crate) compare: u64,
    pub(crate) swap: u64,
    /// Name under which the case refers to the buffer of this request.
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

    /// Uses this region as it is, instead of one that is made and filled for the request.
    pub(crate) fn from(mut self, region: Name) -> Self {
        self.from = Some(region);
        self
    }

    pub(crate) fn solicited(mut self) -> Self {
        self.solicited = true;
        self
    }

    /// Names its buffer, which the case inspects later.
    pub(crate) fn memory(mut self, name: Name) -> Self {
        self.memory = Some(name);
        self
    }

    pub(crate) fn fence(mut self) -> Self {
        self.fence = true;
        self
    }
}
