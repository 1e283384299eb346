//! Modify QP: the effect of each legal transition on a connection.

use super::*;
use uwarp_verbs::RemoteBuffer;

#[test]
fn modify_to_closing_is_a_graceful_close_that_sends_what_was_posted() {
    for by in [
        QpModify::new().state(QpState::Closing),
        QpModify::new().ibv_state(IbvQpState::Sqd),
    ] {
        let (a, b) = pair(Wire::Kernel);
        let sink = b.blank(5);
        b.post_whole(1, &sink);
        a.qp.post_send(&SendWr::send_inline(2, b"bye!!")).unwrap();
        a.qp.modify(&by).unwrap();
        a.send_cq.success(2);
        b.recv_cq.success(1);
        assert_eq!(content(&sink), b"bye!!");
        assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
        assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
    }
}

/// In the RDMA protocol verbs, this is an abortive end of the LLP stream, without a Terminate
/// Message.
#[test]
fn modify_to_error_resets_the_stream_flushes_at_once_and_sends_no_terminate() {
    for by in [
        QpModify::new().state(QpState::Error),
        QpModify::new().ibv_state(IbvQpState::Err),
    ] {
        let (a, mut peer) = with_peer();
        a.post_empty(1);
        a.qp.modify(&by).unwrap();
        assert_eq!(a.qp.state(), QpState::Error);
        let flushed = a.recv_cq.poll_one().unwrap();
        assert_eq!((flushed.wr_id, flushed.status), (1, Status::WrFlush));
        assert_eq!(seen(&mut peer), ("RST", vec![]));
        assert!(matches!(a.qp.end_reason(), Some(EndReason::Aborted)));
    }
}

/// The Terminate (RFC 5040 section 4.8) has layer RDMAP, local catastrophic error, code 0.
#[test]
fn modify_to_terminate_sends_a_terminate_and_closes_gracefully() {
    let (a, b) = pair(Wire::Kernel);
    both_ways(&a, &b);
    a.post_empty(1);
    to(&a, QpState::Terminate);
    a.recv_cq.flushed(1);
    match b.wait_end() {
        EndReason::TerminateReceived { terminate, .. } => assert_eq!(
            (terminate.layer(), terminate.etype(), terminate.code()),
            (0, 0, 0)
        ),
        other => panic!("{other}"),
    }
    match a.wait_end() {
        EndReason::LocalError { cause } => {
            assert!(
                cause.to_string().contains("moved the queue pair"),
                "{cause}"
            );
        }
        other => panic!("{other}"),
    }
}

#[test]
fn an_idle_qp_moved_to_error_flushes_its_receives_and_is_reset_to_be_used() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    ends.a.post_empty(1);
    to(&ends.a, QpState::Error);
    ends.a.recv_cq.flushed(1);
    ends.a.post_empty(2);
    ends.a.recv_cq.flushed(2);
    assert!(ends.a.qp.end_reason().is_none(), "there was no connection");
    to(&ends.a, QpState::Idle);
    ends.join();
    both_ways(&ends.a, &ends.b);
}

#[test]
fn ibv_reset_ends_a_connection_that_stands_and_leaves_an_idle_qp() {
    let (a, mut peer) = with_peer();
    a.post_empty(1);
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    a.qp.modify(&reset).unwrap();
    assert_eq!(a.qp.query().ibv_state, IbvQpState::Reset);
    a.recv_cq.flushed(1);
    assert_eq!(seen(&mut peer).0, "RST");
    let again = raw_peer(&a.qp);
    assert_eq!(a.qp.state(), QpState::Rts);
    drop(again);
}

/// Programs for libibverbs make these transitions around `rdma_connect`. On iWARP the CM has
/// already made them.
#[test]
fn init_rtr_and_rts_around_a_connect_change_nothing() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let qp = &ends.a.qp;
    let by = |state| QpModify::new().ibv_state(state);
    assert_eq!(qp.query().ibv_state, IbvQpState::Reset);
    qp.modify(&by(IbvQpState::Init).access(Access::ALL))
        .unwrap();
    assert_eq!(qp.query().ibv_state, IbvQpState::Init);
    let error = qp.modify(&by(IbvQpState::Rtr)).unwrap_err();
    assert!(error.to_string().contains("connect or accept"), "{error}");
    ends.join();
    qp.modify(&by(IbvQpState::Rtr)).unwrap();
    qp.modify(&by(IbvQpState::Rts)).unwrap();
    assert_eq!(qp.query().ibv_state, IbvQpState::Rts);
    both_ways(&ends.a, &ends.b);
}

