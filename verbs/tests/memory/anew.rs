//! Reregistration with other rights, in another domain, or of other memory. It takes effect
//! completely or not at all.

use uwarp_verbs::{
    Buffer, Device, EndReason, RegisterError, RemoteBuffer, ReregisterError, Status,
};

use super::*;

#[test]
fn other_rights_come_with_another_stag_and_the_old_one_is_dead() {
    // 5041-8.3.1-02, 5041-8.3.1-03.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let mut region = b.filled(1, 100);
        let old = region.remote();
        region
            .reregister()
            .access(Access::REMOTE_READ)
            .apply()
            .unwrap();
        let new = region.remote();
        assert_eq!((new.addr, new.len), (old.addr, old.len));
        assert_ne!(new.rkey, old.rkey);
        let sink = a.blank(100);
        a.qp.post_send(&SendWr::read(
            1,
            &[sink.sge(0, 100)],
            RemoteBuffer::at(new.addr, new.rkey),
        ))
        .unwrap();
        a.send_cq.success(1);
        assert_eq!(content(&sink), pattern(1, 100));
        a.qp.post_send(&SendWr::write_inline(
            2,
            b"no",
            RemoteBuffer::at(old.addr, old.rkey),
        ))
        .unwrap();
        let reason = b.wait_end();
        assert!(reason.to_string().contains("invalid STag"), "{reason}");
        assert_eq!(content(&region), pattern(1, 100));
    }
}

#[test]
fn other_memory_takes_the_place_of_the_old() {
    let (a, b) = pair(Wire::Kernel);
    let mut region = b.blank(100);
    region
        .reregister()
        .zero_based()
        .buffer(Buffer::zeroed(5000).unwrap())
        .unwrap();
    assert_eq!((region.len(), region.addr()), (5000, 0));
    a.qp.post_send(&SendWr::write_inline(
        1,
        b"at the end",
        RemoteBuffer::at(4990, region.rkey()),
    ))
    .unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    assert_eq!(&content(&region)[4990..], b"at the end");
}

#[test]
fn another_domain_takes_the_region_from_the_qps_of_the_old_one() {
    // 5041-8.2-01.
    let (a, b) = pair(Wire::Kernel);
    let mut region = b.filled(1, 100);
    let other = b.device.alloc_pd().unwrap();
    region.reregister().pd(&other).apply().unwrap();
    let remote = region.remote();
    a.qp.post_send(&SendWr::write_inline(
        1,
        b"no",
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    let reason = b.wait_end();
    assert!(reason.to_string().contains("not associated"), "{reason}");
}

#[test]
fn what_cannot_be_done_leaves_the_old_registration_as_it_was() {
    let (a, b) = pair(Wire::Kernel);
    let mut region = b.blank(100);
    let remote = region.remote();
    let access = Access::REMOTE_WRITE;
    let error = region.reregister().access(access).apply().unwrap_err();
    assert_eq!(
        error,
        ReregisterError::New(RegisterError::NeedsLocalWrite { access })
    );
    let error = region
        .reregister()
        .buffer(Buffer::from(Vec::new()))
        .unwrap_err();
    assert_eq!(error, ReregisterError::New(RegisterError::Empty));
    let foreign = Device::tcp().unwrap().alloc_pd().unwrap();
    let error = region.reregister().pd(&foreign).apply().unwrap_err();
    assert_eq!(error, ReregisterError::OtherDevice);
    assert_eq!(region.remote(), remote);
    a.qp.post_send(&SendWr::write_inline(
        1,
        b"good",
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    assert_eq!(&content(&region)[..4], b"good");
}

#[test]
fn a_region_that_the_peer_invalidated_comes_to_life_again() {
    let (a, b) = pair(Wire::Kernel);
    let mut region =
        b.pd.region()
            .access(all())
            .for_qp(&b.qp)
            .vec(vec![0; 100])
            .unwrap();
    b.post_empty(1);
    a.qp.post_send(&SendWr::send(2, &[]).invalidate(region.rkey()))
        .unwrap();
    a.send_cq.success(2);
    b.recv_cq.success(1);
    region.reregister().apply().unwrap();
    let remote = region.remote();
    a.qp.post_send(&SendWr::write_inline(
        3,
        b"again",
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.send_cq.success(3);
    bell(&a, &b);
    assert_eq!(&content(&region)[..5], b"again");
}

#[test]
fn a_deregistration_during_a_write_ends_it_at_some_byte_and_nothing_is_placed_after() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let size = 8 << 20;
        let (source, target) = (a.filled(1, size), b.blank(size));
        let remote = target.remote();
        let sges = [source.sge(0, size as u32)];
        a.qp.post_send(&SendWr::write(
            1,
            &sges,
            RemoteBuffer::at(remote.addr, remote.rkey),
        ))
        .unwrap();
        let mut byte = [common::FILL];
        common::until("the first byte", || {
            let _ = b.recv_cq.poll_one();
            let _ = a.send_cq.poll_one();
            target.read_at(0, &mut byte).unwrap();
            byte[0] != common::FILL
        });
        target.deregister().unwrap();
        let _ = a.qp.post_send(&SendWr::write_inline(
            2,
            b"late",
            RemoteBuffer::at(remote.addr, remote.rkey),
        ));
        let reason = b.wait_end();
        assert!(
            matches!(reason, EndReason::TerminateSent { .. }),
            "{reason:?}"
        );
        assert!(reason.to_string().contains("invalid STag"), "{reason}");
        a.wait_end();
        while let Some(completion) = a.send_cq.poll_one() {
            let expected = [Status::Success, Status::RemoteAccess, Status::WrFlush];
            assert!(expected.contains(&completion.status), "{completion:?}");
        }
    }
}
