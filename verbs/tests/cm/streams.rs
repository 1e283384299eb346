//! Streams that the program has connected itself, with bytes read in advance. None of the tested
//! calls that take a stream waits for the peer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use uwarp_verbs::llp::Llp;
use uwarp_verbs::{ConnectError, StreamOptions};

use super::*;

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn adopt(stream: TcpStream) -> Box<dyn Llp> {
    KernelNetwork::default().adopt(stream).unwrap()
}

#[test]
fn both_roles_come_over_a_stream_with_bytes_of_the_request_read_ahead() {
    const WHOLE: usize = 20 + 4 + 2;
    for taken in [0, 1, 20, WHOLE - 1, WHOLE] {
        let (a, b) = (Host::kernel(), Host::kernel());
        let (ours, mut theirs) = streams();
        let (from, to) = (ours.local_addr().unwrap(), ours.peer_addr().unwrap());
        let initiator = a.id(1);
        let options = ConnectOptions::default().private_data(b"hi".to_vec());
        initiator
            .connect_over(&a.side.qp, adopt(ours), &options)
            .unwrap();
        let mut read = vec![0; taken];
        theirs.read_exact(&mut read).unwrap();
        let responder = b.id(2);
        responder.request_over(adopt(theirs), &read).unwrap();
        let event = b.next(CmEventKind::ConnectRequest);
        assert_eq!(event.private_data(), b"hi", "{taken} bytes read before");
        assert!(event.listen_id().unwrap().is(&responder));
        event
            .id()
            .accept(&b.side.qp, &AcceptOptions::default())
            .unwrap();
        let child = event.id().clone();
        drop(event);
        drop(b.next(CmEventKind::Established));
        drop(a.next(CmEventKind::Established));
        assert_eq!(
            (initiator.local_addr(), initiator.peer_addr()),
            (Some(from), Some(to))
        );
        assert_eq!(
            (child.peer_addr(), child.local_addr()),
            (Some(from), Some(to))
        );
        both_ways(&a.side, &b.side);
        initiator.disconnect().unwrap();
        drop(a.next(CmEventKind::Disconnected));
        drop(b.next(CmEventKind::Disconnected));
    }
}

#[test]
fn what_comes_over_a_stream_and_is_no_request_is_an_event() {
    let host = Host::kernel();
    let (mut ours, theirs) = streams();
    ours.write_all(b" / HTTP/1.1\r\n\r\n").unwrap();
    let id = host.id(1);
    id.request_over(adopt(theirs), b"GET").unwrap();
    let event = host.next(CmEventKind::ConnectError);
    assert!(event.id().is(&id));
    let words = event.reason().unwrap().to_string();
    assert!(words.contains("GET"), "{words}");

    // The id may be used for another stream.
    assert_eq!(id.state(), CmState::Idle);
    let (ours, theirs) = streams();
    id.request_over(adopt(theirs), &[]).unwrap();
    drop(ours);
    assert_eq!(
        host.next(CmEventKind::Rejected).status(),
        status(Errno::CONNRESET)
    );
}

#[test]
fn an_id_that_failed_over_a_stream_is_an_id_as_any_other() {
    let host = Host::kernel();
    let (ours, theirs) = streams();
    drop(theirs);
    let id = host.id(1);
    id.connect_over(&host.side.qp, adopt(ours), &ConnectOptions::default())
        .unwrap();
    drop(host.next(CmEventKind::Rejected));
    assert_eq!(id.state(), CmState::Idle);
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    id.resolve_addr(None, nobody).unwrap();
    drop(host.next(CmEventKind::AddrResolved));
    id.resolve_route().unwrap();
    drop(host.next(CmEventKind::RouteResolved));
    assert!(host.side.qp.wait_closed(LIMIT) && host.side.qp.reset());
    id.connect(&host.side.qp, &ConnectOptions::default())
        .unwrap();
    drop(host.next(CmEventKind::Rejected));
    // The id may try again to connect.
    assert_eq!(id.state(), CmState::RouteResolved);
}

#[test]
fn an_id_that_goes_while_it_waits_on_a_stream_rejects_what_comes() {
    let (a, b) = (Host::kernel(), Host::kernel());
    let (ours, theirs) = streams();
    let responder = b.id(1);
    responder.request_over(adopt(theirs), &[]).unwrap();
    drop(responder);
    let initiator = a.id(1);
    initiator
        .connect_over(&a.side.qp, adopt(ours), &ConnectOptions::default())
        .unwrap();
    drop(a.next(CmEventKind::Rejected));
    assert_eq!(initiator.state(), CmState::Idle);
    b.nothing_waits();
}

/// The programs have completed the startup themselves, and one of them has read bytes that follow
/// it.
#[test]
fn a_qp_attaches_to_a_stream_in_full_operation_with_bytes_read_ahead() {
    let settings = StreamOptions::default();
    for taken in [0, 1, 17, 24] {
        let (a, b) = (Host::kernel(), Host::kernel());
        let (ours, mut theirs) = streams();
        b.side.post_empty(9);
        a.side
            .qp
            .attach_stream(adopt(ours), &[], &settings)
            .unwrap();
        assert_eq!(a.side.qp.state(), QpState::Rts);
        a.side
            .qp
            .post_send(&uwarp_verbs::SendWr::send(1, &[]))
            .unwrap();
        // An empty Send is one FPDU of 24 bytes.
        let mut read = vec![0; taken];
        theirs.read_exact(&mut read).unwrap();
        let passive = settings.initiator(false);
        b.side
            .qp
            .attach_stream(adopt(theirs), &read, &passive)
            .unwrap();
        b.side.recv_cq.success(9);
        a.side.send_cq.success(1);
        both_ways(&b.side, &a.side);
        let info = b.side.qp.connection().unwrap();
        assert_eq!((info.crc, info.ird, info.ord), (true, 16, 16));
        let again = b.side.qp.attach_stream(adopt(streams().0), &[], &settings);
        assert!(
            matches!(again, Err(ConnectError::QpInUse { .. })),
            "{again:?}"
        );
        a.side.qp.disconnect();
        b.side.wait_end();
    }
}

#[test]
fn bytes_read_ahead_that_break_a_rule_end_the_connection() {
    let host = Host::kernel();
    let (_ours, theirs) = streams();
    let responder = StreamOptions::default().initiator(false);
    host.side
        .qp
        .attach_stream(adopt(theirs), &[0xFF; 64], &responder)
        .unwrap();
    let end = host.side.qp.end_reason().unwrap();
    assert!(
        matches!(end, uwarp_verbs::EndReason::TerminateSent { .. }),
        "{end}"
    );
}
