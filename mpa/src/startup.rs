//! MPA startup: the Request and Reply Frames that lead to Full Operation (RFC 5044 section 7.1,
//! with the enhanced connection data of RFC 6581).

mod assemble;
mod error;
mod frame;
mod initiator;
mod negotiated;
mod options;
mod responder;

pub use error::{ConfigError, FirstBytes, StartupError};
pub use frame::{Enhanced, FrameKind, MAX_PRIVATE_DATA, Parsed, StartupFrame};
pub use initiator::{Initiator, InitiatorConfig};
pub use negotiated::{Negotiated, Outcome, Rejection, Role, SendGate};
pub use options::{Model, NO_AUTO, Revision, Rtr, RtrKinds};
pub use responder::{Accept, Request, Responder, ResponderConfig};
