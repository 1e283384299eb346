//! The documents are true: links lead somewhere, paths exist, and each command does what its page
//! says.

mod commands;
mod links;
mod named;
mod pages;
mod shell;
