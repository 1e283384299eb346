//! Slow or silent peers. The tests do not measure time; each checks the result.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use uwarp_verbs::{
    AcceptError, AcceptOptions, ConnectOptions, RemoteBuffer, SendWr, Settings, Timeouts,
};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{Role, Scene, Sees, Setup, Victim, loopback, settings};
use crate::victim::PATIENT;
use crate::wire::{
    CRC, ENHANCED, PEER_TO_PEER, REJECT, REPLY, REQUEST, RTR_READ, RTR_SEND, RTR_WRITE, Untagged,
    startup, words,
};

const SOON: Duration = Duration::from_millis(100);
/// Timeout in tests whose peer must send something in time. A busy machine may delay the peer.
const LATER: Duration = Duration::from_millis(700);

fn with(timeouts: Timeouts) -> Settings {
    settings().timeouts(timeouts)
}

/// Checks that the listener gives up the connection and frees its place.
fn gives_up(victim: Victim, words: &str) {
    let (_, error) = eventually("a failure at the listener", || {
        victim.listener.poll_failure()
    });
    assert_eq!(error.code().code(), 1);
    assert!(error.to_string().contains(words), "the error is: {error}");
    victim.nothing_ended();
    victim.leaves_nothing();
}

/// 5044-7.1.2-18: two responders connected to each other. The listener has room for all
/// connections, so that none displaces another.
#[test]
pub(crate) fn initiator_that_sends_nothing() {
    let mut settings = with(PATIENT.request(SOON));
    settings.limits.max_startup = 8;
    let victim = Victim::new(settings);
    let mut peers = [(); 5].map(|()| Peer::connect(victim.listener.local_addr()));
    for peer in &mut peers {
        peer.expect_fin();
        peer.fin();
        eventually("a failure at the listener", || {
            victim.listener.poll_failure()
        });
    }
    let mut last = Peer::connect(victim.listener.local_addr());
    last.expect_fin();
    gives_up(
        victim,
        "sent nothing more for too long, before the first byte",
    );
}

/// 5044-7.1.2-22: the timeout applies to the whole frame, so single bytes do not extend it.
#[test]
fn initiator_that_sends_one_byte_now_and_then() {
    let victim = Victim::new(with(PATIENT.request(LATER)));
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.drip(&startup(REQUEST, CRC, 1, &[7; 512]));
    peer.expect_fin();
    gives_up(victim, "sent nothing more for too long, after");
}

/// The program does not decide on the Request, so the peer gets a reject.
#[test]
fn request_that_nobody_decides() {
    let mut victim = Victim::new(with(PATIENT.decision(SOON)));
    for _ in 0..3 {
        let mut peer = Peer::connect(victim.listener.local_addr());
        peer.send_startup(REQUEST, CRC, 1, b"");
        assert_eq!(peer.receive_startup(), startup(REPLY, CRC | REJECT, 1, b""));
        peer.expect_fin();
    }
    assert!(victim.listener.poll_request().is_none());
    victim.nothing_ended();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// The program decides too late.
#[test]
fn request_that_is_decided_too_late() {
    let decision = Duration::from_secs(2);
    let mut victim = Victim::new(with(PATIENT.decision(decision)));
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    let late = Instant::now() + decision;
    eventually("the time has passed", || {
        (Instant::now() > late).then_some(())
    });
    let error = request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap_err();
    assert!(
        matches!(error, AcceptError::TooLate { peer: who } if who == peer.addr()),
        "{error}"
    );
    assert!(error.to_string().contains("too late"), "{error}");
    assert_eq!(peer.receive_startup(), startup(REPLY, CRC | REJECT, 1, b""));
    peer.expect_fin();
    victim.nothing_ended();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Connects our side to a peer that does only what `answer` does.
fn gets_no_reply(reply: Duration, answer: impl FnOnce(&mut Peer), words: &str) {
    let mut victim = Victim::new(with(PATIENT.reply(reply)));
    victim.post_receives();
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let peer = std::thread::scope(|scope| {
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, &ConnectOptions::default()));
        let mut peer = Peer::accept(&listener);
        peer.receive_startup();
        answer(&mut peer);
        let error = connecting.join().unwrap().unwrap_err();
        assert!(error.to_string().contains(words), "the error is: {error}");
        peer
    });
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Fin, words);
}

/// 5044-7.1.2-22.
#[test]
pub(crate) fn responder_that_sends_nothing() {
    gets_no_reply(
        SOON,
        |_| {},
        "sent nothing more for too long, before the first byte",
    );
}

