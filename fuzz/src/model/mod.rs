//! What the RFCs say, written a second time: simple, slow, and without a line of the crates under test.

pub mod capture;
pub mod crc;
pub mod event;
pub mod fpdu;
pub mod memory;
pub mod startup;
pub mod stream;
pub mod terminate;
