//! The connection manager: ids, events on a channel, listeners.

#[path = "../common/mod.rs"]
mod common;
mod listener;

use common::{LIMIT, Setup, Wire};
