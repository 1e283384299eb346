//! RFC 5042 sections 6.4.2 to 6.4.4: peers that are slow on purpose, and the resources that this
//! side holds for them.

use std::time::Duration;

use uwarp_verbs::{AcceptOptions, Access, Qp, QpCaps, RecvWr, RemoteBuffer, SendWr, Timeouts};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{ROLES, Role, Scene, Sees, Setup, Victim, settings};
use crate::victim::PATIENT;
use crate::wire::{CRC, READ_REQUEST, REQUEST, ReadHeader, SEND, Untagged};

const ATTACKER: [u8; 4] = [127, 0, 0, 2];
const SOON: Duration = Duration::from_millis(100);

fn stalls_soon() -> Timeouts {
    PATIENT.stalled(Some(SOON))
}

/// Connects the attacker to a QP with one receive posted.
fn joins(victim: &Victim) -> (Peer, Qp) {
    let cq = &victim.recv_cq;
    let qp = victim.pd.create_qp(cq, cq, QpCaps::default()).unwrap();
    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    let mut peer = Peer::connect_from(ATTACKER, victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request.accept(&qp, &AcceptOptions::default()).unwrap();
    peer.receive_startup();
    (peer, qp)
}

/// Each byte arrives on its own, and the honest connection works in between.
#[test]
fn s6_4_4_fpdu_that_comes_byte_by_byte() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let send = s.next_send(b"slowly").bytes();
        let fpdu = s.peer.tx.seal(&send);
        for byte in fpdu {
            s.peer.send(&[byte]);
            s.victim.healthy.works();
        }
        s.delivered(b"slowly");
        s.closes();
    }
}

/// The peer begins an FPDU and never finishes it. The stream ends by itself, and its memory is
/// released.
#[test]
fn s6_4_4_fpdu_that_is_never_finished() {
    for role in ROLES {
        let mut setup = Setup::new(role);
        setup.settings.timeouts = stalls_soon();
        let mut s = Scene::with(&setup);
        let send = s.next_send(b"never whole").bytes();
        let fpdu = s.peer.tx.seal(&send);
        s.peer.send(&fpdu[..9]);
        s.peer.expect_reset();
        s.ends(Sees::Nothing, "began an FPDU and did not finish it");
    }
}

