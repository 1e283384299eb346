//! A device over an Ethernet link. It works as over any network, and informs its program when the
//! link fails.

mod common;

use std::net::IpAddr;
use std::sync::Arc;

use common::{LIMIT, Side, join};
use uwarp_verbs::llp::LlpError;
use uwarp_verbs::llp::ethernet::{Cable, EthernetNetwork, LinkSettings};
use uwarp_verbs::{
    AcceptOptions, AsyncEvent, ConnectOptions, Device, DeviceError, EndReason, Listener, QpCaps,
    QpState, SendWr, Settings,
};

fn host(last: u8) -> LinkSettings {
    LinkSettings::default().addresses(vec![(IpAddr::from([192, 0, 2, last]), 24)])
}

/// Connects two devices with a cable. The second one listens.
fn sides() -> (Side, Side, Listener, Cable) {
    let (a, b, cable) = EthernetNetwork::cable(&host(1), &host(2)).unwrap();
    let side = |network| {
        let device = Device::open(Arc::new(network), Settings::default()).unwrap();
        Side::new(device, QpCaps::default(), 16)
    };
    let (a, b) = (side(a), side(b));
    let listener = b.device.listen("192.0.2.2:7174".parse().unwrap()).unwrap();
    (a, b, listener, cable)
}

#[test]
fn messages_cross_an_ethernet() {
    let (a, b, listener, _cable) = sides();
    let options = (ConnectOptions::default(), AcceptOptions::default());
    join(&listener, &a.qp, &b.qp, &options.0, &options.1);
    let (source, sink) = (a.filled(1, 300_000), b.blank(300_000));
    b.post_whole(7, &sink);
    let sges = [source.sge(0, 300_000)];
    a.qp.post_send(&SendWr::send(1, &sges)).unwrap();
    a.send_cq.success(1);
    b.recv_cq.success(7);
    assert!(common::content(&sink) == common::content(&source));
}

#[test]
fn a_link_that_fails_is_told_once_and_every_connection_is_flushed() {
    let (a, b, listener, cable) = sides();
    let options = (ConnectOptions::default(), AcceptOptions::default());
    join(&listener, &a.qp, &b.qp, &options.0, &options.1);
    let (mine, theirs) = (a.blank(8), b.blank(8));
    for wr_id in [1, 2] {
        a.post_whole(wr_id, &mine);
        b.post_whole(wr_id, &theirs);
    }
    cable.unplug();

    for side in [&a, &b] {
        side.recv_cq.flushed(1);
        side.recv_cq.flushed(2);
        assert_eq!(side.qp.state(), QpState::Error);
        let (mut fatal, mut lost) = (Vec::new(), Vec::new());
        while fatal.is_empty() || lost.is_empty() {
            match side.device.wait_event(Some(LIMIT)).expect("no event came") {
                AsyncEvent::DeviceFatal { error } => fatal.push(error),
                AsyncEvent::Ended {
                    qp_num,
                    reason: EndReason::LlpLost { error },
                } => lost.push((qp_num, error)),
                AsyncEvent::Established { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(fatal[0], LlpError::LinkDown { .. }), "{fatal:?}");
        assert_eq!(lost, [(side.qp.qp_num(), fatal[0])]);

        // After the failure every operation reports its reason.
        let to = "192.0.2.2:7174";
        let another = side.another_qp();
        let error = another.connect(to, &options.0).unwrap_err();
        assert!(error.to_string().contains("unplugged"), "{error}");
        let error = side.device.listen("0.0.0.0:1".parse().unwrap()).err();
        assert!(
            matches!(error, Some(DeviceError::Network(error)) if error == fatal[0]),
            "{error:?}"
        );
        while let Some(event) = side.device.poll_event() {
            assert!(
                !matches!(event, AsyncEvent::DeviceFatal { .. }),
                "reported twice"
            );
        }
    }
}

#[test]
fn a_device_opened_on_a_link_that_has_failed_is_told_of_it() {
    let (a, _b, cable) = EthernetNetwork::cable(&host(1), &host(2)).unwrap();
    cable.unplug();
    let device = Device::open(Arc::new(a), Settings::default()).unwrap();
    let event = device.wait_event(Some(LIMIT));
    assert!(
        matches!(event, Some(AsyncEvent::DeviceFatal { .. })),
        "{event:?}"
    );
}

#[test]
fn an_address_in_use_elsewhere_is_told_and_is_not_fatal() {
    let (a, _b, _cable) = EthernetNetwork::cable(&host(1), &host(1)).unwrap();
    let device = Device::open(Arc::new(a), Settings::default()).unwrap();
    let event = device.wait_event(Some(LIMIT));
    let Some(AsyncEvent::AddressConflict { error }) = event else {
        panic!("{event:?}");
    };
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
}
