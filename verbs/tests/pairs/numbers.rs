//! Numbers of QPs that have a rendezvous.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener, TcpStream};

use uwarp_verbs::{IbvQpState, PairOptions, Qp, QpModify, RendezvousOptions, Status};

use crate::{Host, LOOPBACK};

fn port(qp: &Qp) -> u16 {
    u16::try_from(qp.qp_num() >> 8).unwrap()
}

/// A host whose rendezvous uses these ports.
fn with_ports(ports: std::ops::RangeInclusive<u16>) -> Host {
    let options = RendezvousOptions::default().addr(Some(LOOPBACK));
    let network = std::sync::Arc::<uwarp_verbs::llp::kernel::KernelNetwork>::default();
    Host::new(network, LOOPBACK, options.ports(Some(ports)))
}

/// A port that nobody uses now.
fn free_port() -> u16 {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn numbers_name_a_port_of_the_rendezvous_and_are_unique() {
    let host = Host::here();
    let qps: Vec<_> = (0..600).map(|_| host.qp()).collect();
    let numbers: HashSet<_> = qps.iter().map(Qp::qp_num).collect();
    assert_eq!(numbers.len(), 600);
    let ports: HashSet<_> = qps.iter().map(port).collect();
    assert_eq!(ports.len(), 3);
    assert!(ports.iter().all(|port| *port >= 1024));
}

#[test]
fn a_number_is_not_given_again_while_others_of_its_port_are_free() {
    let host = Host::here();
    let first = host.qp();
    let number = first.qp_num();
    drop(first);
    for _ in 0..255 {
        assert_ne!(host.qp().qp_num(), number);
    }
    assert_eq!(host.qp().qp_num(), number);
}

#[test]
fn ports_come_from_the_range_that_is_given() {
    let free = free_port();
    let host = with_ports(free..=free);
    let qps: Vec<_> = (0..256).map(|_| host.qp()).collect();
    assert!(qps.iter().all(|qp| port(qp) == free));
    let builder = host.pd.qp().rendezvous(&host.rendezvous);
    let refused = builder.build(&host.cq, &host.cq);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("free ports of the range"), "{refused}");
    drop(qps);
    assert_eq!(port(&host.qp()), free);
}

#[test]
fn a_port_that_is_in_use_is_passed_over() {
    let taken = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let first = taken.local_addr().unwrap().port();
    let host = with_ports(first..=first.saturating_add(200));
    assert!(port(&host.qp()) > first);
}

#[test]
fn ports_of_the_system_are_not_used() {
    let host = with_ports(1..=1023);
    let builder = host.pd.qp().rendezvous(&host.rendezvous);
    let refused = builder.build(&host.cq, &host.cq).unwrap_err().to_string();
    assert!(refused.contains("free ports of the range"), "{refused}");
}

#[test]
fn nothing_listens_before_a_qp_has_a_peer() {
    let host = Host::here();
    let (x, y) = (host.qp(), host.qp());
    let at = SocketAddr::new(LOOPBACK, port(&x));
    assert!(TcpStream::connect(at).is_err());
    x.pair(host.peer(&y), &PairOptions::default()).unwrap();
    assert!(TcpStream::connect(at).is_ok());
}

#[test]
fn a_reset_discards_no_completion_of_an_older_qp_with_the_same_number() {
    let host = Host::here();
    let older = host.qp();
    let number = older.qp_num();
    for wr_id in [1, 2] {
        host.receive(&older, wr_id);
    }
    // Its receives are flushed when it is dropped.
    drop(older);
    let mut numbers = (0..1024).map(|_| host.qp());
    let qp = numbers.find(|qp| qp.qp_num() == number).unwrap();
    host.receive(&qp, 3);
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    qp.modify(&reset.discard_completions()).unwrap();
    host.receive(&qp, 4);
    qp.destroy_with_completions(None).unwrap();
    let left = [(); 2].map(|()| {
        let completion = host.cq.next();
        (completion.wr_id, completion.status)
    });
    assert_eq!(left, [(1, Status::WrFlush), (2, Status::WrFlush)]);
    host.cq.assert_empty();
}
