//! A network that has a thread, and joins the thread on drop.

use std::net::IpAddr;
use std::sync::Arc;

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::ethernet::{EthernetNetwork, LinkSettings};

use super::*;

pub(super) fn a_link_with_a_thread_of_its_own() {
    let host =
        |last| LinkSettings::default().addresses(vec![(IpAddr::from([192, 0, 2, last]), 24)]);
    let cable = || EthernetNetwork::cable(&host(1), &host(2)).unwrap();
    // The network is used without a device.
    let bare = used_and_dropped_in_a_child(cable(), |_| ());
    drop(bare);

    let (first, second, plug) = cable();
    let networks: [Arc<dyn Network>; 2] = [Arc::new(first), Arc::new(second)];
    let at = "192.0.2.2:7174".parse().unwrap();
    let ends = Setup::new(Wire::MEMORY)
        .peer_to_peer()
        .unconnected_over(networks, at);
    ends.join();
    both_ways(&ends.a, &ends.b);
    let (ends, _plug) = used_and_dropped_in_a_child((ends, plug), |(ends, _)| {
        let device = &ends.a.device;
        // The device knows its limits without asking its network.
        assert_eq!(device.query().max_qp, Limits::default().max_qp);
        assert_eq!(device.query_port(1).unwrap().state, PortState::Down);
        assert_eq!(device.query_port(1).unwrap().gid_tbl_len, 1);
        let error = ends.a.qp.post_send(&SendWr::send(1, &[])).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::Inherited(Inherited));
        assert!(ends.listener.poll_request().is_none());
    });
    let port = ends.a.device.query_port(1).unwrap();
    assert_eq!(
        (port.state, port.gid_tbl_len > 1),
        (PortState::Active, true)
    );
    both_ways(&ends.a, &ends.b);
}
