//! Tests of memory windows.

use super::*;
use crate::mw;

fn info(mr: *mut ibv_mr, from: u64, length: u64, rights: ibv_access_flags) -> ibv_mw_bind_info {
    ibv_mw_bind_info {
        mr,
        // SAFETY: the test passes an existing region.
        addr: unsafe { (*mr).addr }.addr() as u64 + from,
        length,
        mw_access_flags: rights,
    }
}

/// With windows of both types, a peer can write to the bound memory with the key in `ibv_mw`.
#[test]
fn windows_of_both_types_are_bound_written_through_and_busy_until_they_end() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let (mut own, mut lent) = (*b"windowed", [0_u8; 16]);
    let local = here.mr(&mut own, 0);
    let rights = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND).cast_signed();
    let remote = there.mr(&mut lent, rights);
    // SAFETY: the test passes an existing domain.
    let windows =
        [IBV_MW_TYPE_1, IBV_MW_TYPE_2].map(|kind| unsafe { mw::alloc_mw(there.pd, kind) });
    connect(qp, peer);
    // On iWARP the responder may send only after it has received an FPDU.
    post_recv(peer, 1, &mut []);
    let mut hello = send_wr(1, IBV_WR_SEND, &mut []);
    assert_eq!(post_send(qp, &mut hello).0, 0);
    here.poll(1);
    there.poll(1);
    let mut bind = ibv_mw_bind {
        wr_id: 2,
        send_flags: IBV_SEND_SIGNALED,
        // Adapters ignore the flag `IBV_ACCESS_LOCAL_WRITE` here.
        bind_info: info(
            remote,
            0,
            8,
            IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE,
        ),
    };
    // SAFETY: the test passes existing objects.
    let before = unsafe { (*windows[0]).rkey };
    // SAFETY: the test passes existing objects.
    assert_eq!(unsafe { mw::bind_mw(peer, windows[0], &raw mut bind) }, 0);
    // SAFETY: the test passes an existing window.
    assert_ne!(unsafe { (*windows[0]).rkey }, before);
    let mut wr = send_wr(3, IBV_WR_BIND_MW, &mut []);
    // `num_sge` is ignored, because a bind has no elements.
    wr.num_sge = -1;
    wr.__bindgen_anon_2.bind_mw.mw = windows[1];
    // SAFETY: the test passes an existing window.
    let rkey = uwarp_verbs::inc_rkey(unsafe { (*windows[1]).rkey });
    // Only the last byte counts: the index is that of the window.
    wr.__bindgen_anon_2.bind_mw.rkey = !rkey & !0xFF | rkey & 0xFF;
    wr.__bindgen_anon_2.bind_mw.bind_info = info(
        remote,
        8,
        8,
        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND,
    );
    assert_eq!(post_send(peer, &mut wr).0, 0);
    // SAFETY: the test passes an existing window.
    assert_eq!(unsafe { (*windows[1]).rkey }, rkey);
    let bound: Vec<_> = there.poll(2).iter().map(kind).collect();
    let ok = |opcode, wr_id| (IBV_WC_SUCCESS, opcode, wr_id);
    assert_eq!(bound, [ok(IBV_WC_BIND_MW, 2), ok(IBV_WC_BIND_MW, 3)]);
    // SAFETY: the test passes an existing region.
    assert_eq!(unsafe { mr::dereg_mr(remote) }, libc::EBUSY);
    for (at, window) in windows.into_iter().enumerate() {
        let mut list = [sge(local, 0, 8)];
        let mut write = rdma_wr(4, IBV_WR_RDMA_WRITE, &mut list, remote);
        // SAFETY: the test passes an existing window.
        write.wr.rdma.rkey = unsafe { (*window).rkey };
        write.wr.rdma.remote_addr = info(remote, at as u64 * 8, 8, 0).addr;
        assert_eq!(post_send(qp, &mut write).0, 0);
        here.poll(1);
    }
    // This Send follows the Writes on the connection. When the Send arrives, the Writes are placed.
    post_recv(peer, 5, &mut []);
    let mut done = send_wr(5, IBV_WR_SEND_WITH_INV, &mut []);
    done.__bindgen_anon_1.invalidate_rkey = rkey;
    assert_eq!(post_send(qp, &mut done).0, 0);
    let got = there.poll(1)[0];
    assert_eq!(got.wc_flags, IBV_WC_WITH_INV);
    // SAFETY: the flag says that this field is set.
    assert_eq!(unsafe { got.__bindgen_anon_1.invalidated_rkey }, rkey);
    here.poll(1);
    for window in windows {
        // SAFETY: the test passes a window that is not used any more.
        assert_eq!(unsafe { mw::dealloc_mw(window) }, 0);
    }
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(remote);
    assert_eq!(&lent, b"windowedwindowed");
    here.end();
    there.end();
}
