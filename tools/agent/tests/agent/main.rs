//! Tests of the agent through its protocol: lines over TCP, with several controllers at a time.

mod controller;
mod features;
mod lines;
mod local;
mod network;
mod operations;
mod sessions;
mod strangers;
