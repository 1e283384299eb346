//! What a run is told.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::{KernelTcp, Network};

/// Where the target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// It listens here: the suite is the Initiator, and, where there is an agent, also the Responder.
    At(SocketAddr),
    /// It connects to the suite, which listens here.
    Dials(SocketAddr),
    /// It is a command that is started for each case. `{host}`, `{port}` and `{addr}` in it are replaced by where the suite
    /// listens; without any of them the address is added as the last word.
    Command(String),
}

/// How the suite and the target reach each other, where ports and addresses are not the same for both.
pub trait Route: Send + Sync {
    /// The port that the application on the target has to listen on; 0 for any.
    fn port(&self) -> u16;
    /// Where the suite connects to, when the application listens on this port.
    fn target(&self, port: u16) -> SocketAddr;
    /// Where the suite listens for the target.
    fn own(&self) -> SocketAddr;
    /// Where the target connects to, when the suite listens there.
    fn own_for_target(&self, listening: SocketAddr) -> SocketAddr;
}

/// Settings of a run.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where the target is.
    pub target: Target,
    /// The control port of the agent beside it.
    pub agent: Option<SocketAddr>,
    /// How long to wait for anything that has to come.
    pub timeout: Duration,
    /// How long to wait for what must not come.
    pub quiet: Duration,
    /// What to wait after startup, before the first FPDU, for Responders that lose it otherwise.
    pub settle: Duration,
    /// The C bit of the suite's startup frames.
    pub crc: bool,
    /// Their M bit.
    pub markers: bool,
    /// MPA revision of the suite's Requests: 1, or 2 with enhanced connection data.
    pub revision: u8,
    /// SHOULD and MAY, too.
    pub strict: bool,
    /// Cases that are known to crash or wedge some targets, too.
    pub dangerous: bool,
    /// Cases that hold in both roles are played with the target as the Initiator.
    pub target_initiates: bool,
    /// Cases at once.
    pub jobs: usize,
    /// Of the payloads: another seed, other bytes.
    pub seed: u64,
    /// How suite and target reach each other, where that is not by the address in `target`.
    pub route: Option<Arc<dyn Route>>,
    /// The TCP to use.
    pub network: Arc<dyn Network>,
    /// A file of known deviations.
    pub deviations: Option<PathBuf>,
}

impl Config {
    /// The settings for a target at this address.
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
