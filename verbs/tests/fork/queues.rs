//! Memory registered by work requests, and shared receive queues.

use super::*;

/// Checks that the child sees no window and no fast region as valid, and invalidates none.
pub(super) fn memory_that_work_requests_register() {
    let (a, b) = pair(Wire::Kernel);
    both_ways(&a, &b);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::WINDOW_BIND;
    let region = b.pd.register(vec![0; 64], rights).unwrap();
    let mut window = b.pd.alloc_window(WindowKind::Type1).unwrap();
    let bind = region.window(0, 64, Access::REMOTE_WRITE);
    let rkey = b.qp.bind_mw(&mut window, 1, &bind).unwrap();
    b.send_cq.success(1);
    let fast = b.pd.alloc_fast_region(Buffer::zeroed(64).unwrap()).unwrap();
    let part = fast.register(
        inc_rkey(fast.stag()),
        0,
        64,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    );
    b.qp.post_send(&SendWr::register(2, &part)).unwrap();
    b.send_cq.success(2);
    let objects = (window, fast, region);
    let (window, fast, region) = used_and_dropped_in_a_child(objects, |(window, fast, region)| {
        assert!(!window.is_bound() && !fast.is_valid());
        assert_eq!(fast.stag() & 0xFF, 0);
        let inherited = RegisterError::Inherited(Inherited);
        let error = b.pd.alloc_window(WindowKind::Type2B).unwrap_err();
        assert_eq!(error, inherited);
        let error = b.pd.alloc_fast_region(Buffer::zeroed(1).unwrap());
        assert_eq!(error.map(drop).unwrap_err(), inherited);
        let mut other = b.pd.alloc_window(WindowKind::Type1);
        assert!(other.as_mut().is_err());
        let error =
            b.qp.post_send(&SendWr::local_invalidate(3, part.remote().rkey));
        assert_eq!(error.unwrap_err().kind, PostErrorKind::Inherited(Inherited));
        // Registered memory belongs to the process, so the child may read it.
        let mut bytes = [1; 64];
        region.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
        let error = b.device.alloc_pd().unwrap_err();
        assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
    });
    assert!(window.is_bound() && fast.is_valid());
    for (wr_id, rkey, addr) in [
        (1, rkey, region.addr()),
        (2, part.remote().rkey, part.remote().addr),
    ] {
        let write = SendWr::write_inline(wr_id, b"still there", RemoteBuffer::at(addr, rkey));
        a.qp.post_send(&write).unwrap();
        a.send_cq.success(wr_id);
    }
    bell(&a, &b);
    assert_eq!(&content(&region)[..11], b"still there");
    let mut bytes = [0; 11];
    fast.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"still there");
}

pub(super) fn a_shared_receive_queue() {
    let (a, b) = pair(Wire::Kernel);
    let attr = SrqAttr::default().max_wr(4);
    let srq = b.pd.create_srq(attr).unwrap();
    srq.post_recv(&RecvWr::new(1, &[])).unwrap();
    let srq = used_and_dropped_in_a_child(srq, |srq| {
        let error = srq.post_recv(&RecvWr::new(2, &[])).unwrap_err();
        assert_eq!(error.kind, PostErrorKind::Inherited(Inherited));
        let error = srq.modify(SrqModify::default()).unwrap_err();
        assert_eq!(error, ModifySrqError::Inherited(Inherited));
        assert_eq!((srq.posted(), srq.query().max_wr), (0, 0));
        srq.clone().destroy(None).unwrap();
        let error = b.pd.create_srq(attr).unwrap_err();
        assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
    });
    assert_eq!((srq.posted(), srq.query().max_wr), (1, 4));
    srq.destroy(None).unwrap();
    both_ways(&a, &b);
}
