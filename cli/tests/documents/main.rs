//! Checks the documents: links lead to files and headings, paths exist, and each command does what
//! its page says.

#[path = "../common/mod.rs"]
mod common;

mod commands;
mod links;
mod named;
mod pages;
mod shell;
