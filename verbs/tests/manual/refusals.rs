//! Calls on a device with manual progress: some do not wait, and others are refused.

use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::ManualClock;
use uwarp_verbs::{
    ChannelError, CmWaitError, ConnectError, ConnectOptions, Device, DeviceError, ListenError,
    QpState, RequestError, Settings, TimeSource,
};

use crate::{SERVER, World};

/// The device is not driven during these calls, so a wait would never end.
#[test]
fn no_call_of_a_device_by_hand_sleeps() {
    let world = World::new();
    let [a, b] = &world.sides;
    let addr = SERVER.parse().unwrap();
    let listener = b.device.listen(addr).unwrap();
    assert!(a.send_cq.wait(None).is_none());
    assert!(a.device.wait_event(None).is_none());
    assert!(a.device.get_event(None).is_none());
    let waited = Duration::ZERO;
    let error = listener.wait_request(None).unwrap_err();
    assert_eq!(error, ListenError::TimedOut { waited });
    drop(listener);
    let _ids = world.connect();
    assert!(!a.qp.wait_closed(Duration::MAX));
    let error = world.channel.get_event(None).unwrap_err();
    assert!(
        matches!(error, CmWaitError::TimedOut(Duration::ZERO)),
        "{error:?}"
    );
    let channel = a.device.create_channel().unwrap();
    let _cq = a.device.create_cq_on(4, &channel, 0).unwrap();
    let error = channel.get_event(None).unwrap_err();
    assert!(
        matches!(error, ChannelError::TimedOut(Duration::ZERO)),
        "{error:?}"
    );
}

#[test]
fn what_can_only_wait_is_refused_before_anything_has_begun() {
    let world = World::new();
    let [a, b] = &world.sides;
    let listener = b.device.listen(SERVER.parse().unwrap()).unwrap();
    let options = ConnectOptions::default();
    let error = a.qp.connect(listener.local_addr(), &options).unwrap_err();
    assert!(matches!(error, ConnectError::WouldWait(_)), "{error:?}");
    assert!(error.to_string().contains("CmId"), "{error}");
    let stream = || {
        world.networks[0]
            .connect(None, listener.local_addr())
            .unwrap()
    };
    let error = a.qp.connect_over(stream(), &options).unwrap_err();
    assert!(matches!(error, ConnectError::WouldWait(_)), "{error:?}");
    let error = a.device.request_over(stream(), &[]).unwrap_err();
    assert!(matches!(error, RequestError::WouldWait(_)), "{error:?}");
    assert_eq!(a.qp.state(), QpState::Idle);
}

#[test]
fn a_clock_that_is_given_needs_a_device_by_hand() {
    let settings = Settings::default().clock(TimeSource::Given(Arc::new(ManualClock::new())));
    let network = Arc::new(KernelNetwork::default());
    let error = Device::open(network, settings).unwrap_err();
    assert!(matches!(error, DeviceError::ClockNeedsManual), "{error:?}");
}
