//! Section 7: attacks between parts of the local program. They are in one process and share its
//! memory, but the library separates what it can.

use std::net::TcpListener;

use uwarp_verbs::{ConnectOptions, Device, DeviceError, PostErrorKind, QpCaps, RecvWr, SendWr};

use crate::peer::Peer;
use crate::scene::{Victim, loopback, settings};
use crate::wire::words;

/// A CQ serves only QPs of its own device. Whether QPs of one device share a CQ is the program's
/// choice.
#[test]
fn s7_1_cq_of_another_device() {
    let mut victim = Victim::new(settings());
    let foreign = Device::tcp().unwrap().create_cq(4).unwrap();
    for (send, receive) in [(&foreign, &victim.recv_cq), (&victim.send_cq, &foreign)] {
        let refused = victim.pd.create_qp(send, receive, QpCaps::default());
        let error = refused.unwrap_err();
        assert!(matches!(error, DeviceError::OtherDevice { .. }), "{error}");
    }
    victim.check_unharmed();
}

/// A part of the program asks for the whole IRD. It gets only what is available, and can see that
/// number (5042-7.2-01).
#[test]
fn s7_2_more_places_for_reads_than_are_left() {
    let mut settings = settings();
    settings.limits.max_ird = 16;
    settings.limits.max_ird_total = 32 + 5;
    let mut victim = Victim::new(settings);
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let (request, error) = std::thread::scope(|scope| {
        let qp = &victim.qp;
        let options = ConnectOptions::default().ird(1000).ord(1000);
        let connecting = scope.spawn(move || qp.connect(to, &options));
        let mut peer = Peer::accept(&listener);
        let request = peer.receive_startup();
        peer.fin();
        (request, connecting.join().unwrap().unwrap_err())
    });
    // The Request states an IRD of 5, and the largest ORD of one connection.
    assert_eq!(request[20..24], words(5, 128), "{error}");
    victim.reasons();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Connections of one domain ask for the whole IRD. Connections of another domain still get their
/// share.
#[test]
fn s7_2_more_places_for_reads_than_one_protection_domain_may_have() {
    let mut settings = settings();
    settings.limits.max_qp = 8;
    settings.limits.max_ird = 16;
    // The healthy connection, with both ends in the domain of the victim, uses 32.
    settings.limits.per_pd.max_ird_total = 32 + 5;
    let mut victim = Victim::new(settings);
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let domains = [(); 2].map(|()| victim.device.alloc_pd().unwrap());
    let [greedy, other] = &domains;
    let qps = [greedy, greedy, greedy, greedy, other].map(|pd| {
        let cq = &victim.recv_cq;
        pd.create_qp(cq, cq, QpCaps::default()).unwrap()
    });
    let options = ConnectOptions::default().ird(1000).ord(1000);
    std::thread::scope(|scope| {
        let mut held = Vec::new();
        for (qp, granted) in qps.iter().zip([16, 16, 5, 0, 16]) {
            let connecting = scope.spawn(|| qp.connect(to, &options));
            let mut peer = Peer::accept(&listener);
            assert_eq!(peer.receive_startup()[20..24], words(granted, 128));
            held.push((peer, connecting));
        }
        for (peer, connecting) in held {
            peer.fin();
            connecting.join().unwrap().unwrap_err();
        }
        // The domain's IRD was released.
        assert!(qps[0].reset());
        let connecting = scope.spawn(|| qps[0].connect(to, &options));
        let mut peer = Peer::accept(&listener);
        assert_eq!(peer.receive_startup()[20..24], words(16, 128));
        peer.fin();
        connecting.join().unwrap().unwrap_err();
    });
    drop(qps);
    victim.reasons();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Keys of another protection domain or another device are invalid in work requests.
#[test]
fn s7_3_memory_of_another_domain_in_a_work_request() {
    let mut victim = Victim::new(settings());
    let other = Device::tcp().unwrap();
    let region = other
        .alloc_pd()
        .unwrap()
        .register(vec![0; 64], uwarp_verbs::Access::LOCAL_WRITE)
        .unwrap();
    for sge in [
        victim.memory.foreign.sge(0, 8),
        victim.theirs.sge(0, 8),
        region.sge(0, 8),
    ] {
        let error = victim.qp.post_recv(&RecvWr::new(1, &[sge])).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
    }
    let mut outside = victim.memory.local.sge(0, 8);
    outside.addr = outside.addr.wrapping_sub(1);
    let error = victim
        .qp
        .post_recv(&RecvWr::new(1, &[outside]))
        .unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error}");
    let error = victim.qp.post_send(&SendWr::send(1, &[])).unwrap_err();
    assert!(
        matches!(error.kind, PostErrorKind::NotConnected { .. }),
        "{error}"
    );
    victim.check_unharmed();
}
