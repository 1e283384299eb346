//! Messages of both sides about an access without the required right. The message at the owner of
//! the memory names the region and its rights. The message at the requester names the request and
//! the missing right.

use uwarp_verbs::{CauseCode, Completion, EndReason, RemoteBuffer, Status, Who};

use super::*;

/// Posts `request` for 4096 bytes of the peer's memory, which has only this right. Returns the
/// owner's end reason, the completion, the requester's end reason, and (rkey, address).
fn refused(
    access: Access,
    request: impl for<'a> Fn(&'a [uwarp_verbs::Sge], u64, u32) -> SendWr<'a>,
    len: u32,
) -> (EndReason, Completion, EndReason, (u32, u64)) {
    let (a, b) = pair(Wire::Kernel);
    let local = a.filled(1, 64);
    let lent = b.pd.region().access(access).vec(vec![0; 4096]).unwrap();
    let (rkey, addr) = (lent.rkey(), lent.addr());
    let sges = [local.sge(0, len)];
    a.qp.post_send(&request(&sges, addr, rkey)).unwrap();
    let done = a.send_cq.next();
    (b.wait_end(), done, a.wait_end(), (rkey, addr))
}

#[test]
fn a_write_without_the_right_in_the_words_of_both_sides() {
    let (owner, done, requester, (rkey, addr)) = refused(
        Access::REMOTE_READ,
        |sges, addr, rkey| SendWr::write(7, sges, RemoteBuffer::at(addr, rkey)),
        64,
    );
    assert_eq!(
        owner.cause().to_string(),
        format!(
            "remote access error, access rights violation: region {rkey:#010x} of 4096 bytes allows Read, but the \
             peer attempted a Write of 64 bytes at offset 0 (TO {addr:#x}); register it with REMOTE_WRITE, if the peer is meant \
             to write it"
        )
    );
    // TCP had taken the Write, so it had completed before the refusal.
    assert_eq!((done.status, done.cause), (Status::Success, None));
    let cause = requester.cause();
    assert_eq!(
        cause.to_string(),
        format!(
            "remote access error: the peer refused a Write of 64 bytes to STag {rkey:#010x}, TO {addr:#x} (already \
             complete, if this side sent it): invalid STag (DDP tagged buffer error, 1/1/00); compare the rkey with \
             the one the peer gave; ask the peer to keep the region registered and to \
             allow REMOTE_WRITE, because a missing right has the same code"
        )
    );
    assert_eq!(cause.who(), Who::Program);
}

#[test]
fn a_read_without_the_right_in_the_words_of_both_sides() {
    let (owner, done, requester, (rkey, addr)) = refused(
        Access::LOCAL_WRITE,
        |sges, addr, rkey| SendWr::read(7, sges, RemoteBuffer::at(addr, rkey)),
        64,
    );
    assert_eq!(
        owner.cause().to_string(),
        format!(
            "remote access error, access rights violation: region {rkey:#010x} of 4096 bytes allows no remote \
             access, but the peer attempted a Read of 64 bytes at offset 0 (TO {addr:#x}); register it with REMOTE_READ, if \
             the peer is meant to read it"
        )
    );
    assert_eq!((done.wr_id, done.status), (7, Status::RemoteAccess));
    let cause = done.cause.unwrap();
    assert_eq!(
        cause.to_string(),
        format!(
            "remote access error: the peer refused this Read of 64 bytes from STag {rkey:#010x}, TO {addr:#x}: \
             access rights violation (RDMAP remote protection error, 0/1/02); ask the peer to register it with \
             REMOTE_READ"
        )
    );
    assert_eq!(requester.cause(), cause);
    let Some(CauseCode::Terminate(code)) = cause.code() else {
        panic!("{:?}", cause.code());
    };
    assert_eq!(code.to_string(), "0/1/02");
}

#[test]
fn an_atomic_without_the_right_in_the_words_of_both_sides() {
    let (owner, done, _, (rkey, addr)) = refused(
        Access::REMOTE_READ,
        |sges, addr, rkey| SendWr::fetch_add(7, sges, RemoteBuffer::at(addr, rkey), 1),
        8,
    );
    assert_eq!(
        owner.cause().to_string(),
        format!(
            "remote access error, access rights violation: region {rkey:#010x} of 4096 bytes allows Read, but the \
             peer attempted an atomic operation of 8 bytes at offset 0 (TO {addr:#x}); register it with REMOTE_ATOMIC, if the \
             peer is meant to do atomic operations on it"
        )
    );
    assert_eq!(done.status, Status::RemoteAccess);
    assert_eq!(
        done.cause.unwrap().to_string(),
        format!(
            "remote access error: the peer refused this atomic operation of 8 bytes on STag {rkey:#010x}, TO \
             {addr:#x}: access rights violation (RDMAP remote protection error, 0/1/02); ask the peer to register it \
             with REMOTE_ATOMIC"
        )
    );
}
