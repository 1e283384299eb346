//! Fast registration by work requests.

use uwarp_verbs::{Buffer, RecvWr, RemoteBuffer, inc_rkey};

use super::*;

/// Local write, and all remote rights except atomics.
fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

#[test]
fn a_part_is_registered_used_by_the_peer_and_invalidated_by_its_answer() {
    // Storage protocols use this pattern. They register memory and send its STag to the peer. The
    // peer's answer invalidates the STag.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let fast =
            a.pd.alloc_fast_region(Buffer::zeroed(8192).unwrap())
                .unwrap();
        let sink = b.blank(4);
        let mut stag = fast.stag();
        for round in 0..300_u64 {
            stag = inc_rkey(stag);
            let part = fast.register(stag, 4096, 1000, all()).iova(round << 32);
            b.post_whole(1, &sink);
            a.qp.post_recv(&RecvWr::new(2, &[])).unwrap();
            a.qp.post_send_list(&[
                SendWr::register(3, &part),
                SendWr::send_inline(4, &part.remote().rkey.to_be_bytes()),
            ])
            .unwrap();
            let registered = a.send_cq.next();
            let expected = (3, Status::Success, WcOpcode::Register, 0);
            assert_eq!(brief(&registered), expected);
            a.send_cq.success(4);
            b.recv_cq.success(1);
            let rkey = u32::from_be_bytes(content(&sink).try_into().unwrap());
            assert_eq!(rkey, stag);
            b.qp.post_send_list(&[
                SendWr::write_inline(
                    5,
                    &round.to_be_bytes(),
                    RemoteBuffer::at((round << 32) + 8, rkey),
                ),
                SendWr::send(6, &[]).invalidate(rkey),
            ])
            .unwrap();
            b.send_cq.successes([5, 6]);
            assert_eq!(a.recv_cq.success(2).invalidated, Some(stag));
            assert!(!fast.is_valid());
            let mut got = [0; 8];
            fast.read_at(4096 + 8, &mut got).unwrap();
            assert_eq!(got, round.to_be_bytes());
        }
    }
}

#[test]
fn a_registered_part_is_a_source_and_a_sink_of_this_side_too() {
    let (a, b) = pair(Wire::Kernel);
    let fast =
        a.pd.alloc_fast_region(Buffer::from(pattern(1, 5000)))
            .unwrap();
    let part = fast.register(fast.stag(), 1000, 4000, all());
    done(&a, &SendWr::register(1, &part), WcOpcode::Register);
    let sink = b.blank(100);
    b.post_whole(2, &sink);
    a.qp.post_send(&SendWr::send(3, &[part.sge(50, 100)]))
        .unwrap();
    a.send_cq.success(3);
    b.recv_cq.success(2);
    assert_eq!(content(&sink), pattern(1, 5000)[1050..1150]);
}

#[test]
fn an_stag_that_was_used_stays_dead() {
    // 5041-8.3.1-03.
    let (a, b) = pair(Wire::Kernel);
    let fast =
        b.pd.alloc_fast_region(Buffer::zeroed(100).unwrap())
            .unwrap();
    let old = fast.register(fast.stag(), 0, 100, all());
    done(&b, &SendWr::register(1, &old), WcOpcode::Register);
    done(
        &b,
        &SendWr::local_invalidate(2, old.stag),
        WcOpcode::LocalInvalidate,
    );
    let new = fast.register(inc_rkey(old.stag), 0, 100, all());
    done(&b, &SendWr::register(3, &new), WcOpcode::Register);
    write_refused(&a, &b, old.iova, old.stag, "another key");
}

#[test]
fn a_dropped_fast_region_is_out_of_reach() {
    let (a, b) = pair(Wire::Kernel);
    let fast =
        b.pd.alloc_fast_region(Buffer::zeroed(100).unwrap())
            .unwrap();
    let part = fast.register(fast.stag(), 0, 100, all()).for_pd();
    done(&b, &SendWr::register(1, &part), WcOpcode::Register);
    drop(fast);
    write_refused(&a, &b, part.iova, part.stag, "no region is registered now");
}
