//! Order of atomics and other operations, IRD and ORD, the fence, and the end of a connection.

use uwarp_oracle::{ATOMIC_RESPONSE, Crc, Untagged, fpdu};
use uwarp_verbs::{AcceptOptions, ConnectOptions, EndReason, RemoteBuffer, SendWr, Status};

use crate::common::{RawPeer, Setup, Wire, beside_raw_peer, raw_settings, slice};
use crate::{all_of, sink, word, words};

fn depth(wire: Wire, depth: u16) -> Setup {
    let mut setup = Setup::new(wire);
    setup.connect = ConnectOptions::default().ord(depth);
    setup.accept = AcceptOptions::default().ird(depth);
    setup
}

#[test]
fn reads_and_atomics_share_the_depths_and_are_done_in_order() {
    // 7306-5.2.1-08, and RFC 7306 section 7: a Read sees the effect of the atomics before it.
    const ROUNDS: u64 = 40;
    for wire in Wire::BOTH {
        for ord in [1, 2, 16] {
            let (a, b) = depth(wire, ord).connected();
            let cell = words(&b, &[0]);
            let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
            let out = a.blank(16 * ROUNDS as usize);
            for nth in 0..ROUNDS {
                let (found, seen) = ([out.sge(16 * nth, 8)], [out.sge(16 * nth + 8, 8)]);
                let add = SendWr::fetch_add(2 * nth, &found, RemoteBuffer::at(to, rkey), 1);
                a.qp.post_send(&add).unwrap();
                let read = SendWr::read(2 * nth + 1, &seen, RemoteBuffer::at(to, rkey));
                a.qp.post_send(&read).unwrap();
            }
            a.send_cq.successes(0..2 * ROUNDS);
            for nth in 0..ROUNDS {
                let at = 2 * nth as usize;
                assert_eq!((word(&out, at), word(&out, at + 1)), (nth, nth + 1));
            }
        }
    }
}

#[test]
fn a_write_before_an_atomic_is_placed_before_it_is_done() {
    let (a, b) = crate::common::pair(Wire::MEMORY);
    let cell = {
        let all = uwarp_verbs::Access::ALL;
        b.pd.register(vec![0; 8], all).unwrap()
    };
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    let out = sink(&a);
    for nth in 1..50u64 {
        let value = nth.to_ne_bytes();
        a.qp.post_send(&SendWr::write_inline(1, &value, RemoteBuffer::at(to, rkey)))
            .unwrap();
        let sges = all_of(&out);
        a.qp.post_send(&SendWr::fetch_add(
            2,
            &sges,
            RemoteBuffer::at(to, rkey),
            1000,
        ))
        .unwrap();
        a.send_cq.successes([1, 2]);
        assert_eq!((word(&out, 0), word(&cell, 0)), (nth, nth + 1000));
    }
}

#[test]
fn what_is_fenced_behind_an_atomic_waits_for_its_response() {
    for wire in Wire::BOTH {
        let (a, b) = crate::common::pair(wire);
        let cell = words(&b, &[77]);
        let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
        let (out, into) = (sink(&a), b.blank(8));
        b.post_whole(9, &into);
        let sges = all_of(&out);
        a.qp.post_send(&SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1))
            .unwrap();
        // The Send gathers the sink of the atomic. Only with the fence is the content of the sink
        // correct by then.
        a.qp.post_send(&SendWr::send(2, &sges).fence()).unwrap();
        a.send_cq.successes([1, 2]);
        b.recv_cq.success(9);
        assert_eq!(slice(&into, 0, 8), 77u64.to_ne_bytes());
    }
}

/// Connects to a peer that never answers. An atomic is outstanding. A Send posted after the atomic
/// was sent, and another Send waits for the fence.
fn unanswered() -> (crate::common::Side, RawPeer, uwarp_verbs::MemoryRegion) {
    let (a, peer) = beside_raw_peer(raw_settings());
    let out = sink(&a);
    let sges = all_of(&out);
    a.qp.post_send(&SendWr::fetch_add(
        1,
        &sges,
        RemoteBuffer::at(0x1000, 0x77),
        1,
    ))
    .unwrap();
    a.qp.post_send(&SendWr::send_inline(2, b"sent")).unwrap();
    a.qp.post_send(&SendWr::send_inline(3, b"fenced").fence())
        .unwrap();
    (a, peer, out)
}

#[test]
fn the_peers_close_flushes_an_atomic_and_what_waits_behind_it_in_order() {
    // 7306-5.4-01: on this side, an atomic without its Response counts as not carried out.
    let (a, peer, _out) = unanswered();
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    // Request 2, a Send, was sent before the close.
    a.send_cq.flushed(1);
    a.send_cq.success(2);
    a.send_cq.flushed(3);
    drop(peer);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::PeerDisconnect), "{reason}");
}

#[test]
fn an_abort_flushes_an_atomic_in_order() {
    let (a, _peer, _out) = unanswered();
    a.qp.abort();
    for wr_id in [1, 2, 3] {
        a.send_cq.flushed(wr_id);
    }
}

#[test]
fn an_answered_atomic_without_its_sink_fails_with_a_protection_error() {
    // 5040-7.1-01: an error on this side only.
    use std::io::{Read as _, Write as _};
    let (a, mut peer, out) = unanswered();
    let mut request = [0; 2 + 70 + 4];
    peer.stream.read_exact(&mut request).unwrap();
    drop(out);
    // The Response has Queue Number 3, message 1, and the identifier of the request.
    let answer = [&request[2 + 22..2 + 26], &[0; 8]].concat();
    let answer = Untagged::new(ATOMIC_RESPONSE, 3, 1, &answer);
    let fpdu = fpdu(&answer.bytes(), Crc::Zero);
    peer.stream.write_all(&fpdu).unwrap();
    let done = a.send_cq.next();
    assert_eq!((done.wr_id, done.status), (1, Status::LocalProtection));
    a.send_cq.flushed(2);
    a.send_cq.flushed(3);
    drop(peer);
    let reason = a.wait_end().to_string();
    assert!(reason.contains("memory region for the result"), "{reason}");
}

#[test]
fn our_own_close_waits_for_the_response() {
    let (a, b) = crate::common::pair(Wire::MEMORY);
    let cell = words(&b, &[5]);
    let (to, rkey) = (cell.remote().addr, cell.remote().rkey);
    let out = sink(&a);
    let sges = all_of(&out);
    a.qp.post_send(&SendWr::fetch_add(1, &sges, RemoteBuffer::at(to, rkey), 1))
        .unwrap();
    a.qp.disconnect();
    a.send_cq.success(1);
    assert_eq!((word(&out, 0), word(&cell, 0)), (5, 6));
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalDisconnect), "{reason}");
}
