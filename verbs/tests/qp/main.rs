//! A queue pair as an object: how it is made, what it tells, what moves it, and how it ends.

#[path = "../common/mod.rs"]
mod common;

mod made;

use common::*;
use uwarp_verbs::*;
