//! Rights of a region and rights of a QP. A peer needs both.

use uwarp_verbs::{EndReason, RegisterError, RemoteBuffer};

use super::*;
use common::{Setup, join};

#[test]
fn a_qp_without_the_right_refuses_what_its_regions_allow() {
    // 5041-7.1-11, 5040-3.2-i01.
    for read in [false, true] {
        let setup = Setup::new(Wire::Kernel);
        let mut ends = setup.unconnected();
        let (left, words) = if read {
            (
                Access::REMOTE_WRITE,
                "allows this access, but the QP does not",
            )
        } else {
            (
                Access::REMOTE_READ,
                "allows this access, but the QP does not",
            )
        };
        let qp = ends
            .b
            .pd
            .qp()
            .access(left)
            .build(&ends.b.send_cq, &ends.b.recv_cq);
        ends.b.qp = qp.unwrap();
        ends.join();
        let (a, b) = (&ends.a, &ends.b);
        let (lent, local) = (b.filled(1, 100), a.blank(100));
        let remote = lent.remote();
        let sges = [local.sge(0, 100)];
        let (allowed, refused) = (
            SendWr::read(1, &sges, RemoteBuffer::at(remote.addr, remote.rkey)),
            SendWr::write(2, &sges, RemoteBuffer::at(remote.addr, remote.rkey)),
        );
        let (allowed, refused) = if read {
            (refused, allowed)
        } else {
            (allowed, refused)
        };
        a.qp.post_send(&allowed).unwrap();
        a.send_cq.success(allowed.wr_id());
        bell(a, b);
        a.qp.post_send(&refused).unwrap();
        let reason = b.wait_end();
        assert!(
            matches!(reason, EndReason::TerminateSent { .. }),
            "{reason:?}"
        );
        assert!(reason.to_string().contains("access rights"), "{reason}");
        assert!(reason.to_string().contains(words), "{reason}");
    }
}

#[test]
fn a_region_for_one_qp_is_of_the_domain_of_that_qp() {
    let (a, b) = pair(Wire::Kernel);
    let other = a.device.alloc_pd().unwrap();
    let error = other.region().for_qp(&a.qp).vec(vec![0; 8]).unwrap_err();
    let qp = a.qp.qp_num();
    assert_eq!(error, RegisterError::QpOfOtherPd { qp });
    let region =
        b.pd.region()
            .access(all())
            .for_qp(&b.qp)
            .vec(vec![0; 8])
            .unwrap();
    let (other_a, other_b) = (a.another_qp(), b.another_qp());
    let listener = b.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (connect, accept) = Default::default();
    join(&listener, &other_a, &other_b, &connect, &accept);
    let wr = SendWr::write_inline(1, b"no", RemoteBuffer::at(region.addr(), region.rkey()));
    other_a.post_send(&wr).unwrap();
    assert!(other_b.wait_closed(common::LIMIT));
    let reason = other_b.end_reason().unwrap();
    assert!(reason.to_string().contains("not associated"), "{reason}");
    assert_eq!(content(&region), [0; 8]);
}