#[test]
fn an_illegal_move_changes_nothing_and_names_the_legal_ones() {
    let (a, b) = pair(Wire::MEMORY);
    let wanted = QpModify::new().state(QpState::Idle).access(Access::NONE);
    let error = a.qp.modify(&wanted).unwrap_err();
    let ModifyError::Illegal { from, to, legal } = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (from, to),
        (QpState::Rts, WantedState::Verbs(QpState::Idle))
    );
    assert!(legal.contains(&WantedState::Verbs(QpState::Closing)));
    assert_eq!(a.qp.query().access, Access::ALL);
    both_ways(&a, &b);
}

#[test]
fn a_move_from_a_named_state_happens_only_in_that_state() {
    let (a, _b) = pair(Wire::MEMORY);
    let from = |state| QpModify::new().current(state).access(Access::NONE);
    let error = a.qp.modify(&from(QpState::Idle)).unwrap_err();
    let (expected, is) = (QpState::Idle, QpState::Rts);
    assert_eq!(error, ModifyError::NotInState { expected, is });
    a.qp.modify(&from(QpState::Rts)).unwrap();
    assert_eq!(a.qp.query().access, Access::NONE);
}

#[test]
fn a_reset_restores_the_rights_that_the_qp_was_made_with() {
    let a = side();
    a.qp.modify(&QpModify::new().access(Access::NONE)).unwrap();
    assert_eq!(a.qp.query().access, Access::NONE);
    assert!(a.qp.reset());
    assert_eq!(a.qp.query().access, Access::ALL);
}

#[test]
fn a_send_queue_that_is_drained_says_so() {
    let (a, peer) = with_peer();
    let sink = a.blank(8);
    let sges = [sink.sge(0, 8)];
    let read = SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 7));
    a.qp.post_send(&read).unwrap();
    assert!(!a.qp.query().sq_draining);
    a.qp.disconnect();
    let attr = a.qp.query();
    assert_eq!((attr.ibv_state, attr.sq_draining), (IbvQpState::Sqd, true));
    drop(peer);
    a.wait_end();
    assert!(!a.qp.query().sq_draining);
}

/// Posts a Send, which `b` holds because it has no receive, and an atomic after it. The QP of `b`
/// has these rights. Returns both sides, the word of the atomic, and its sink.
fn word_behind_a_held_message(access: Access) -> (Side, Side, MemoryRegion, MemoryRegion) {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[1].on_no_receive = OnNoReceive::Hold(Duration::from_secs(600));
    let (a, b) = setup.connected();
    b.qp.modify(&QpModify::new().access(access)).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let (word, found) = (b.pd.register(vec![0; 8], rights).unwrap(), a.blank(8));
    let sges = [found.sge(0, 8)];
    let remote = word.remote();
    let add = SendWr::fetch_add(2, &sges, RemoteBuffer::at(remote.addr, remote.rkey), 1);
    a.qp.post_send_list(&[SendWr::send(1, &[]), add]).unwrap();
    a.send_cq.success(1);
    (a, b, word, found)
}

/// Returns all rights except `right`.
fn all_but(right: Access) -> Access {
    [
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
        Access::REMOTE_ATOMIC,
    ]
    .into_iter()
    .filter(|each| *each != right)
    .fold(Access::NONE, |all, each| all | each)
}

#[test]
fn a_right_that_is_taken_away_is_missed_by_an_atomic_that_waits_behind_a_message_on_hold() {
    let (a, b, word, found) = word_behind_a_held_message(Access::ALL);
    let without = QpModify::new().access(all_but(Access::REMOTE_ATOMIC));
    b.qp.modify(&without).unwrap();
    // The atomic has no effect before the message ahead of it is received.
    assert_eq!(b.qp.state(), QpState::Rts);
    b.post_empty(3);
    b.recv_cq.success(3);
    let done = a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (2, Status::RemoteAccess));
    let words = b.wait_end().to_string();
    assert!(
        words.contains("allows this access, but the QP does not"),
        "{words}"
    );
    assert_eq!(content(&word), [0; 8]);
    assert_eq!(content(&found), [FILL; 8]);
}

#[test]
fn a_right_that_is_given_serves_an_atomic_that_waits_behind_a_message_on_hold() {
    let (a, b, word, found) = word_behind_a_held_message(all_but(Access::REMOTE_ATOMIC));
    b.qp.modify(&QpModify::new().access(Access::ALL)).unwrap();
    b.post_empty(3);
    b.recv_cq.success(3);
    a.send_cq.success(2);
    assert_eq!(content(&word), 1u64.to_ne_bytes());
    assert_eq!(content(&found), [0; 8]);
}
