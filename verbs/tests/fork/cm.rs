//! The connection manager and its channels, which the child inherits.

use super::*;

/// Forks with a listening id that has a pending request, a connecting id, and events that are not
/// fetched.
pub(super) fn the_connection_manager() {
    let (a, b) = pair(Wire::Kernel);
    let channels = [(); 2].map(|()| EventChannel::new().unwrap());
    let (listener, client) = (
        channels[0].create_id(&b.device, 1),
        channels[1].create_id(&a.device, 2),
    );
    listener.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(4).unwrap();
    client
        .resolve_addr(None, listener.local_addr().unwrap())
        .unwrap();
    let resolved = channels[1].get_event(Some(LIMIT)).unwrap();
    client.resolve_route().unwrap();
    drop(channels[1].get_event(Some(LIMIT)).unwrap());
    let ours = a.another_qp();
    client.connect(&ours, &ConnectOptions::default()).unwrap();
    until("the request", || readable(channels[0].as_fd()));

    let objects = (channels, listener, client, resolved, ours);
    let objects = used_and_dropped_in_a_child(objects, |(channels, listener, client, event, _)| {
        for channel in channels {
            assert!(channel.try_get_event().is_none() && channel.waiting() == 0);
            let error = channel.get_event(None).unwrap_err();
            assert!(matches!(error, CmWaitError::Inherited(_)), "{error}");
        }
        assert_eq!(event.kind(), CmEventKind::AddrResolved);
        let inherited = |result: Result<(), CmError>| {
            let error = result.unwrap_err();
            assert!(matches!(error, CmError::Inherited(_)), "{error}");
        };
        let addr = "127.0.0.1:1".parse().unwrap();
        for id in [listener, client, &channels[0].create_id(&b.device, 3)] {
            assert_eq!(id.state(), CmState::Destroyed);
            assert!(id.local_addr().is_none() && id.peer_addr().is_none());
            assert!(id.qp_num().is_none() && id.poll_failure().is_none());
            assert_eq!(id.lost_failures(), 0);
            inherited(id.bind_addr(addr));
            inherited(id.resolve_addr(None, addr));
            inherited(id.resolve_route());
            inherited(id.listen(1));
            inherited(id.connect(&a.qp, &ConnectOptions::default()));
            inherited(id.accept(&b.qp, &AcceptOptions::default()));
            inherited(id.reject(&RejectOptions::default()));
            inherited(id.disconnect());
            inherited(id.migrate(&channels[1]));
            inherited(id.destroy(None));
            inherited(id.wait_acknowledged(None));
            inherited(id.channel().map(drop));
            id.ack_events(1);
        }
    });
    let (channels, listener, client, resolved, ours) = objects;
    // In the parent the event is still unacknowledged, and the request is still pending.
    let none = Some(Duration::ZERO);
    let error = client.wait_acknowledged(none).unwrap_err();
    assert!(matches!(error, CmError::Unacknowledged { events: 1 }));
    drop(resolved);
    client.wait_acknowledged(none).unwrap();
    let request = channels[0].get_event(Some(LIMIT)).unwrap();
    let theirs = b.another_qp();
    request
        .id()
        .accept(&theirs, &AcceptOptions::default())
        .unwrap();
    let event = channels[1].get_event(Some(LIMIT)).unwrap();
    assert_eq!(event.kind(), CmEventKind::Established);
    assert_eq!(listener.state(), CmState::Listening);
    drop(ours);
}

/// A device that the child opens cannot send its events to a channel of the parent.
pub(super) fn new_objects_on_channels_of_the_parent() {
    let (a, b) = pair(Wire::Kernel);
    let events = EventChannel::new().unwrap();
    let completions = a.device.create_channel().unwrap();
    in_a_child(|| {
        let device = Device::tcp().unwrap();
        let error = device
            .create_cq_on(1, &completions, 0)
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
        let id = events.create_id(&device, 1);
        let addr = "127.0.0.1:0".parse().unwrap();
        let error = id.bind_addr(addr).unwrap_err();
        assert!(matches!(error, CmError::Inherited(_)), "{error}");
        // An id cannot migrate to a channel of the parent either.
        let own = EventChannel::new().unwrap();
        let id = own.create_id(&device, 2);
        let error = id.migrate(&events).unwrap_err();
        assert!(matches!(error, CmError::Inherited(_)), "{error}");
        id.resolve_addr(None, "127.0.0.1:1").unwrap();
        assert_eq!(own.waiting(), 1);
    });
    assert!(!readable(events.as_fd()) && events.waiting() == 0);
    both_ways(&a, &b);
}
