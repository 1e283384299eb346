//! Messages and endings that a step can expect.

use std::fmt;

use super::setup::Rtr;
use super::value::{Data, Stag};
use crate::wire::terminate::describe;
use crate::words::many;

/// An expected RDMA Message, after reassembly of its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// A Send of one of the four kinds, given by its opcode.
    Send {
        opcode: u8,
        /// Expected value of Invalidate STag. `None` accepts any value.
        invalidate: Option<u32>,
        data: Data,
    },
    Write {
        stag: u32,
        to: u64,
        data: Data,
    },
    /// The next Read Request. Later steps refer to its sink by the number of the request.
    ReadRequest {
        size: u32,
        stag: u32,
        to: u64,
    },
    ReadResponse {
        stag: Stag,
        to: u64,
        data: Data,
    },
    /// The next Atomic Request. Later steps refer to it by its number. `opcode` is its AOpCode.
    Atomic {
        opcode: u32,
        stag: u32,
        to: u64,
        data: u64,
        compare: u64,
    },
    AtomicResponse {
        id: u32,
        value: u64,
    },
    /// An Atomic Response with this Request Identifier and any value.
    AnyAtomicResponse {
        id: u32,
    },
    Immediate {
        solicited: bool,
        bytes: [u8; 8],
    },
    /// An RTR indication: a message of zero length, with any addresses.
    Rtr(Rtr),
}

impl Want {
    /// Returns true if messages with this opcode are of the expected kind.
    pub(crate) fn is_of(&self, code: u8) -> bool {
        use crate::wire::segment::opcode;
        let due = match self {
            Want::Send { opcode, .. } => *opcode,
            Want::Write { .. } => opcode::WRITE,
            Want::ReadRequest { .. } => opcode::READ_REQUEST,
            Want::ReadResponse { .. } => opcode::READ_RESPONSE,
            Want::Atomic { .. } => opcode::ATOMIC_REQUEST,
            Want::AtomicResponse { .. } | Want::AnyAtomicResponse { .. } => opcode::ATOMIC_RESPONSE,
            Want::Immediate {
                solicited: false, ..
            } => opcode::IMMEDIATE,
            Want::Immediate { .. } => opcode::IMMEDIATE_SE,
            Want::Rtr(Rtr::Send) => opcode::SEND,
            Want::Rtr(Rtr::Write) => opcode::WRITE,
            Want::Rtr(Rtr::Read) => opcode::READ_REQUEST,
        };
        code == due
    }

    /// Returns true if this expects a Write of zero length.
    pub(crate) fn is_empty_write(&self) -> bool {
        match self {
            Want::Write { data, .. } => match data {
                Data::Bytes(bytes) => bytes.is_empty(),
                Data::Pattern(_, _, len) => *len == 0,
                _ => false,
            },
            want => matches!(want, Want::Rtr(Rtr::Write)),
        }
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::wire::segment::opcode::name;
        match self {
            Want::Send { opcode, data, .. } => write!(f, "{}, {data}", name(*opcode)),
            Want::Write { stag, to, data } => {
                write!(f, "RDMA Write to STag {stag:#010x}, TO {to:#x}, {data}")
            }
            Want::ReadRequest { size, stag, to } => write!(
                f,
                "RDMA Read Request for {size} at STag {stag:#010x}, TO {to:#x}",
                size = many(size, "byte")
            ),
            Want::ReadResponse { stag, to, data } => {
                write!(f, "RDMA Read Response to {stag}, TO {to:#x}, {data}")
            }
            Want::Atomic {
                opcode, stag, to, ..
            } => write!(
                f,
                "Atomic Request {opcode} at STag {stag:#010x}, TO {to:#x}"
            ),
            Want::AtomicResponse { id, value } => {
                write!(f, "Atomic Response to request {id:#x}: {value:#x}")
            }
            Want::Rtr(rtr) => write!(f, "the RTR indication, a {rtr:?} of zero length"),
            Want::AnyAtomicResponse { id } => {
                write!(f, "Atomic Response to request {id:#x}")
            }
            Want::Immediate { solicited, bytes } => {
                let se = if *solicited { " with SE" } else { "" };
                write!(f, "Immediate Data{se} {bytes:02x?}")
            }
        }
    }
}

/// An expected Terminate, given by its error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) layer: u8,
    pub(crate) etype: u8,
    /// Error Code. `None` accepts any code.
    pub(crate) code: Option<u8>,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "Terminate {}", describe(self.layer, self.etype, code)),
            None => write!(f, "Terminate {}/{}/any", self.layer, self.etype),
        }
    }
}

