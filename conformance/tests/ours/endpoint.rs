//! Runs the endpoint of uwarp and its agent in this process, with threads and the system clock.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use uwarp_agent::{Agent, Options, serve};
use uwarp_conformance::{Config, LlpTcp, Target};
use uwarp_verbs::Device;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};

use crate::Setting;

/// An endpoint of uwarp with its agent, and a configuration with which the suite tests it.
pub(crate) struct Endpoint {
    _agent: Agent,
    pub(crate) config: Config,
}

/// Starts an endpoint over the TCP of the kernel or over smoltcp.
pub(crate) fn endpoint(setting: Setting, smoltcp: bool) -> Endpoint {
    let settings = setting.settings();
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (device, ip, network) = if smoltcp {
        let memory = MemorySettings::default();
        let (theirs, ours) = MemoryNetwork::pair(&memory).unwrap();
        let ip = memory.addresses[0][0];
        let device = Device::open(Arc::new(theirs), settings).unwrap();
        (device, ip, Some(LlpTcp::new(Arc::new(ours))))
    } else {
        let device = Device::tcp_with(settings, None).unwrap();
        (device, IpAddr::from(Ipv4Addr::LOCALHOST), None)
    };
    let mut options = Options::default();
    options.rdma = Some((ip, 0).into());
    options.listen_ip = ip;
    let agent = serve(&device, control, options).unwrap();
    let rdma: SocketAddr = agent.rdma_addr().expect("it was asked for");
    let mut config = setting.config(Target::At(rdma));
    config.agent = Some(agent.control_addr());
    if let Some(network) = network {
        config.network = Arc::new(network);
    }
    Endpoint {
        _agent: agent,
        config,
    }
}
