//! Settings of a run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::{KernelTcp, Network};

/// Location of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// It listens here. The suite is the Initiator and, with an agent, also the Responder.
    At(SocketAddr),
    /// It connects to the suite, which listens here.
    Dials(SocketAddr),
    /// It is a command that is started for each case. `{host}`, `{port}` and `{addr}` in it are
    /// replaced by the address where the suite listens. Without any of them, the address is
    /// appended as the last word.
    Command(String),
}

/// Translates addresses, if they are not the same for the suite and the target.
pub trait Route: Send + Sync {
    /// Port that the application on the target has to listen on; 0 for any.
    fn port(&self) -> u16;
    /// Address for the suite to connect to, if the application listens on this port.
    fn target(&self, port: u16) -> SocketAddr;
    /// Address for the suite to listen on.
    fn own(&self) -> SocketAddr;
    /// Address for the target to connect to, if the suite listens there.
    fn own_for_target(&self, listening: SocketAddr) -> SocketAddr;
}

/// Settings of a run.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Location of the target.
    pub target: Target,
    /// Control port of the agent of the target.
    pub agent: Option<SocketAddr>,
    /// Longest wait for something that must come.
    pub timeout: Duration,
    /// Wait for something that must not come.
    pub quiet: Duration,
    /// Pause after startup, before the first FPDU, for Responders that would lose it otherwise.
    pub settle: Duration,
    /// C bit of the suite's startup frames.
    pub crc: bool,
    /// M bit of the suite's startup frames.
    pub markers: bool,
    /// MPA revision of the suite's Requests: 1, or 2 with enhanced connection data.
    pub revision: u8,
    /// Also play cases for SHOULD and MAY.
    pub strict: bool,
    /// Also play cases that are known to crash or block some targets.
    pub dangerous: bool,
    /// In cases for both roles, the target is the Initiator.
    pub target_initiates: bool,
    /// Number of cases played at the same time.
    pub jobs: usize,
    /// Seed of the payloads.
    pub seed: u64,
    /// Translation of addresses, if the address in `target` is not the same for both sides.
    pub route: Option<Arc<dyn Route>>,
    /// TCP implementation of the suite.
    pub network: Arc<dyn Network>,
    /// File of known deviations.
    pub deviations: Option<PathBuf>,
}

impl Config {
    /// Default settings for this target.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Config {
            target,
            agent: None,
            timeout: Duration::from_secs(5),
            quiet: Duration::from_millis(100),
            settle: Duration::ZERO,
            crc: true,
            markers: false,
            revision: 2,
            strict: false,
            dangerous: false,
            target_initiates: false,
            jobs: 4,
            seed: 1,
            route: None,
            network: Arc::new(KernelTcp::default()),
            deviations: None,
        }
    }
}
