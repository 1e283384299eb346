//! The agent as its controllers see it: lines over TCP, with several controllers at once.

mod controller;
mod features;
mod lines;
mod local;
mod network;
mod operations;
mod sessions;
