//! What a run found, for people and for programs.

mod hexdump;
mod json;
mod terminal;

pub use json::json;
pub use terminal::{Counts, failure, summary};
