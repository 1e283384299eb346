//! Values that a connection and its lower layer (LLP) exchange: the bytes of a gathering send
//! ([`Piece`]) with hints about them ([`SendHints`]), limits on a silent peer ([`Keepalive`]), and
//! errors ([`LlpError`]). The crate `uwarp-llp` has the transports.

mod error;
mod keepalive;
mod piece;
mod send_hints;

pub use error::LlpError;
pub use keepalive::Keepalive;
pub use piece::Piece;
pub use send_hints::SendHints;
