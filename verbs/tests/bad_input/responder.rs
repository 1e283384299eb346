//! Startup frames that a responder must not accept (RFC 5044 section 7.1).

use uwarp_verbs::{AcceptOptions, Revision, RtrKinds, Settings, StartupError};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{Scene, Sees, Victim, settings};
use crate::wire::{
    CRC, Code, ENHANCED, PEER_TO_PEER, REJECT, REPLY, REQUEST, RTR_READ, RTR_SEND, RTR_WRITE,
    startup, startup_claiming, words,
};

/// MPA's error code for a lost connection (RFC 5044 section 8). It appears only in the local
/// report.
const LOST: u8 = 1;
/// MPA's error code for an invalid startup frame (RFC 5044 section 8). It appears only in the local
/// report.
const INVALID_FRAME: u8 = 4;

/// Action of the peer after it has sent its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Wait,
    Fin,
    Reset,
}

/// The peer sends these bytes instead of an MPA Request. It receives no byte, and the program gets
/// no request. The listener reports the reason and keeps working. The check runs three times,
/// because the listener has two places.
fn refuses_startup(settings: &Settings, bytes: &[u8], then: Then, code: u8, words: &str) {
    let mut victim = Victim::new(settings.clone());
    for _ in 0..3 {
        let mut peer = Peer::connect(victim.listener.local_addr());
        let addr = peer.addr();
        peer.send(bytes);
        match then {
            Then::Wait => {}
            Then::Fin => peer.fin(),
            Then::Reset => peer.reset(),
        }
        if then != Then::Reset {
            peer.expect_fin();
        }
        let (who, error): (_, StartupError) = eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
        assert_eq!((who, error.code().code()), (addr, code), "{error}");
        assert!(error.to_string().contains(words), "the error is: {error}");
        assert!(victim.listener.poll_request().is_none());
    }
    assert!(victim.listener.poll_failure().is_none());
    victim.nothing_ended();
    victim.check_unharmed();
    victim.leaves_nothing();
}

fn refuses(bytes: &[u8], words: &str) {
    refuses_startup(&settings(), bytes, Then::Wait, INVALID_FRAME, words);
}

/// 5044-7.1.1-02, 5044-7.1.2-04, 5044-8-09: the error shows what was sent instead of MPA.
#[test]
pub(crate) fn wrong_key() {
    refuses(
        b"GET / HTTP/1.1\r\nHost: uwarp\r\n\r\n",
        "sent 'GET / HTTP/1.1', not an MPA Request",
    );
    refuses(b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2");
    refuses(
        &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00],
        "bytes 16 03 01",
    );
    refuses(
        &startup(b"MPA ID Req Fram ", CRC, 1, b""),
        "not an MPA Request",
    );
    refuses(
        &startup(b"mpa id req frame", CRC, 1, b""),
        "not an MPA Request",
    );
}

/// 5044-7.1.2-18: two responders connected to each other.
#[test]
fn reply_instead_of_a_request() {
    refuses(
        &startup(REPLY, CRC, 1, b""),
        "takes itself for the accepting side",
    );
}

/// 5044-7.1.1-14: revision 0 was used by the RDMA Consortium.
#[test]
fn wrong_revision() {
    for revision in [0, 3, 255] {
        refuses(
            &startup(REQUEST, CRC, revision, b""),
            &format!("MPA revision {revision}"),
        );
    }
}

/// 6581-10-04: our side accepts revision 1 only, like an endpoint without RFC 6581.
#[test]
fn enhanced_request_where_only_revision_1_is_spoken() {
    let settings = settings()
        .accept_revision(Revision::One)
        .revision(Revision::One);
    let request = startup(REQUEST, CRC | ENHANCED, 2, &[0, 4, 0, 4]);
    refuses_startup(
        &settings,
        &request,
        Then::Wait,
        INVALID_FRAME,
        "only revision 1",
    );
}

/// 5044-7.1.1-16, 5044-7.1.2-20, 5044-7.1.2-21: refused as soon as the length has arrived.
#[test]
fn private_data_that_is_too_long() {
    for len in [513, 514, u16::MAX] {
        let words = format!("{len} bytes of private data");
        refuses(&startup_claiming(REQUEST, CRC, 1, len, b""), &words);
        refuses(&startup_claiming(REQUEST, CRC, 1, len, &[7; 513]), &words);
    }
}

/// 6581-6-04: the S flag announces the words with IRD and ORD, but they are missing.
#[test]
fn enhanced_request_without_its_words() {
    for len in [0, 3] {
        let request = startup(REQUEST, CRC | ENHANCED, 2, &vec![0; len]);
        refuses(&request, "claims to begin with IRD and ORD");
    }
}

