//! Replies that an initiator must not accept, and Requests that get no Reply (RFC 5044 section 7.1,
//! RFC 6581 sections 9 and 10).

use std::net::TcpListener;

use uwarp_verbs::{ConnectError, ConnectOptions, Connected, Revision, RtrKinds, Settings};

use crate::peer::Peer;
use crate::scene::{FENCED_SEND, READ, Scene, Sees, Victim, loopback, settings};
use crate::wire::{
    CRC, Code, ENHANCED, PEER_TO_PEER, REJECT, REPLY, REQUEST, RTR_READ, RTR_SEND, RTR_WRITE,
    startup, startup_claiming, words,
};

fn options() -> ConnectOptions {
    ConnectOptions::default().ird(4).ord(4)
}

fn peer_to_peer() -> ConnectOptions {
    options().peer_to_peer(true)
}

fn rtr(send: bool, write: bool, read: bool) -> Settings {
    settings().rtr(RtrKinds { send, write, read })
}

/// Connects our side with requests posted. `answer` acts as the peer after it has received the
/// Request. The connect must fail with an error that contains `words`.
fn fails(
    settings: Settings,
    options: &ConnectOptions,
    answer: impl FnOnce(&mut Peer, &TcpListener),
    sees: Sees,
    words: &str,
) {
    let mut victim = Victim::new(settings);
    victim.post_receives();
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let (peer, error) = std::thread::scope(|scope| {
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, options));
        let mut peer = Peer::accept(&listener);
        peer.receive_startup();
        // These requests wait until the connection is established.
        victim.post_sends_while_connecting();
        answer(&mut peer, &listener);
        (peer, connecting.join().unwrap().unwrap_err())
    });
    assert!(error.to_string().contains(words), "the error is: {error}");
    assert!(
        error.to_string().contains(&to.to_string()),
        "the error is: {error}"
    );
    victim.sends_were_posted_as(&[READ, FENCED_SEND]);
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(sees, words);
}

/// Connects to a peer that answers with `bytes`. Checks that the connect fails and that the peer
/// gets a FIN.
fn refuses(bytes: &[u8], words: &str) {
    fails(
        settings(),
        &options(),
        |peer, _| peer.send(bytes),
        Sees::Fin,
        words,
    );
}

/// Connects our side with an IRD and ORD of 4, to a peer that answers with these bytes.
fn answered(reply: &[u8]) -> (Scene, Result<Connected, ConnectError>) {
    let victim = Victim::new(settings());
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let (peer, connected) = std::thread::scope(|scope| {
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, &options()));
        let mut peer = Peer::accept(&listener);
        peer.receive_startup();
        peer.send(reply);
        (peer, connecting.join().unwrap())
    });
    let scene = Scene {
        victim,
        peer,
        msn: 1,
    };
    (scene, connected)
}

/// Value of IRD or ORD that leaves the depth to the programs.
const NO_AUTO: u16 = 0x3FFF;

/// Returns an enhanced Reply that accepts.
fn accepting(first: u16, second: u16) -> Vec<u8> {
    startup(REPLY, CRC | ENHANCED, 2, &words(first, second))
}

/// 5044-7.1.1-04, 5044-7.1.2-12, 5044-8-09: the peer does not speak iWARP, and the error shows what
/// the peer sent.
#[test]
pub(crate) fn peer_that_is_not_iwarp() {
    refuses(
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        "'HTTP/1.1 400 Bad Request', not an MPA Reply",
    );
    refuses(b"SSH-2.0-OpenSSH_9.2\r\n", "not an MPA Reply");
}

/// 5044-7.1.1-04: one byte of the Key is wrong.
#[test]
fn wrong_key() {
    for at in [0, 9, 15] {
        let mut reply = accepting(4, 4);
        reply[at] ^= 0x20;
        refuses(&reply, "not an MPA Reply");
    }
}

/// 5044-7.1.2-17: two initiators connected to each other.
#[test]
fn request_instead_of_a_reply() {
    refuses(
        &startup(REQUEST, CRC | ENHANCED, 2, &words(4, 4)),
        "both sides are connecting",
    );
}

/// 5044-7.1.1-14.
#[test]
fn wrong_revision() {
    for revision in [0, 3, 255] {
        refuses(
            &startup(REPLY, CRC | ENHANCED, revision, &words(4, 4)),
            &format!("MPA revision {revision}"),
        );
    }
}

/// 5044-7.1.1-16, 5044-7.1.2-21.
#[test]
fn private_data_that_is_too_long() {
    for len in [513, u16::MAX] {
        let reply = startup_claiming(REPLY, CRC | ENHANCED, 2, len, &[0; 513]);
        refuses(&reply, &format!("{len} bytes of private data"));
    }
}

