//! The bytes of the three layers, built and parsed by the suite itself from the RFCs. Nothing here
//! comes from the stack under test, any wrong message can be built, and received bytes are not
//! trusted.

pub(crate) mod crc;
pub(crate) mod fpdu;
pub(crate) mod pattern;
pub(crate) mod segment;
pub(crate) mod startup;
pub(crate) mod terminate;
