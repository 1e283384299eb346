//! The rules of the RFCs, implemented a second time: simple, slow, and without code of the crates
//! under test.

pub mod capture;
pub mod datagram;
pub mod event;
pub mod fpdu;
pub mod memory;
pub mod startup;
pub mod stream;
pub mod terminate;
