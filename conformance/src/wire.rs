//! Encoding and decoding of the three protocol layers, written from the RFCs for the suite. It
//! shares no code with the stack under test. It can build any invalid message, and it does not
//! trust received bytes.

pub(crate) mod crc;
pub(crate) mod fpdu;
pub(crate) mod pattern;
pub(crate) mod segment;
pub(crate) mod startup;
pub(crate) mod terminate;
