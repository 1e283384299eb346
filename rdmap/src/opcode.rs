//! RDMAP control byte: version and opcode (RFC 5040 sections 4.1 and 4.2, RFC 7306 section 4.1).

use core::fmt;

use uwarp_ddp::Qn;

/// Queue of the Send messages and of Immediate Data.
pub const QN_SEND: Qn = Qn(0);
/// Queue of the Read Requests and Atomic Requests.
pub const QN_READ_REQUEST: Qn = Qn(1);
/// Queue of the Terminate Message.
pub const QN_TERMINATE: Qn = Qn(2);
/// Queue of the Atomic Responses (RFC 7306 section 5.2.2).
pub const QN_ATOMIC_RESPONSE: Qn = Qn(3);

/// RDMAP version (RV) that this crate supports.
pub const RDMAP_VERSION: u8 = 1;

/// Messages of RFC 5040 (Figure 4) and RFC 7306 (Figure 2).
///
/// A segment with any other opcode is refused, and the error keeps the raw value:
/// [`StreamError::UnexpectedOpcode`](crate::StreamError::UnexpectedOpcode).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data.
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 9,
    /// Atomic Request.
    AtomicRequest = 10,
    /// Atomic Response.
    AtomicResponse = 11,
}

impl Opcode {
    /// Returns the opcode with this number (4 bits on the wire); `None` if no RFC defines it.
    #[must_use]
    pub const fn from_raw(raw: u8) -> Option<Opcode> {
        // 5040-4.1-i01: an opcode that is missing here is unexpected.
        Some(match raw {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            8 => Opcode::Immediate,
            9 => Opcode::ImmediateSolicited,
            10 => Opcode::AtomicRequest,
            11 => Opcode::AtomicResponse,
            _ => return None,
        })
    }

    /// Returns the opcode in the first bytes of a segment, before any check. `None` if `head` ends
    /// before the opcode, or no RFC defines it.
    ///
    /// Only [`Stream::receive`](crate::Stream::receive) can tell whether the segment is valid.
    #[must_use]
    pub fn of_segment(head: &[u8]) -> Option<Opcode> {
        // The control byte of RDMAP follows that of DDP in tagged and untagged segments.
        let (_, raw) = split(*head.get(1)?);
        Self::from_raw(raw)
    }

    /// Returns the Queue Number of the message; `None` for a tagged message (5040-4.1-04,
    /// 5040-4.1-06).
    #[must_use]
    pub const fn queue(self) -> Option<Qn> {
        match self {
            Opcode::Write | Opcode::ReadResponse => None,
            Opcode::ReadRequest | Opcode::AtomicRequest => Some(QN_READ_REQUEST), // 7306-5.2-01
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
            | Opcode::Immediate
            | Opcode::ImmediateSolicited => Some(QN_SEND), // 7306-6.3-04
            Opcode::Terminate => Some(QN_TERMINATE),
            Opcode::AtomicResponse => Some(QN_ATOMIC_RESPONSE), // 7306-5-04
        }
    }

    /// Returns true if the message asks for an event at the receiver.
    #[must_use]
    pub const fn solicits(self) -> bool {
        matches!(
            self,
            Opcode::SendSolicited | Opcode::SendSolicitedInvalidate | Opcode::ImmediateSolicited
        )
    }

    /// Returns true for the four kinds of Send.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Opcode::Send
                | Opcode::SendInvalidate
                | Opcode::SendSolicited
                | Opcode::SendSolicitedInvalidate
        )
    }

    /// Returns true if the message names an STag to invalidate.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(
            self,
            Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate
        )
    }

    /// Returns true if RFC 7306 defines the message; older peers do not know it.
    #[must_use]
    pub const fn is_extension(self) -> bool {
        matches!(
            self,
            Opcode::Immediate
                | Opcode::ImmediateSolicited
                | Opcode::AtomicRequest
                | Opcode::AtomicResponse
        )
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Opcode::Write => "RDMA Write",
            Opcode::ReadRequest => "RDMA Read Request",
            Opcode::ReadResponse => "RDMA Read Response",
            Opcode::Send => "Send",
            Opcode::SendInvalidate => "Send with Invalidate",
            Opcode::SendSolicited => "Send with Solicited Event",
            Opcode::SendSolicitedInvalidate => "Send with Solicited Event and Invalidate",
            Opcode::Terminate => "Terminate",
            Opcode::Immediate => "Immediate Data",
            Opcode::ImmediateSolicited => "Immediate Data with Solicited Event",
            Opcode::AtomicRequest => "Atomic Request",
            Opcode::AtomicResponse => "Atomic Response",
        })
    }
}

/// Returns the RDMAP control byte of a message: RV 1, reserved bits 0, opcode (5040-4.1-02,
/// 5040-4.1-07, 5040-4.1-08, 7306-4.1-01).
#[must_use]
pub const fn control(opcode: Opcode) -> u8 {
    RDMAP_VERSION << 6 | opcode as u8
}

/// Returns version and raw opcode of a control byte. The reserved bits are ignored (5040-4.1-09).
pub(crate) const fn split(control: u8) -> (u8, u8) {
    (control >> 6, control & 0x0F)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use core::fmt::Write as _;

    #[test]
    fn control_bytes_and_queues_are_those_of_the_figures() {
        let mut table = String::new();
        for raw in 0..16 {
            let Some(opcode) = Opcode::from_raw(raw) else {
                let _ = writeln!(table, "{raw:x}  --  unexpected");
                continue;
            };
            assert_eq!(opcode as u8, raw);
            assert_eq!(split(control(opcode)), (RDMAP_VERSION, raw));
            let queue = opcode
                .queue()
                .map_or("tagged".into(), |qn| format!("QN {qn}"));
            let _ = writeln!(
                table,
                "{raw:x}  {:02x}  {queue:6}  {opcode}",
                control(opcode)
            );
        }
        insta::assert_snapshot!(table);
    }

    #[test]
    fn reserved_bits_of_the_control_byte_are_ignored() {
        assert_eq!(split(0x73), (1, 3)); // 5040-4.1-09
    }
}