/// 6581-6-04, 6581-10-01: the S flag without the IRD and ORD words, the words without the S flag,
/// and a Reply without both.
#[test]
fn reply_without_ird_and_ord() {
    refuses(
        &startup(REPLY, CRC | ENHANCED, 2, &[0, 4, 0]),
        "claims to begin with IRD and ORD",
    );
    refuses(
        &startup(REPLY, CRC, 2, &words(4, 4)),
        "lacks the IRD and ORD",
    );
    refuses(&startup(REPLY, CRC, 1, b""), "lacks the IRD and ORD");
}

/// RFC 5044 section 7.1.2: the peer's program rejects with a reason, with and without the words of
/// revision 2. MPA ends, and our side closes TCP at once (5044-7.1.2-13).
#[test]
fn reject_with_private_data() {
    let plain = startup(REPLY, CRC | REJECT, 2, b"busy today");
    let enhanced = startup(
        REPLY,
        CRC | ENHANCED | REJECT,
        2,
        &[&words(0, 9)[..], b"busy today"].concat(),
    );
    for reply in [plain, enhanced] {
        refuses(&reply, "rejected the connection");
        refuses(&reply, "busy today");
    }
}

/// 6581-9.1-09: a reject carries the responder's IRD and ORD. They are the reason of the reject
/// (`ord_needed`) only if the ORD exceeds our IRD.
#[test]
fn reject_with_ird_and_ord() {
    for (ird, ord, needed) in [(7, 3, None), (0, 9, Some(9)), (NO_AUTO, NO_AUTO, None)] {
        let reply = startup(REPLY, CRC | ENHANCED | REJECT, 2, &words(ird, ord));
        let (scene, connected) = answered(&reply);
        let ConnectError::Rejected {
            peer_ird,
            peer_ord,
            ord_needed,
            ..
        } = connected.unwrap_err()
        else {
            panic!("a reject was due");
        };
        assert_eq!((peer_ird, peer_ord), (Some(ird), Some(ord)));
        assert_eq!(ord_needed, needed);
        scene.ends(Sees::Fin, "rejected the connection");
    }
}

/// 6581-9.1-11, 6581-9.1-13: a depth that the responder does not negotiate keeps our value. The
/// program can query the values that the responder sent.
#[test]
fn reply_that_leaves_ird_and_ord_to_the_programs() {
    for (ird, ord, holds) in [
        (NO_AUTO, NO_AUTO, (4, 4)),
        (NO_AUTO, 3, (4, 4)),
        (2, NO_AUTO, (4, 2)),
    ] {
        let (scene, connected) = answered(&accepting(ird, ord));
        let connected = connected.unwrap();
        assert_eq!((connected.ird, connected.ord), holds);
        let info = scene.qp.connection().unwrap();
        assert_eq!((info.ird, info.ord), holds);
        assert_eq!((info.peer_ird, info.peer_ord), (Some(ird), Some(ord)));
        scene.closes();
    }
}

/// 5044-7.1.2-12: each kind of incomplete Reply.
#[test]
fn reply_that_ends_too_early() {
    let whole = accepting(4, 4);
    for len in [1, 16, 19, 20, 23] {
        let answer = |peer: &mut Peer, _: &TcpListener| {
            peer.send(&whole[..len]);
            peer.fin();
        };
        fails(
            settings(),
            &options(),
            answer,
            Sees::Fin,
            &format!("after {len} byte"),
        );
    }
}

/// 5044-8-01: a reset after the Request, and within the Reply.
#[test]
fn reset_before_the_reply_is_whole() {
    for len in [0, 1, 20] {
        let answer = |peer: &mut Peer, _: &TcpListener| {
            peer.send(&accepting(4, 4)[..len]);
            peer.reset();
        };
        fails(
            settings(),
            &options(),
            answer,
            Sees::Nothing,
            "reset the connection",
        );
    }
}

/// 6581-9.1-08: the Reply requires an IRD that exceeds `max_ird`.
#[test]
pub(crate) fn reply_that_needs_too_deep_an_ird() {
    let terminate = || Sees::Terminate(Code::mpa(0x06).bare());
    for ord in [129, 0x3FFE] {
        fails(
            settings(),
            &options(),
            |peer, _| peer.send(&accepting(4, ord)),
            terminate(),
            "Terminate 2/0/06",
        );
    }
}

