//! Our own endpoint passes: over the kernel's TCP and over TCP in user space, with CRCs and without, with Markers and
//! without, with revision 1 and 2; as responder and as initiator.
//!
//! Four configurations, in which each setting comes twice; `./ci.sh conformance-full` plays all sixteen three times and
//! compares the verdicts.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use uwarp_agent::{Agent, Options, serve};
use uwarp_conformance::report::failure;
use uwarp_conformance::{Config, LlpTcp, Outcome, Selection, Target, Verdict, run};
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{Device, Revision, Settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Setting {
    smoltcp: bool,
    crc: bool,
    markers: bool,
    revision: u8,
}

impl Setting {
    fn of(number: u8) -> Self {
        Setting {
            smoltcp: number & 1 != 0,
            crc: number & 2 == 0,
            markers: number & 4 != 0,
            revision: if number & 8 == 0 { 2 } else { 1 },
        }
    }

    fn settings(self) -> Settings {
        let revision = match self.revision {
            1 => Revision::One,
            _ => Revision::Two,
        };
        Settings {
            crc: self.crc,
            markers: self.markers,
            revision,
            accept_revision: revision,
            ..Settings::default()
        }
    }
}

/// An endpoint of ours with its agent, and how to reach it.
struct Endpoint {
    _agent: Agent,
    config: Config,
}

fn endpoint(setting: Setting) -> Endpoint {
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (device, ip, network) = if setting.smoltcp {
        let memory = MemorySettings::default();
        let (theirs, ours) = MemoryNetwork::pair(&memory).unwrap();
        let ip = memory.addresses[0][0];
        let device = Device::open(Arc::new(theirs), setting.settings()).unwrap();
        (device, ip, Some(LlpTcp::new(Arc::new(ours))))
    } else {
        let device = Device::tcp_with(setting.settings(), None).unwrap();
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

/// All cases in one configuration and with the target in one role; the verdicts.
fn play(setting: Setting, target_initiates: bool) -> BTreeMap<String, &'static str> {
    let mut endpoint = endpoint(setting);
    endpoint.config.target_initiates = target_initiates;
    let outcomes = run(&endpoint.config, &Selection::default(), &()).unwrap();
    let bad: Vec<String> = outcomes
        .iter()
        .filter(|one| is_bad(one))
        .map(failure)
        .collect();
    assert!(
        bad.is_empty(),
        "{setting:?}, the target initiates: {target_initiates}\n{}",
        bad.join("\n")
    );
    let passed = outcomes.iter().filter(|one| one.verdict == Verdict::Pass);
    assert!(
        passed.count() * 10 > outcomes.len() * 7,
        "{setting:?}: most cases are skipped"
    );
    outcomes
        .into_iter()
        .map(|outcome| (outcome.id, outcome.verdict.word()))
        .collect()
}

fn is_bad(outcome: &Outcome) -> bool {
    !matches!(outcome.verdict, Verdict::Pass | Verdict::Skipped(_))
}

#[test]
fn kernel_tcp_with_crc_by_revision_2_as_responder() {
    play(Setting::of(0), false);
}

#[test]
fn kernel_tcp_without_crc_with_markers_by_revision_1_as_initiator() {
    play(Setting::of(0b1110), true);
}

#[test]
fn smoltcp_with_crc_and_markers_by_revision_2_as_initiator() {
    play(Setting::of(0b0101), true);
}

#[test]
fn smoltcp_without_crc_by_revision_1_as_responder() {
    play(Setting::of(0b1011), false);
}

/// Sixteen configurations, two roles, three times: no case changes its mind.
#[test]
#[ignore = "takes long; ./ci.sh conformance-full plays it"]
fn every_configuration_has_the_same_verdicts_three_times() {
    for number in 0..16 {
        for target_initiates in [false, true] {
            let setting = Setting::of(number);
            let first = play(setting, target_initiates);
            for _ in 1..3 {
                assert_eq!(play(setting, target_initiates), first, "{setting:?}");
            }
        }
    }
}
