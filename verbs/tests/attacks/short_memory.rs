//! RFC 5042 sections 6.4.2 to 6.4.4: peers that use up the memory of unfinished and of unread
//! FPDUs.

use uwarp_verbs::{AcceptOptions, Access, MemoryRegion, Qp, QpCaps, RecvWr, Sge};

use crate::limits::{ATTACKER, OTHER};
use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{Victim, settings};
use crate::wire::{CRC, READ_REQUEST, REQUEST, ReadHeader, SEND, Untagged};

/// Address of the honest peer.
const HONEST: [u8; 4] = [127, 0, 0, 4];

/// Connects a peer from this address to a QP with one receive.
fn joins(victim: &Victim, from: [u8; 4], receive: &[Sge]) -> (Peer, Qp) {
    let cq = &victim.recv_cq;
    let qp = victim.pd.create_qp(cq, cq, QpCaps::default()).unwrap();
    qp.post_recv(&RecvWr::new(1, receive)).unwrap();
    let mut peer = Peer::connect_from(from, victim.listener.local_addr());
    peer.send_startup(REQUEST, CRC, 1, b"");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    request.accept(&qp, &AcceptOptions::default()).unwrap();
    peer.receive_startup();
    (peer, qp)
}

/// Ends these connections and releases the memory that they use. Checks that nothing else was
/// harmed.
fn leave(mut victim: Victim, ends: Vec<(Peer, Qp)>, memory: MemoryRegion) {
    for (peer, qp) in &ends {
        peer.reset();
        assert!(qp.wait_closed(PATIENCE));
    }
    drop(ends);
    memory.deregister().unwrap();
    while victim.recv_cq.poll_one().is_some() {}
    victim.reasons();
    victim.healthy.works();
    victim.check_unharmed();
    victim.leaves_nothing();
}

/// Two peers begin FPDUs, each within its own limit, until the device has no memory left. A third
/// peer, which holds nothing, is served meanwhile.
#[test]
fn s6_4_3_1_two_peers_at_their_limits_leave_a_third_its_reserve() {
    const BEGUN: usize = 30_000;
    const EACH: u64 = 68 * 1024 + 2 * BEGUN as u64;
    let mut settings = settings();
    settings.limits.max_qp += 9;
    settings.limits.max_mr += 9;
    settings.limits.max_startup = 64;
    settings.limits.max_receive_memory = 2 * EACH;
    settings.limits.per_peer.max_receive_memory = EACH;
    let mut victim = Victim::new(settings);
    let buffer = victim
        .pd
        .register(vec![0; 60_000], Access::LOCAL_WRITE)
        .unwrap();
    let receive = [buffer.sge(0, 60_000)];
    let whole = Untagged::new(SEND, 0, 1, &[0x5a; 60_000]).bytes();
    let mut ends = Vec::new();
    for from in [ATTACKER, OTHER] {
        for _ in 0..4 {
            let (mut peer, qp) = joins(&victim, from, &receive);
            let fpdu = peer.tx.seal(&whole);
            peer.send(&fpdu[..BEGUN]);
            ends.push((peer, qp));
        }
    }
    let device = &victim.device;
    eventually("a device without memory for one more FPDU", || {
        let used = device.usage().receive_memory;
        (used + 68 * 1024 > 2 * EACH).then_some(())
    });
    let (mut third, third_qp) = joins(&victim, HONEST, &receive);
    for round in 1..=3 {
        third.send_ulpdus(&[Untagged::new(SEND, 0, round, &[0x5a; 60_000]).bytes()]);
        let done = eventually("the Send of the third peer", || {
            let done = victim.recv_cq.wait(Some(PATIENCE))?;
            (done.qp_num == third_qp.qp_num()).then_some(done)
        });
        assert!(done.status.is_success() && done.byte_len == 60_000);
        third_qp.post_recv(&RecvWr::new(1, &receive)).unwrap();
    }
    victim.healthy.works();
    ends.push((third, third_qp));
    leave(victim, ends, buffer);
}

/// A peer requests much by Reads on many connections, and reads nothing. The memory for its answers
/// stays within its limit. Each connection still answers when the peer reads at last.
#[test]
fn s6_4_4_unread_responses_hold_no_more_memory_than_the_limit() {
    const LIMIT: u64 = 2 << 20;
    const LEN: u32 = 8 << 20;
    const MANY: u32 = 12;
    let mut settings = settings();
    settings.limits.max_qp += MANY;
    settings.limits.max_mr += 1;
    settings.limits.max_startup = 64;
    settings.limits.per_peer.max_send_memory = LIMIT;
    // The peers read one after the other, which takes minutes on a busy machine.
    settings.timeouts.stalled = None;
    let mut victim = Victim::new(settings);
    let source: Vec<u8> = (0..LEN).map(|at| (at / 4096 + at) as u8).collect();
    let memory = victim
        .pd
        .register(source.clone(), Access::REMOTE_READ)
        .unwrap();
    let header = ReadHeader {
        len: LEN,
        source_stag: memory.rkey(),
        source_to: memory.addr(),
        ..victim.read_header()
    };
    let mut ends: Vec<_> = (0..MANY).map(|_| joins(&victim, ATTACKER, &[])).collect();
    for (peer, _) in &mut ends {
        peer.send_ulpdus(&[Untagged::new(READ_REQUEST, 1, 1, &header.bytes()).bytes()]);
        // Waits until the connections before have sent what they can.
        victim.healthy.works();
    }
    let device = &victim.device;
    eventually("memory for answers that are not read", || {
        (device.usage().send_memory > LIMIT / 2).then_some(())
    });
    victim.healthy.works();
    // The limit is checked before a batch is made, and the batch is charged when it is not taken.
    let used = device.usage().send_memory;
    assert!(used <= LIMIT + (1 << 20) + (128 << 10), "{used} bytes");
    for (peer, _) in &mut ends {
        let mut answer = Vec::new();
        while answer.len() < LEN as usize {
            // The header of a Read Response has 14 bytes.
            answer.extend_from_slice(&peer.receive_ulpdu()[14..]);
        }
        assert!(answer == source, "a wrong answer");
    }
    eventually("no memory is held any more", || {
        (device.usage().send_memory == 0).then_some(())
    });
    leave(victim, ends, memory);
}