/// 6581-9.2-10: the two sides have no kind of RTR indication in common.
#[test]
fn reply_without_a_matching_rtr() {
    let cases = [
        (
            rtr(false, true, false),
            accepting(PEER_TO_PEER | RTR_SEND | 4, RTR_READ | 4),
        ),
        (
            rtr(true, false, false),
            accepting(PEER_TO_PEER | 4, RTR_WRITE | RTR_READ | 4),
        ),
        (settings(), accepting(PEER_TO_PEER | 4, 4)),
        // A Read needs an IRD of at least 1 at the responder.
        (settings(), accepting(PEER_TO_PEER, RTR_READ | 4)),
        // 6581-9.2-04: the Reply lacks the peer-to-peer flag.
        (settings(), accepting(4, 4)),
    ];
    for (settings, reply) in cases {
        let terminate = Sees::Terminate(Code::mpa(0x07).bare());
        fails(
            settings,
            &peer_to_peer(),
            |peer, _| peer.send(&reply),
            terminate,
            "Terminate 2/0/07",
        );
    }
}

/// 6581-9.2-12: the Reply has the peer-to-peer flag, although the Request did not have it.
#[test]
fn peer_to_peer_reply_to_a_client_server_request() {
    let reply = accepting(PEER_TO_PEER | RTR_SEND | 4, RTR_WRITE | 4);
    let terminate = Sees::Terminate(Code::mpa(0x07).bare());
    fails(
        settings(),
        &options(),
        |peer, _| peer.send(&reply),
        terminate,
        "Terminate 2/0/07",
    );
}

/// 6581-10-05: without the setting for a retry, the error suggests the setting.
#[test]
pub(crate) fn close_without_a_word() {
    fails(
        settings(),
        &options(),
        |peer, _| peer.fin(),
        Sees::Fin,
        "it may not know enhanced startup",
    );
}

/// 6581-10-05: with the setting, a new connection with revision 1 is opened, and works.
#[test]
fn close_without_a_word_and_a_retry_with_revision_1() {
    let mut victim = Victim::new(settings().retry_with_revision_1(true));
    victim.post_receives();
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let peer = std::thread::scope(|scope| {
        let options = options().private_data(b"who calls".to_vec());
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, &options));
        let mut old = Peer::accept(&listener);
        assert_eq!(old.receive_startup()[16..18], [CRC | ENHANCED, 2]);
        old.fin();
        old.expect_fin();
        let mut peer = Peer::accept(&listener);
        assert_eq!(
            peer.receive_startup(),
            startup(REQUEST, CRC, 1, b"who calls")
        );
        peer.send_startup(REPLY, CRC, 1, b"who answers");
        assert_eq!(
            connecting.join().unwrap().unwrap().private_data,
            b"who answers"
        );
        peer
    });
    assert_eq!(victim.qp.connection().unwrap().revision, Revision::One);
    let mut scene = Scene {
        victim,
        peer,
        msn: 1,
    };
    scene.delivers(b"works");
    scene.closes();
}

/// 6581-10-05: the connection is retried only once.
#[test]
fn close_without_a_word_twice() {
    let settings = settings().retry_with_revision_1(true);
    let answer = |peer: &mut Peer, listener: &TcpListener| {
        peer.fin();
        peer.expect_fin();
        *peer = Peer::accept(listener);
        peer.receive_startup();
        peer.fin();
    };
    fails(
        settings,
        &options(),
        answer,
        Sees::Fin,
        "closed the connection before the first byte",
    );
}

/// 6581-10-05: only a close before the first byte is retried, and no other failure.
#[test]
fn wrong_answers_are_not_retried() {
    let settings = || settings().retry_with_revision_1(true);
    fails(
        settings(),
        &options(),
        |peer, _| peer.send(b"HTTP/1.1 400\r\n"),
        Sees::Fin,
        "not an MPA Reply",
    );
    let reject = startup(REPLY, CRC | REJECT, 2, b"");
    fails(
        settings(),
        &options(),
        |peer, _| peer.send(&reject),
        Sees::Fin,
        "rejected the connection",
    );
}

/// The peer sends FPDUs in the same write as the Reply. The first of them is wrong.
#[test]
fn reply_with_a_wrong_fpdu_behind_it() {
    let mut victim = Victim::new(settings());
    victim.post_receives();
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let bad = crate::wire::Untagged::new(13, 0, 1, b"8 octets").bytes();
    let peer = std::thread::scope(|scope| {
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, &options()));
        let mut peer = Peer::accept(&listener);
        peer.receive_startup();
        let fpdu = peer.tx.seal(&bad);
        peer.send(&[accepting(4, 4), fpdu].concat());
        // The connection existed for a moment, so either result is correct.
        let _ = connecting.join().unwrap();
        peer
    });
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(
        Sees::Terminate(Code::rdmap(2, 0x06).about(&bad)),
        "opcode 0xd",
    );
}
