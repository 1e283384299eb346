//! Tables of every way to end a connection, for every state of the QP.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Shutdown;

use super::*;

/// Event that ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Disconnect,
    Abort,
    ModifyError,
    ModifyTerminate,
    Drop,
    PeerFin,
    PeerReset,
}

/// Events that are allowed in every state.
const WAYS: [Way; 6] = [
    Way::Disconnect,
    Way::Abort,
    Way::ModifyError,
    Way::Drop,
    Way::PeerFin,
    Way::PeerReset,
];

/// Result of an end in three texts: state and reason, status of a receive, and end as the peer sees
/// it.
struct Outcome {
    end: String,
    receive: String,
    peer: String,
}

fn reason(qp: &Qp) -> String {
    qp.end_reason().map_or("no reason".to_owned(), |reason| {
        let text = format!("{reason:?}");
        let name = text.split([' ', '{']).next().unwrap_or_default();
        name.to_owned()
    })
}

/// Ends the connection of `a` by `way` and returns the outcome. If there is a `stream`, the peer
/// reads it to the end and then closes.
fn end(a: Side, stream: Option<TcpStream>, way: Way) -> Outcome {
    let Side {
        qp,
        recv_cq,
        device: _device,
        ..
    } = a;
    let mut qp = Some(qp);
    let mut stream = stream;
    if let Some(qp) = &qp {
        match way {
            Way::Disconnect => qp.disconnect(),
            Way::Abort => qp.abort(),
            Way::ModifyError => qp.modify(&QpModify::new().state(QpState::Error)).unwrap(),
            Way::ModifyTerminate => {
                let terminate = QpModify::new().state(QpState::Terminate);
                qp.modify(&terminate).unwrap();
            }
            Way::PeerFin => {
                if let Some(stream) = &stream {
                    // After a reset by our side the shutdown fails.
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
            Way::PeerReset => stream.take().map_or((), cut),
            Way::Drop => {}
        }
    }
    if way == Way::Drop {
        qp = None;
    }
    let peer = stream.map_or("-".to_owned(), |mut stream| {
        let (end, bytes) = seen(&mut stream);
        let said = if bytes.is_empty() { "" } else { "Terminate, " };
        format!("{said}{end}")
    });
    let end = qp.as_ref().map_or("gone".to_owned(), |qp| {
        assert!(qp.wait_closed(LIMIT));
        format!("{} {}", qp.state(), reason(qp))
    });
    // The receive was posted before the end. Its completion has arrived by now.
    let receive = recv_cq.poll_one();
    Outcome {
        end,
        receive: receive.map_or("waits".to_owned(), |done| format!("{:?}", done.status)),
        peer,
    }
}

/// Creates a side whose QP is in `state` with one receive posted, and its peer.
fn in_state(state: QpState) -> (Side, Option<TcpStream>) {
    if state == QpState::Idle {
        let a = side();
        a.post_empty(1);
        return (a, None);
    }
    let (a, stream) = with_peer();
    if state != QpState::Rts {
        to(&a, state);
    }
    a.post_empty(1);
    assert_eq!(a.qp.state(), state);
    (a, Some(stream))
}

/// Tests every state but `Connecting`, which has a test of its own. The end of the connection must
/// flush the posted receive.
#[test]
fn close_in_every_state() {
    let states = [
        QpState::Idle,
        QpState::Rts,
        QpState::Closing,
        QpState::Terminate,
        QpState::Error,
    ];
    let mut table = String::new();
    for state in states {
        writeln!(table, "{state}").unwrap();
        for way in WAYS {
            let (a, stream) = in_state(state);
            let Outcome { end, receive, peer } = end(a, stream, way);
            let way = format!("{way:?}");
            writeln!(
                table,
                "    {way:12} -> {end:24} receive: {receive:8} peer sees: {peer}"
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

/// Creates a side that has accepted, and whose initiator has sent no FPDU. The side may not send
/// anything yet (5044-7.1.2-15). `close` is the limit of a graceful close.
fn accepted(close: Duration) -> (Side, TcpStream) {
    let mut settings = raw_settings();
    settings.timeouts.close = close;
    let a = Side::new(
        Device::tcp_with(settings, None).unwrap(),
        QpCaps::default(),
        64,
    );
    let listener = a.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
        .write_all(b"MPA ID Req Frame\x00\x01\x00\x00")
        .unwrap();
    let request = listener.wait_request(Some(LIMIT)).unwrap();
    request.accept(&a.qp, &AcceptOptions::default()).unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
    a.post_empty(1);
    assert_eq!(a.qp.state(), QpState::Rts);
    (a, stream)
}

#[test]
fn close_of_a_responder_that_may_not_send_yet() {
    let mut table = String::new();
    let ways = WAYS.into_iter().chain([Way::ModifyTerminate]);
    for way in ways {
        // A disconnect waits for the initiator's first FPDU, and then sends the posted requests.
        // The wait is limited.
        let close = if way == Way::Disconnect {
            Duration::from_millis(100)
        } else {
            LIMIT
        };
        let (a, stream) = accepted(close);
        a.qp.post_send(&SendWr::send_inline(2, b"early")).unwrap();
        let send_cq = a.send_cq.clone();
        let Outcome { end, receive, peer } = end(a, Some(stream), way);
        let send = send_cq.poll_one().unwrap();
        assert_eq!(send.wr_id, 2);
        let (way, send) = (format!("{way:?}"), format!("{:?}", send.status));
        writeln!(
            table,
            "{way:15} -> {end:22} receive: {receive:8} send: {send:8} peer sees: {peer}"
        )
        .unwrap();
    }
    insta::assert_snapshot!(table);
}

/// MPA startup is in progress: the peer has received the Request and sends no Reply.
#[test]
fn close_while_connecting() {
    let mut table = String::new();
    for way in WAYS {
        if way == Way::Drop {
            // A QP that a blocking connect borrows cannot be dropped.
            continue;
        }
        let a = side();
        a.post_empty(1);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (error, peer) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| a.qp.connect(addr, &ConnectOptions::default()));
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.read_exact(&mut [0; 20]).unwrap();
            assert_eq!(a.qp.state(), QpState::Connecting);
            let mut stream = Some(stream);
            match way {
                Way::Disconnect => a.qp.disconnect(),
                Way::Abort => a.qp.abort(),
                Way::ModifyError => to(&a, QpState::Error),
                Way::PeerFin => {
                    let stream = stream.as_ref().unwrap();
                    stream.shutdown(Shutdown::Write).unwrap();
                }
                Way::PeerReset => cut(stream.take().unwrap()),
                Way::Drop | Way::ModifyTerminate => unreachable!(),
            }
            let error = connecting.join().unwrap().unwrap_err();
            let peer = stream.map_or("-", |mut stream| seen(&mut stream).0);
            (error, peer)
        });
        a.recv_cq.flushed(1);
        let (state, reason) = (a.qp.state(), reason(&a.qp));
        let error = format!("{error:?}");
        let error = error.split([' ', '{']).next().unwrap();
        let way = format!("{way:?}");
        writeln!(
            table,
            "{way:12} -> {state} {reason:16} connect: {error:8} peer sees: {peer}"
        )
        .unwrap();
    }
    insta::assert_snapshot!(table);
}

#[test]
fn abort_of_a_qp_without_a_connection_does_nothing() {
    let a = side();
    a.post_empty(1);
    a.qp.abort();
    assert_eq!(a.qp.state(), QpState::Idle);
    a.recv_cq.assert_empty();
    let peer = raw_peer(&a.qp);
    assert_eq!(a.qp.state(), QpState::Rts);
    drop(peer);
}
