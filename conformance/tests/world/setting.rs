//! Settings of the endpoint and of the suite in a run.

use uwarp_conformance::{Config, Target};
use uwarp_verbs::{Revision, Settings};

/// CRCs, Markers and MPA revision of the endpoint and of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    pub(crate) revision: u8,
}

impl Setting {
    /// Returns the settings of the endpoint.
    pub(crate) fn settings(self) -> Settings {
        let revision = match self.revision {
            1 => Revision::One,
            _ => Revision::Two,
        };
        Settings::default()
            .crc(self.crc)
            .markers(self.markers)
            .revision(revision)
            .accept_revision(revision)
    }

    /// Returns the configuration of the suite. It includes all cases.
    pub(crate) fn config(self, target: Target) -> Config {
        let mut config = Config::new(target);
        config.crc = self.crc;
        config.markers = self.markers;
        config.revision = self.revision;
        config.strict = true;
        config.dangerous = true;
        config
    }
}
