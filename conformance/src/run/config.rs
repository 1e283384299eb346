//! Settings of a run.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::{KernelTcp, Network};

/// How the suite and the target connect to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The target listens at this address, and the suite connects as Initiator. With an agent, the
    /// target can also connect; then the suite is the Responder.
    At(SocketAddr),
    /// The target connects to the suite, which listens at this address.
    Dials(SocketAddr),
    /// The suite starts this command for each case, and the command connects to the suite. In the
    /// command, `{host}`, `{port}` and `{addr}` are replaced by the host, the port and the whole
    /// address on which the suite listens. If the command contains none of these three words, the
    /// address is appended as the last word.
    Command(String),
}

/// Translates addresses, for networks in which the suite and the target see different addresses.
pub trait Route: Send + Sync {
    /// Returns the port on which the application on the target has to listen. 0 means any free
    /// port.
    fn port(&self) -> u16;
    /// Returns the address to which the suite connects if the application listens on `port`.
    fn target(&self, port: u16) -> SocketAddr;
    /// Returns the address on which the suite listens.
    fn own(&self) -> SocketAddr;
    /// Returns the address to which the target connects if the suite listens on `listening`.
    fn own_for_target(&self, listening: SocketAddr) -> SocketAddr;
}

/// Settings of a run.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// How to reach the target.
    pub target: Target,
    /// Control address of the agent of the target. Without it, cases that need an agent are
    /// skipped.
    pub agent: Option<SocketAddr>,
    /// Token for the agent, if the agent asks for one.
    pub agent_token: Option<String>,
    /// Maximum time to wait for a message or event that the case expects.
    pub timeout: Duration,
    /// Time to wait before the suite concludes that no message or event arrives.
    pub quiet: Duration,
    /// Pause between startup and the first FPDU, for Responders that would lose an FPDU that
    /// arrives too early.
    pub settle: Duration,
    /// C bit in the startup frames of the suite: the suite asks for CRCs.
    pub crc: bool,
    /// M bit in the startup frames of the suite: the suite asks the target to send Markers.
    pub markers: bool,
    /// MPA revision in the Requests of the suite: 1, or 2 with enhanced connection data (RFC 6581).
    pub revision: u8,
    /// Also plays cases for SHOULD and MAY.
    pub strict: bool,
    /// Also plays cases that are known to crash or block some targets.
    pub dangerous: bool,
    /// Makes the target the Initiator in cases that can be played in both roles.
    pub target_initiates: bool,
    /// Number of cases that are played at the same time.
    pub jobs: usize,
    /// Seed of the payload patterns.
    pub seed: u64,
    /// Translation of addresses, if the suite and the target see different addresses.
    pub route: Option<Arc<dyn Route>>,
    /// TCP implementation that the suite uses.
    pub network: Arc<dyn Network>,
    /// Path of a file of known deviations.
    pub deviations: Option<PathBuf>,
}

impl Config {
    /// Creates the default settings for a target.
    #[must_use]
    pub fn new(target: Target) -> Self {
        Config {
            target,
            agent: None,
            agent_token: None,
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
