//! Options of a new QP, and the attributes that it reports.

use super::*;

#[test]
fn a_qp_tells_what_it_was_made_with() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let caps = QpCaps::default().max_send_wr(7).max_recv_sge(2);
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let builder = pd.qp().caps(caps).access(access).signal_all(true);
    let qp = builder.context(0x1234_5678_9ABC).build(&cq, &cq).unwrap();
    let init = qp.init_attr();
    assert_eq!((init.caps.max_send_wr, init.caps.max_recv_sge), (7, 2));
    assert_eq!((init.access, init.signal_all), (access, true));
    assert_eq!(qp.context(), 0x1234_5678_9ABC);
    let attr = qp.query();
    assert_eq!((attr.state, attr.access), (QpState::Idle, access));
    assert_eq!(
        (attr.ird, attr.ord, attr.local, attr.peer),
        (0, 0, None, None)
    );
}

/// By default, as in all verbs, a QP allows everything that a region allows.
#[test]
fn a_qp_made_without_more_words_has_all_rights_and_no_context() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let init = qp.init_attr();
    assert_eq!(
        (init.access, init.signal_all, init.context),
        (Access::ALL, false, 0)
    );
    assert_eq!(qp.query().access, Access::ALL);
}

#[test]
fn a_connected_qp_tells_what_was_negotiated_and_where_it_is() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        (setup.connect.ird, setup.connect.ord) = (3, 5);
        let (a, b) = setup.connected();
        let (one, other) = (a.qp.query(), b.qp.query());
        assert_eq!((one.state, other.state), (QpState::Rts, QpState::Rts));
        assert_eq!((one.ird, one.ord), (3, 5));
        // The responder's IRD is its own 16. Its ORD is lowered to the initiator's IRD.
        assert_eq!((other.ird, other.ord), (16, 3));
        assert_eq!((one.local, one.peer), (other.peer, other.local));
        assert!(one.local.is_some() && one.peer.is_some());
    }
}

/// With `sq_sig_all` even an unsignaled request has a completion.
#[test]
fn with_signal_all_an_unsignaled_request_completes_too() {
    let setup = Setup::new(Wire::MEMORY);
    let ends = setup.unconnected();
    let (a, b) = (&ends.a, &ends.b);
    let qp =
        a.pd.qp()
            .signal_all(true)
            .build(&a.send_cq, &a.recv_cq)
            .unwrap();
    join(&ends.listener, &qp, &b.qp, &setup.connect, &setup.accept);
    b.post_empty(1);
    qp.post_send(&SendWr::send(7, &[]).unsignaled()).unwrap();
    a.send_cq.success(7);
    b.recv_cq.success(1);
}

#[test]
fn numbers_of_qps_are_those_of_their_device() {
    let made = |device: &Device| {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
        let qps = [(); 3].map(|()| pd.create_qp(&cq, &cq, QpCaps::default()).unwrap());
        qps.map(|qp| qp.qp_num())
    };
    let numbers = made(&Device::tcp().unwrap());
    assert_eq!(numbers, made(&Device::tcp().unwrap()));
    assert_eq!(numbers, [2, 3, 4]);
}