/// 5044-7.1.2-22: the timeout applies to the whole frame.
#[test]
fn responder_that_sends_one_byte_now_and_then() {
    let reply = startup(
        REPLY,
        CRC | ENHANCED,
        2,
        &[&words(4, 4)[..], &[7; 508]].concat(),
    );
    gets_no_reply(
        LATER,
        |peer| peer.drip(&reply),
        "sent nothing more for too long, after",
    );
}

/// RFC 6581 section 9.2: the peer must send the RTR indication next, without an action of its
/// program. A Terminate cannot report that the indication is missing (5044-7.1.2-15).
#[test]
fn initiator_without_its_rtr_indication() {
    let mut victim = Victim::new(with(PATIENT.rtr(SOON)));
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    let asks = words(PEER_TO_PEER | RTR_SEND | 4, RTR_WRITE | RTR_READ | 4);
    peer.send_startup(REQUEST, CRC | ENHANCED, 2, &asks);
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request
        .accept(&victim.qp, &AcceptOptions::default().ird(4).ord(4))
        .unwrap();
    assert_eq!(
        peer.receive_startup(),
        startup(REPLY, CRC | ENHANCED, 2, &asks)
    );
    victim.post_sends();
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Fin, "sent no first message");
}

/// The peer received our Terminate and FIN, but keeps its side open. The connection is reset. Its
/// reason remains the original error.
#[test]
pub(crate) fn peer_that_does_not_close_after_our_terminate() {
    let mut setup = Setup::new(Role::Responder);
    setup.settings.timeouts.close = SOON;
    let mut s = Scene::with(&setup);
    let bad = Untagged {
        qn: 7,
        ..s.next_send(b"")
    }
    .bytes();
    s.commits(&bad);
    let terminate = crate::wire::Code::ddp(2, 0x01).about(&bad);
    assert_eq!(s.peer.receive_ulpdu(), terminate);
    s.peer.expect_fin();
    s.ends(Sees::Nothing, "Queue Number");
}

/// The peer keeps its side open after our graceful close.
#[test]
fn peer_that_does_not_close_after_our_fin() {
    let mut setup = Setup {
        sends: false,
        ..Setup::new(Role::Initiator)
    };
    setup.settings.timeouts.close = SOON;
    let mut s = Scene::with(&setup);
    s.qp.disconnect();
    s.peer.expect_fin();
    s.ends(Sees::Nothing, "closed by this side");
}

/// TCP takes no more bytes, so not even the Terminate is sent. The connection is reset.
#[test]
fn peer_that_does_not_read() {
    let mut setup = Setup {
        sends: false,
        ..Setup::new(Role::Responder)
    };
    setup.settings.limits.max_mr += 1;
    setup.settings.timeouts.close = SOON;
    let mut s = Scene::with(&setup);
    let big =
        s.pd.register(vec![0x55; 32 << 20], uwarp_verbs::Access::NONE)
            .unwrap();
    let sge = big.sge(0, 32 << 20);
    s.qp.post_send(&SendWr::write(21, &[sge], RemoteBuffer::at(0x1000, 0x1234)))
        .unwrap();
    s.victim.sends_were_posted_as(&[21]);
    let bad = Untagged {
        opcode: 12,
        ..s.next_send(b"octets")
    }
    .bytes();
    s.commits(&bad);
    eventually("the QP gives up", || {
        s.qp.wait_closed(Duration::ZERO).then_some(())
    });
    s.peer.expect_reset();
    drop(big);
    s.ends(Sees::Nothing, "opcode 0xc");
}

/// The host of the peer drops every packet, as a firewall does, because its listen queue is full.
#[test]
fn host_that_does_not_answer() {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &loopback()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let to = listener.local_addr().unwrap();
    let fills_the_queue = Peer::connect(to);
    let mut victim = Victim::new(with(PATIENT.connect(SOON)));
    victim.post_receives();
    let error = victim
        .qp
        .connect(to, &ConnectOptions::default())
        .unwrap_err();
    assert!(
        error.to_string().contains("did not connect in time"),
        "the error is: {error}"
    );
    Scene {
        victim,
        peer: fills_the_queue,
        msn: 1,
    }
    .ends(Sees::Nothing, "did not connect in time");
}

/// This timeout of the client-server model is off by default, because a client may have nothing to
/// send.
#[test]
fn initiator_that_never_sends_its_first_message() {
    let mut victim = Victim::new(with(
        PATIENT
            // The healthy connection must send its first message within this time as well.
            .first_fpdu(Some(Duration::from_secs(1))),
    ));
    victim.post_receives();
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request
        .accept(&victim.qp, &AcceptOptions::default())
        .unwrap();
    peer.receive_startup();
    victim.post_sends();
    Scene {
        victim,
        peer,
        msn: 1,
    }
    .ends(Sees::Fin, "sent no first message");
}
