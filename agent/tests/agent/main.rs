//! The agent as its controllers see it: over TCP, by lines, several at once.

mod controller;
mod features;
mod lines;
mod local;
mod network;
mod operations;
mod sessions;
