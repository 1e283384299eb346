//! What has to come.

use std::fmt;

use super::setup::Rtr;
use super::value::{Data, Stag};
use crate::wire::terminate::describe;
use crate::words::many;

/// A whole RDMA Message. What is sent in several segments is put together first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Of any of the four kinds, with this opcode and payload.
    Send {
        opcode: u8,
        /// What the field holds, where it is looked at.
        invalidate: Option<u32>,
        data: Data,
    },
    Write {
        stag: u32,
        to: u64,
        data: Data,
    },
    /// The next one; later steps name its sink by its number.
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
    /// The next one; later steps name it by its number. `opcode`: AOpCode.
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
    /// With any value.
    AnyAtomicResponse {
        id: u32,
    },
    Immediate {
        solicited: bool,
        octets: [u8; 8],
    },
    /// An RTR indication: of no bytes, whatever its addresses are.
    Rtr(Rtr),
}

impl Want {
    /// Whether a message with this opcode is of its kind.
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

    /// Whether it is a Write of zero length.
    pub(crate) fn is_empty_write(&self) -> bool {
        match self {
            Want::Write { data, .. } => match data {
                Data::Octets(octets) => octets.is_empty(),
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
            Want::Rtr(rtr) => write!(f, "the RTR indication, a {rtr:?} of no bytes"),
            Want::AnyAtomicResponse { id } => {
                write!(f, "Atomic Response to request {id:#x}")
            }
            Want::Immediate { solicited, octets } => {
                let se = if *solicited { " with SE" } else { "" };
                write!(f, "Immediate Data{se} {octets:02x?}")
            }
        }
    }
}

/// A Terminate that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) layer: u8,
    pub(crate) etype: u8,
    /// Any, when absent.
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

/// Every way in which the connection may end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) terminates: Vec<Term>,
    /// Any registered Terminate.
    pub(crate) any_terminate: bool,
    /// FIN or reset without a Terminate.
    pub(crate) close: bool,
    /// The suite answers a Terminate with no FIN, so that the target has to end the connection by itself.
    pub(crate) unanswered: bool,
    /// M, D and R of the Terminate, where the rule says them: those that must be set, and those that may.
    pub(crate) headers: Option<(u8, u8)>,
    /// Or with nothing at all, because the TCP segment was dropped and not acknowledged (RFC 5044 section 8).
    pub(crate) dropped: bool,
    /// The Terminate's copies of headers are those of a segment that was sent, counted back from the last one.
    pub(crate) names: Option<usize>,
    /// And DDP Segment Length is its length.
    pub(crate) measures: bool,
    /// What is in the Terminate is not looked at.
    pub(crate) unjudged: bool,
}

impl Ends {
    /// With this Terminate.
    pub(crate) fn term(layer: u8, etype: u8, code: u8) -> Self {
        Ends::default().or(layer, etype, code)
    }

    /// With a Terminate of this Layer and EType, with any registered code: the RFCs leave it open.
    pub(crate) fn etype(layer: u8, etype: u8) -> Self {
        let code = None;
        Ends {
            terminates: vec![Term { layer, etype, code }],
            ..Ends::default()
        }
    }

    /// With any Terminate: the RFCs name no code.
    pub(crate) fn any_term() -> Self {
        Ends {
            any_terminate: true,
            ..Ends::default()
        }
    }

    /// With the Terminate of a local catastrophic error, which has no code (RFC 5040 Figure 9).
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

    /// With some Terminate: what is in it is for the rules of a sender that the case watches.
    pub(crate) fn some_terminate() -> Self {
        Ends {
            unjudged: true,
            ..Ends::default()
        }
    }

    /// In any way: the case is about other things.
    pub(crate) fn anyhow() -> Self {
        Self::some_terminate().or_close()
    }

    /// Without one.
    pub(crate) fn close() -> Self {
        Ends {
            close: true,
            ..Ends::default()
        }
    }

    /// Or with this one.
    pub(crate) fn or(mut self, layer: u8, etype: u8, code: u8) -> Self {
        let code = Some(code);
        self.terminates.push(Term { layer, etype, code });
        self
    }

    /// Without an answer of the suite: no FIN of its own.
    pub(crate) fn unanswered(mut self) -> Self {
        self.unanswered = true;
        self
    }

    /// Or without one.
    pub(crate) fn or_close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Or the target drops the TCP segment, without a word.
    pub(crate) fn or_dropped(mut self) -> Self {
        self.dropped = true;
        self
    }

    /// With these of M, D and R set, and none of the others.
    pub(crate) fn headers(mut self, exactly: u8) -> Self {
        self.headers = Some((exactly, exactly));
        self
    }

    /// With these of M, D and R set, and perhaps those.
    pub(crate) fn headers_within(mut self, must: u8, may: u8) -> Self {
        self.headers = Some((must, must | may));
        self
    }

    /// And the Terminate names the segment that was sent last, if it names one: that it has to is for [`Self::headers`].
    pub(crate) fn naming_last(self) -> Self {
        self.naming_back(0)
    }

    /// And the Terminate names the segment that was sent so many before the last one.
    pub(crate) fn naming_back(mut self, back: usize) -> Self {
        self.names = Some(back);
        self
    }

    /// And DDP Segment Length, if it is there, is that of the segment that it names.
    pub(crate) fn measuring(mut self) -> Self {
        self.measures = true;
        self
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.unjudged {
            return f.write_str(match self.close {
                true => "the end of the connection, in whatever way",
                false => "a Terminate, whatever is in it",
            });
        }
        let mut ways: Vec<String> = self.terminates.iter().map(ToString::to_string).collect();
        if self.any_terminate {
            ways.push("any Terminate of the registry".into());
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
            write!(f, "; of M, D, R set: {}", names(must))?;
            if may != must {
                write!(f, ", perhaps {}", names(may & !must))?;
            }
        }
        if self.names.is_some() {
            write!(f, "; with the DDP Header of the segment that was wrong")?;
        }
        if self.measures {
            write!(f, " and its length")?;
        }
        Ok(())
    }
}