/// 5044-7.1.1-16, 5044-7.1.2-11: the frame has more bytes than PD_Length announces.
#[test]
pub(crate) fn private_data_longer_than_its_length() {
    refuses(
        &startup_claiming(REQUEST, CRC, 1, 4, b"six oc"),
        "2 bytes after its MPA Request",
    );
    refuses(
        &startup_claiming(REQUEST, CRC, 1, 0, &[0; 600]),
        "after its MPA Request",
    );
}

/// 5044-7.1.1-16: the frame has fewer bytes than PD_Length announces, or fewer than the shortest
/// frame.
#[test]
pub(crate) fn request_that_ends_too_early() {
    let whole = startup(REQUEST, CRC, 1, b"private data");
    for len in [1, 15, 16, 17, 19, 20, 31] {
        let words = format!("after {len} byte");
        refuses_startup(&settings(), &whole[..len], Then::Fin, LOST, &words);
        refuses_startup(
            &settings(),
            &whole[..len],
            Then::Reset,
            LOST,
            "reset the connection",
        );
    }
}

/// Port scanners connect and close without sending anything.
#[test]
fn connection_that_ends_before_the_first_byte() {
    refuses_startup(&settings(), b"", Then::Fin, LOST, "before the first byte");
    refuses_startup(&settings(), b"", Then::Reset, LOST, "reset the connection");
}

/// The peer has closed when our program accepts. The QP ends and reports the reason.
#[test]
fn reset_between_the_request_and_the_reply() {
    let mut victim = Victim::new(settings());
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    peer.reset();
    request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap();
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Nothing, "reset the connection");
}

/// The peer has closed when our program rejects. Nothing can be sent, and nothing is left over.
#[test]
fn reset_before_the_reject() {
    let mut victim = Victim::new(settings());
    for _ in 0..3 {
        let mut peer = Peer::connect(victim.listener.local_addr());
        peer.send_startup(REQUEST, CRC, 1, b"");
        let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
        peer.reset();
        request.reject(b"no").unwrap();
    }
    victim.nothing_ended();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// The FIN arrives before the Reply is sent. The peer can still read, but will never send an FPDU.
#[test]
fn fin_between_the_request_and_the_reply() {
    let mut victim = Victim::new(settings());
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    peer.fin();
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap();
    assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Fin, "closed by the peer");
}

/// 5044-7.1.2-11: an initiator sends nothing before it has the Reply. Our program has accepted, so
/// the Reply is sent completely (5044-7.1.2-08). No Terminate may follow it (5044-7.1.2-15).
#[test]
fn bytes_between_the_request_and_the_reply() {
    let mut victim = Victim::new(settings());
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    peer.send(&[0xFF; 64]);
    request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap();
    peer.receive_startup();
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Fin, "this side closed the connection");
}

/// 5044-7.1.1-i02: The R flag has no meaning in a Request. Reserved bits are ignored as well.
#[test]
fn flags_without_meaning_are_not_looked_at() {
    let mut victim = Victim::new(settings());
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC | REJECT | 0x1F, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap();
    assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
    let mut scene = Scene {
        victim,
        peer,
        msn: 1,
    };
    scene.delivers(b"works");
    scene.closes();
}

/// 6581-9.2-05: only a Write was negotiated as RTR indication. A Send is therefore an ordinary
/// message, for which there is no receive.
#[test]
fn rtr_indication_of_another_kind() {
    let write = RtrKinds {
        send: false,
        write: true,
        read: false,
    };
    let victim = Victim::new(settings().rtr(write));
    let mut peer = Peer::connect(victim.listener.local_addr());
    let asks = words(PEER_TO_PEER | RTR_SEND | 4, RTR_WRITE | RTR_READ | 4);
    peer.send_startup(REQUEST, CRC | ENHANCED, 2, &asks);
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    let options = AcceptOptions::default().ird(4).ord(4);
    request.accept(&victim.qp, &options).unwrap();
    let agrees = words(PEER_TO_PEER | 4, RTR_WRITE | 4);
    assert_eq!(
        peer.receive_startup(),
        startup(REPLY, CRC | ENHANCED, 2, &agrees)
    );
    let scene = Scene {
        victim,
        peer,
        msn: 1,
    };
    let send = scene.next_send(b"").bytes();
    scene.refuses(&send, Code::ddp(2, 0x02), "no receive is posted", None);
}
