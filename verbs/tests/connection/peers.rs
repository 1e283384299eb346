//! Effects of the peer profile of Linux siw on connections between two of our devices.

use super::*;
use uwarp_verbs::Peer;

fn towards_siw(wire: Wire, rev: Revision) -> Setup {
    let mut setup = revision(wire, rev);
    for settings in &mut setup.settings {
        settings.peer = Peer::Siw;
    }
    setup
}

/// This profile sends the first FPDU 200 ms after the Reply, whether the program polls or not.
#[test]
fn everything_works_with_the_profile_of_siw() {
    for wire in Wire::BOTH {
        for (rev, _) in REVISIONS {
            let (a, b) = towards_siw(wire, rev).connected();
            exchange(&a, &b);
            let (a, b) = towards_siw(wire, Revision::Two).peer_to_peer().connected();
            exchange(&a, &b);
        }
    }
}

#[test]
fn the_ird_told_to_siw_is_a_power_of_two() {
    for wire in Wire::BOTH {
        let mut setup = towards_siw(wire, Revision::Two);
        (setup.connect.ird, setup.connect.ord) = (3, 5);
        (setup.accept.ird, setup.accept.ord) = (2, 100);
        let (a, b) = setup.connected();
        let (a, b) = (a.qp.connection().unwrap(), b.qp.connection().unwrap());
        // The Request's ORD of 5 raises the responder's IRD to 5, which is announced as 8.
        assert_eq!((a.ird, a.ord, b.ird, b.ord), (4, 5, 8, 4));
        assert_eq!((a.peer_ird, b.peer_ird), (Some(8), Some(4)));
    }
}

#[test]
fn private_data_that_siw_cannot_take_is_an_error_before_anything_is_sent() {
    for (rev, limit) in [(Revision::One, 255), (Revision::Two, 252)] {
        let mut setup = towards_siw(Wire::MEMORY, rev);
        setup.connect.private_data = vec![1; limit + 1];
        let ends = setup.unconnected();
        let to = ends.listener.local_addr();
        let error = ends.a.qp.connect(to, &setup.connect).unwrap_err();
        assert!(matches!(error, ConnectError::PrivateData(_)), "{error:?}");
        let said = error.to_string();
        assert!(
            said.contains(&format!("Linux siw takes at most {limit}")),
            "{said}"
        );
        assert_eq!(ends.a.qp.state(), QpState::Idle);

        // The longest private data that siw accepts is transferred in both directions.
        setup.connect.private_data.pop();
        setup.accept.private_data = vec![2; limit];
        let connected = join(
            &ends.listener,
            &ends.a.qp,
            &ends.b.qp,
            &setup.connect,
            &setup.accept,
        );
        assert_eq!(connected.private_data, vec![2; limit]);
    }
}

#[test]
fn an_accept_with_more_private_data_than_siw_takes_is_an_error_and_rejects() {
    let mut setup = towards_siw(Wire::MEMORY, Revision::Two);
    setup.accept.private_data = vec![2; 253];
    let ends = setup.unconnected();
    let to = ends.listener.local_addr();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.a.qp.connect(to, &setup.connect));
        let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
        let error = request.accept(&ends.b.qp, &setup.accept).unwrap_err();
        assert!(matches!(error, AcceptError::PrivateData(_)), "{error:?}");
        let rejected = connecting.join().unwrap().unwrap_err();
        assert!(
            matches!(&rejected, ConnectError::Rejected { private_data, .. } if private_data.is_empty()),
            "{rejected:?}"
        );
    });
}
