//! Reports of a run, for people and for programs.

mod about;
mod fields;
mod hexdump;
mod html;
mod json;
mod junit;
mod pcap;
mod terminal;

pub use about::About;
pub use html::html;
pub use json::json;
pub use junit::junit;
pub use pcap::pcaps;
pub use terminal::{Counts, failure, summary};

pub use crate::words::many;