/// Set of the ways in which the connection may end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) terminates: Vec<Term>,
    /// Accepts a Terminate with any registered error.
    pub(crate) any_terminate: bool,
    /// Accepts a FIN or reset without a Terminate.
    pub(crate) close: bool,
    /// The suite does not answer a Terminate with a FIN, so the target has to close the connection
    /// by itself.
    pub(crate) unanswered: bool,
    /// Requirement on the bits M, D and R of the Terminate: bits that must be set, and bits that
    /// may be set. `None` accepts any bits.
    pub(crate) headers: Option<(u8, u8)>,
    /// Accepts that the target drops the TCP segment: the target neither acknowledges the segment
    /// nor reacts in any other way (RFC 5044 section 8).
    pub(crate) dropped: bool,
    /// The Terminate must quote the headers of this sent segment, counted back from the last one.
    /// `None` does not check them.
    pub(crate) names: Option<usize>,
    /// DDP Segment Length must be the length of that segment.
    pub(crate) measures: bool,
    /// The error in the Terminate is not checked.
    pub(crate) unjudged: bool,
}

impl Ends {
    /// Accepts a Terminate with this error.
    pub(crate) fn term(layer: u8, etype: u8, code: u8) -> Self {
        Ends::default().or(layer, etype, code)
    }

    /// Accepts a Terminate with this Layer and EType and any registered code. Used for errors whose
    /// code the RFCs leave open.
    pub(crate) fn etype(layer: u8, etype: u8) -> Self {
        let code = None;
        Ends {
            terminates: vec![Term { layer, etype, code }],
            ..Ends::default()
        }
    }

    /// Accepts a Terminate with any registered error. Used for errors whose code no RFC names.
    pub(crate) fn any_term() -> Self {
        Ends {
            any_terminate: true,
            ..Ends::default()
        }
    }

    /// Accepts the Terminate of a local catastrophic error, which has no Error Code (RFC 5040
    /// Figure 9).
    pub(crate) fn local_catastrophic() -> Self {
        let term = Term {
            layer: 0,
            etype: 0,
            code: None,
        };
        Ends {
            terminates: vec![term],
            ..Ends::default()
        }
    }

    /// Accepts any Terminate. Only the rules for senders that the case watches apply to its
    /// content.
    pub(crate) fn some_terminate() -> Self {
        Ends {
            unjudged: true,
            ..Ends::default()
        }
    }

    /// Accepts any end. Used by cases that test something else.
    pub(crate) fn any_end() -> Self {
        Self::some_terminate().or_close()
    }

    /// Accepts a FIN or reset without a Terminate.
    pub(crate) fn close() -> Self {
        Ends {
            close: true,
            ..Ends::default()
        }
    }

    /// Also accepts a Terminate with this error.
    pub(crate) fn or(mut self, layer: u8, etype: u8, code: u8) -> Self {
        let code = Some(code);
        self.terminates.push(Term { layer, etype, code });
        self
    }

    /// Makes the suite not answer a Terminate with a FIN.
    pub(crate) fn unanswered(mut self) -> Self {
        self.unanswered = true;
        self
    }

    /// Also accepts a FIN or reset without a Terminate.
    pub(crate) fn or_close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Also accepts that the target silently drops the TCP segment.
    pub(crate) fn or_dropped(mut self) -> Self {
        self.dropped = true;
        self
    }

    /// Requires that exactly these of the bits M, D and R are set.
    pub(crate) fn headers(mut self, exactly: u8) -> Self {
        self.headers = Some((exactly, exactly));
        self
    }

    /// Requires that the bits `must` of M, D and R are set, and allows the bits `may`.
    pub(crate) fn headers_within(mut self, must: u8, may: u8) -> Self {
        self.headers = Some((must, must | may));
        self
    }

    /// Requires that a quoted segment is the last one sent. [`Self::headers`] determines whether a
    /// segment must be quoted.
    pub(crate) fn naming_last(self) -> Self {
        self.naming_back(0)
    }

    /// Requires that a quoted segment is the one sent `back` segments before the last one.
    pub(crate) fn naming_back(mut self, back: usize) -> Self {
        self.names = Some(back);
        self
    }

    /// Requires that DDP Segment Length, if present, is that of the quoted segment.
    pub(crate) fn measuring(mut self) -> Self {
        self.measures = true;
        self
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unjudged {
            return f.write_str(match self.close {
                true => "any end of the connection",
                false => "a Terminate with any content",
            });
        }
        let mut ways: Vec<String> = self.terminates.iter().map(ToString::to_string).collect();
        if self.any_terminate {
            ways.push("any registered Terminate".into());
        }
        if self.close {
            ways.push("the end of the TCP connection".into());
        }
        if self.dropped {
            ways.push("a TCP segment that is not acknowledged".into());
        }
        write!(f, "{}", ways.join(", or "))?;
        if let Some((must, may)) = self.headers {
            let names = |bits: u8| {
                let all = [(4, "M"), (2, "D"), (1, "R")];
                let set: Vec<&str> = all
                    .iter()
                    .filter(|(bit, _)| bits & bit != 0)
                    .map(|(_, name)| *name)
                    .collect();
                if set.is_empty() {
                    "none".to_owned()
                } else {
                    set.join(" ")
                }
            };
            write!(f, "; set of M, D, R: {}", names(must))?;
            if may != must {
                write!(f, ", optionally {}", names(may & !must))?;
            }
        }
        if self.names.is_some() {
            write!(f, "; with the DDP Header of the wrong segment")?;
        }
        if self.measures {
            write!(f, " and its length")?;
        }
        Ok(())
    }
}
