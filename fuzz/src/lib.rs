//! Fuzz targets of uwarp. Each target is a function over bytes that compares the stack with a model
//! and panics where they differ. The functions compile on stable; `fuzz_targets/` hands them to
//! libFuzzer. See docs/testing.md.

#![forbid(unsafe_code)]

mod atomics;
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
pub mod ud_datagram;
pub mod verbs_ops;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target's module, binary, seeds and crashers.
    pub name: &'static str,
    /// Runs the target on one input.
    ///
    /// # Panics
    /// If the stack and the model differ.
    pub run: fn(&[u8]),
}

impl Target {
    /// Returns the target with this name.
    ///
    /// # Panics
    /// If no target has this name.
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
        /// All fuzz targets.
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
    ud_datagram,
];
