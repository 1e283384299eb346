//! The listener as a queue: one call waits for requests and failed startups, and the wait can end
//! early.

use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use uwarp_verbs::llp::ethernet::{EthernetNetwork, LinkSettings};
use uwarp_verbs::{
    Arrival, ConnectError, Device, ListenError, RejectOptions, Settings, StartupError,
};

use super::*;

#[test]
fn one_wait_tells_requests_and_failed_startups() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    let to = ends.listener.local_addr();
    let mut stranger = TcpStream::connect(to).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    match ends.listener.wait_arrival(Some(LIMIT)).unwrap() {
        Arrival::Failed { peer, error } => {
            assert_eq!(peer, stranger.local_addr().unwrap());
            assert!(matches!(error, StartupError::NotMpa { .. }), "{error}");
        }
        other => panic!("{other:?}"),
    }
    std::thread::scope(|scope| {
        scope.spawn(|| ends.a.qp.connect(to, &Default::default()));
        match ends.listener.wait_arrival(Some(LIMIT)).unwrap() {
            Arrival::Request(request) => drop(request),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_wait_for_requests_ends_when_the_link_fails() {
    let host =
        |last| LinkSettings::default().addresses(vec![(IpAddr::from([192, 0, 2, last]), 24)]);
    let (_first, second, cable) = EthernetNetwork::cable(&host(1), &host(2)).unwrap();
    let device = Device::open(Arc::new(second), Settings::default()).unwrap();
    let listener = device.listen("192.0.2.2:7174".parse().unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| listener.wait_request(None));
        cable.unplug();
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(error, ListenError::Down { .. }), "{error:?}");
        assert!(error.to_string().contains("link is down"), "{error}");
    });
    assert!(listener.fault().is_some());
}

/// RFC 6581 section 9.1: a responder that needs more Reads than the initiator's IRD allows reports
/// the number.
#[test]
fn a_reject_tells_how_many_reads_the_responder_needs_outstanding() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let to = ends.listener.local_addr();
            ends.a.qp.connect(to, &Default::default())
        });
        let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
        let options = RejectOptions::default()
            .private_data(b"more".to_vec())
            .ord_needed(Some(64));
        request.reject_with(&options).unwrap();
        let error = connecting.join().unwrap().unwrap_err();
        let ConnectError::Rejected {
            private_data,
            ord_needed,
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!((&private_data[..], *ord_needed), (&b"more"[..], Some(64)));
    });
}
