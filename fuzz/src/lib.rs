//! The fuzz targets of uwarp: each is a function over bytes that compares the stack with a model and panics where they
//! differ. They compile on stable; `fuzz_targets/` hands them to libFuzzer. See docs/testing.md.

#![forbid(unsafe_code)]

pub mod capture_file;
pub mod connection_pair;
mod craft;
pub mod ddp_placement;
pub mod ddp_segment;
mod deframing;
pub mod hostile_peer;
pub mod input;
mod live;
pub mod model;
pub mod mpa_deframe;
pub mod mpa_sealed;
pub mod mpa_startup;
mod play;
pub mod rdmap_message;
pub mod rdmap_terminate;
pub mod smoltcp_link;
#[doc(hidden)]
pub mod start;
pub mod verbs_ops;
mod words;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its module, its binary, its seeds and its crashers.
    pub name: &'static str,
    /// Plays one input.
    ///
    /// # Panics
    /// If the stack does not do what the model does.
    pub run: fn(&[u8]),
}

impl Target {
    /// The target of this name.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        *TARGETS
            .iter()
            .find(|target| target.name == name)
            .unwrap_or_else(|| panic!("no fuzz target is named {name}"))
    }
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name::run }),*];
    };
}

targets![
    mpa_startup,
    mpa_deframe,
    mpa_sealed,
    ddp_segment,
    rdmap_message,
    rdmap_terminate,
    ddp_placement,
    capture_file,
    connection_pair,
    hostile_peer,
    verbs_ops,
    smoltcp_link,
];
