//! Our own endpoint with its agent, in this process, and how the suite reaches it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use uwarp_agent::{Agent, Options, serve};
use uwarp_conformance::{Config, LlpTcp, Target};
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{Device, Revision, Settings, Timeouts};

/// A configuration of endpoint and suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) smoltcp: bool,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    pub(crate) revision: u8,
}

impl Setting {
    fn settings(self, timeouts: Timeouts) -> Settings {
        let revision = match self.revision {
            1 => Revision::One,
            _ => Revision::Two,
        };
        Settings {
            crc: self.crc,
            markers: self.markers,
            revision,
            accept_revision: revision,
            timeouts,
            ..Settings::default()
        }
    }
}

/// An endpoint of ours with its agent, and how to reach it.
pub(crate) struct Endpoint {
    _agent: Agent,
    pub(crate) config: Config,
}

pub(crate) fn endpoint(setting: Setting, timeouts: Timeouts) -> Endpoint {
    let settings = setting.settings(timeouts);
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (device, ip, network) = if setting.smoltcp {
        let memory = MemorySettings::default();
        let (theirs, ours) = MemoryNetwork::pair(&memory).unwrap();
        let ip = memory.addresses[0][0];
        let device = Device::open(Arc::new(theirs), settings).unwrap();
        (device, ip, Some(LlpTcp::new(Arc::new(ours))))
    } else {
        let device = Device::tcp_with(settings, None).unwrap();
        (device, IpAddr::from(Ipv4Addr::LOCALHOST), None)
    };
    let options = Options {
        rdma: Some((ip, 0).into()),
        listen_ip: ip,
        source_ip: None,
    };
    let agent = serve(&device, control, options).unwrap();
    let rdma: SocketAddr = agent.rdma_addr().expect("it was asked for");
    let mut config = Config::new(Target::At(rdma));
    config.agent = Some(agent.control_addr());
    config.crc = setting.crc;
    config.markers = setting.markers;
    config.revision = setting.revision;
    config.strict = true;
    config.dangerous = true;
    if let Some(network) = network {
        config.network = Arc::new(network);
    }
    Endpoint {
        _agent: agent,
        config,
    }
}
