//! Cases as data: rules, steps, and the values in them.

mod action;
mod case;
mod frame_changes;
mod segment;
mod setup;
mod value;
mod want;
mod words;

pub(crate) use action::{Action, Condition, StartupCheck};
pub(crate) use case::{Case, Role, may, must, should};
pub use case::{CaseInfo, Level};
pub(crate) use frame_changes::{FrameChanges, private_data};
pub(crate) use segment::*;
pub(crate) use setup::{Answer, Fill, Post, Region, Rtr, Setup};
pub(crate) use value::{Data, Msn, Name, Stag, To};
pub(crate) use want::{Ends, Want};
