//! The bytes of the three layers, built and read by the suite itself from the RFCs: nothing here comes from the
//! stack under test, nothing refuses to build what is wrong, and nothing that came is trusted.

pub(crate) mod crc;
pub(crate) mod fpdu;
pub(crate) mod pattern;
pub(crate) mod segment;
pub(crate) mod startup;
pub(crate) mod terminate;