/// Many streams of one peer begin FPDUs. Only as many are read as the memory limit allows. The
/// other streams wait in TCP until one of these FPDUs is finished. Peers with other addresses are
/// not affected.
#[test]
fn s6_4_3_1_unfinished_fpdus_hold_no_more_memory_than_the_limit() {
    let mut settings = settings();
    settings.limits.max_qp += 4;
    settings.limits.max_startup = 64;
    // The limit has room for three FPDUs of the largest size.
    settings.limits.per_peer.max_receive_memory = 3 * 68 * 1024;
    let mut victim = Victim::new(settings);
    let mut ends: Vec<(Peer, Qp)> = (0..4).map(|_| joins(&victim)).collect();
    let mut fpdus = Vec::new();
    for (peer, _) in &mut ends {
        let fpdu = peer.tx.seal(&Untagged::new(SEND, 0, 1, b"").bytes());
        peer.send(&fpdu[..5]);
        fpdus.push(fpdu);
        // Waits until the bytes sent so far have been read, before the next FPDU begins.
        victim.healthy.works();
    }
    // In the end all FPDUs are received, although some had to wait.
    for ((peer, qp), fpdu) in ends.iter_mut().zip(&fpdus) {
        peer.send(&fpdu[5..]);
        let done = victim
            .recv_cq
            .wait(Some(PATIENCE))
            .expect("the Send arrives");
        assert_eq!(done.qp_num, qp.qp_num());
    }
    for (peer, qp) in &ends {
        peer.fin();
        assert!(qp.wait_closed(PATIENCE));
    }
    drop(ends);
    victim.reasons();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// One peer fills the memory with FPDUs that it never finishes. Another of its streams waits, and
/// continues when the unfinished streams time out.
#[test]
fn s6_4_2_memory_for_fpdus_comes_back_from_streams_that_stall() {
    let mut settings = settings();
    settings.limits.max_qp += 2;
    settings.limits.per_peer.max_receive_memory = 68 * 1024;
    let mut victim = Victim::new(settings.timeouts(stalls_soon()));
    let (mut bad, bad_qp) = joins(&victim);
    let (mut good, good_qp) = joins(&victim);
    let fpdu = bad.tx.seal(&Untagged::new(SEND, 0, 1, b"").bytes());
    bad.send(&fpdu[..5]);
    victim.healthy.works();
    let send = Untagged::new(SEND, 0, 1, b"").bytes();
    good.send_ulpdus(&[send]);
    let taken = eventually("the honest Send, besides the flush of the other", || {
        let done = victim.recv_cq.wait(Some(PATIENCE))?;
        (done.qp_num == good_qp.qp_num()).then_some(done)
    });
    assert!(taken.status.is_success());
    assert!(bad_qp.wait_closed(PATIENCE));
    let reason = bad_qp.end_reason().unwrap().to_string();
    assert!(reason.contains("did not finish it"), "{reason}");
    drop((bad, bad_qp, good, good_qp));
    victim.reasons();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Bytes of a Write that the peer does not read occupy memory of this side until the timeout.
#[test]
fn s6_4_4_peer_that_reads_nothing_of_a_write() {
    let mut setup = Setup {
        sends: false,
        ..Setup::new(Role::Responder)
    };
    setup.settings.limits.max_mr += 1;
    setup.settings.timeouts = stalls_soon();
    let mut s = Scene::with(&setup);
    const LEN: usize = 32 << 20;
    let big = s.pd.register(vec![0x55; LEN], Access::NONE).unwrap();
    let write = [big.sge(0, LEN as u32)];
    s.qp.post_send(&SendWr::write(21, &write, RemoteBuffer::at(0x1000, 0x1234)))
        .unwrap();
    s.victim.sends_were_posted_as(&[21]);
    s.victim.healthy.works();
    assert!(s.qp.wait_closed(PATIENCE));
    big.deregister().unwrap();
    s.peer.expect_reset();
    s.ends(Sees::Nothing, "did not read");
}

/// The same holds for Reads whose Responses the peer does not read.
#[test]
fn s6_4_4_peer_that_reads_nothing_of_what_it_asked_for() {
    let mut setup = Setup {
        sends: false,
        ..Setup::new(Role::Responder)
    };
    setup.settings.limits.max_mr += 1;
    setup.settings.timeouts = stalls_soon();
    let mut s = Scene::with(&setup);
    const LEN: u32 = 16 << 20;
    let big = s.pd.register(vec![0x55; LEN as usize], Access::REMOTE_READ);
    let big = big.unwrap();
    let requests: Vec<_> = (1..=4)
        .map(|msn| {
            let header = ReadHeader {
                len: LEN,
                source_stag: big.rkey(),
                source_to: big.addr(),
                ..s.read()
            };
            Untagged::new(READ_REQUEST, 1, msn, &header.bytes()).bytes()
        })
        .collect();
    s.peer.send_ulpdus(&requests);
    s.victim.healthy.works();
    assert!(s.qp.wait_closed(PATIENCE));
    big.deregister().unwrap();
    s.peer.expect_reset();
    s.ends(Sees::Nothing, "did not read");
}

/// A peer that does not close after a Terminate is given up after the timeout as well.
#[test]
fn s6_4_2_peer_that_does_not_close() {
    let mut setup = Setup::new(Role::Responder);
    setup.settings.timeouts.close = SOON;
    let mut s = Scene::with(&setup);
    let bad = Untagged {
        qn: 7,
        ..s.next_send(b"")
    }
    .bytes();
    s.commits(&bad);
    let due = crate::wire::Code::ddp(2, 0x01).about(&bad);
    assert_eq!(s.peer.receive_ulpdu(), due);
    s.peer.expect_fin();
    s.ends(Sees::Nothing, "Queue Number");
}
