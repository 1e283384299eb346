//! Plays cases against a target.

mod application;
mod atomics;
mod config;
mod connection;
mod contact;
mod dial;
mod ends;
mod enhanced;
mod frame;
mod fresh;
mod log;
mod outcome;
mod own;
mod player;
mod resolve;
mod startup;
mod suite;
mod target_process;
mod traffic;

pub use config::{Config, Route, Target};
pub use fresh::{Targets, run_with_targets};
pub use outcome::{Ending, Failure, LogEntry, Outcome, Verdict, Who};
pub use suite::{Progress, RunError, Selection, run, run_with_agent};
pub(crate) use suite::{matches as run_matches, order as run_order};
