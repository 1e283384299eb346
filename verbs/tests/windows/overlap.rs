//! Invalidation while a Read uses the memory. The raw peer stops in the middle of the Read
//! Response, so the invalidation and the Read always overlap.

use std::io::{Read, Write};

use uwarp_oracle::{
    Crc, READ_RESPONSE, SEND_INVALIDATE, TERMINATE, Tagged, Untagged, fpdu, read_request,
};
use uwarp_verbs::{MemoryWindow, Qp, RecvWr, RemoteBuffer, WindowKind, inc_rkey};

use super::*;
use crate::common::{FILL, LIMIT, slice, until};

/// Length in bytes that exceeds the buffers of TCP. A Response cannot be finished while the peer
/// does not read.
const SIZE: usize = 32 << 20;
/// Byte that the program writes to the memory when the peer must no longer read it.
const SECRET: u8 = 0x5E;

/// Creates a side with its raw peer, and a second QP of the same domain with another peer.
fn scene() -> (Side, RawPeer, Qp, RawPeer) {
    let (side, peer) = silent();
    let other = side.another_qp();
    let far = raw_peer(&other);
    (side, peer, other, far)
}

impl RawPeer {
    fn send(&mut self, ulpdu: &[u8]) {
        self.stream.write_all(&fpdu(ulpdu, Crc::Zero)).unwrap();
    }

    /// Returns the next ULPDU, or `None` at the end of the stream.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut len = [0; 2];
        self.stream.read_exact(&mut len).ok()?;
        let len = usize::from(u16::from_be_bytes(len));
        let mut rest = vec![0; (len + 2).next_multiple_of(4) + 2];
        self.stream.read_exact(&mut rest).unwrap();
        rest.truncate(len);
        Some(rest)
    }

    /// Requests `SIZE` bytes of the memory with the STag `rkey`, from `addr`.
    fn read_request(&mut self, msn: u32, addr: u64, rkey: u32) {
        self.send(&read_request(msn, (7, 0), SIZE as u32, (rkey, addr)));
    }

    fn send_with_invalidate(&mut self, rkey: u32) {
        let send = Untagged {
            word: rkey,
            ..Untagged::new(SEND_INVALIDATE, 0, 1, &[])
        };
        self.send(&send.bytes());
    }

    /// Returns the payload of a Read Response segment. Returns the first bytes of a Terminate
    /// Message as an error.
    #[track_caller]
    fn response(&mut self) -> Result<Vec<u8>, [u8; 2]> {
        let ulpdu = self.receive().expect("the stream does not end before");
        // The version of RDMAP is 1, and the reserved bits are 0.
        match ulpdu[1] ^ 0x40 {
            READ_RESPONSE => Ok(ulpdu[14..].to_vec()),
            TERMINATE => Err([ulpdu[18], ulpdu[19]]),
            other => panic!("control byte {other:#04x}"),
        }
    }

    /// Reads until the Response is complete or refused. Returns the number of its bytes. No byte
    /// may be [`SECRET`].
    #[track_caller]
    fn drain(&mut self, mut got: usize) -> (usize, Option<[u8; 2]>) {
        while got < SIZE {
            match self.response() {
                Ok(payload) => {
                    assert!(payload.iter().all(|byte| *byte == FILL), "byte {got}");
                    got += payload.len();
                }
                Err(code) => return (got, Some(code)),
            }
        }
        (got, None)
    }
}

/// Makes the peer read all of the memory. Returns when the first bytes of the Response have
/// arrived.
fn begin_read(side: &Side, peer: &mut RawPeer, addr: u64, rkey: u32) -> usize {
    side.qp.post_send(&SendWr::send(90, &[])).unwrap();
    side.send_cq.success(90);
    // The Send above. The raw peer is the MPA responder and may send only after it.
    peer.receive().unwrap();
    peer.read_request(1, addr, rkey);
    let first = peer.response().unwrap();
    assert!(first.iter().all(|byte| *byte == FILL));
    first.len()
}

/// Reuses the memory after its binding has ended. The peer must not see the new bytes.
fn nothing_is_read_any_more(side: &Side, peer: &mut RawPeer, region: &MemoryRegion, got: usize) {
    region.write_at(0, &vec![SECRET; SIZE]).unwrap();
    let (got, code) = peer.drain(got);
    assert!(got < SIZE, "the Read was not over");
    assert_eq!(
        code,
        Some([0x01, 0x00]),
        "remote protection error, invalid STag"
    );
    assert!(peer.receive().is_none());
    peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let reason = side.wait_end().to_string();
    assert!(
        reason.contains("invalidated while the peer's Read was being answered"),
        "{reason}"
    );
}

fn window_of_all(side: &Side, region: &MemoryRegion) -> MemoryWindow {
    let window = side.pd.alloc_window(WindowKind::Type2B).unwrap();
    let rkey = inc_rkey(window.rkey());
    let bind = region.window(0, SIZE as u64, Access::REMOTE_READ);
    done(
        side,
        &SendWr::bind_window(91, rkey, &bind),
        WcOpcode::BindWindow,
    );
    window
}

#[test]
fn a_window_that_is_dropped_while_it_is_read_shows_nothing_any_more() {
    let (side, mut peer, ..) = scene();
    let region = lender(&side, SIZE);
    let window = window_of_all(&side, &region);
    let got = begin_read(&side, &mut peer, region.addr(), window.rkey());
    drop(window);
    nothing_is_read_any_more(&side, &mut peer, &region, got);
    region.deregister().unwrap();
}

#[test]
fn a_window_that_the_peer_invalidates_while_it_is_read_shows_nothing_any_more() {
    // 5040-5.3-10, 5041-8.3.1-03.
    let (side, mut peer, ..) = scene();
    let region = lender(&side, SIZE);
    let window = window_of_all(&side, &region);
    side.post_empty(1);
    let got = begin_read(&side, &mut peer, region.addr(), window.rkey());
    peer.send_with_invalidate(window.rkey());
    assert_eq!(side.recv_cq.success(1).invalidated, Some(window.rkey()));
    nothing_is_read_any_more(&side, &mut peer, &region, got);
    assert!(!window.is_bound());
}

#[test]
fn a_region_that_another_qp_invalidates_while_it_is_read_shows_nothing_any_more() {
    // 5041-8.3.1-03.
    let (side, mut peer, other, _far) = scene();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let region = side.pd.register(vec![FILL; SIZE], rights).unwrap();
    let got = begin_read(&side, &mut peer, region.addr(), region.rkey());
    other
        .post_send(&SendWr::local_invalidate(1, region.rkey()))
        .unwrap();
    side.send_cq.success(1);
    nothing_is_read_any_more(&side, &mut peer, &region, got);
}

#[test]
fn a_local_invalidate_behind_a_response_of_its_qp_waits_for_it() {
    // Messages of a stream are not interleaved, and a local request runs only between two messages.
    // The Response must therefore be sent completely first.
    let (side, mut peer, ..) = scene();
    let region = lender(&side, SIZE);
    let window = window_of_all(&side, &region);
    let rkey = window.rkey();
    let got = begin_read(&side, &mut peer, region.addr(), rkey);
    side.qp
        .post_send(&SendWr::local_invalidate(1, rkey))
        .unwrap();
    side.send_cq.assert_empty();
    assert!(window.is_bound());
    let taken = std::thread::spawn(move || {
        let whole = peer.drain(got);
        (whole, peer)
    });
    side.send_cq.success(1);
    assert!(!window.is_bound());
    let (whole, mut peer) = taken.join().unwrap();
    assert_eq!(whole, (SIZE, None));
    region.write_at(0, &vec![SECRET; SIZE]).unwrap();
    peer.read_request(2, region.addr(), rkey);
    assert_eq!(peer.response(), Err([0x01, 0x00]));
}

/// The peer answers half of a Read. `invalidate` then invalidates the sink. The rest of the answer
/// arrives after that, and must not be placed.
fn sink_ends(
    scene: (Side, &mut RawPeer),
    sink: &MemoryRegion,
    invalidate: impl FnOnce(&mut RawPeer),
) {
    const HALF: usize = 4096;
    let (side, peer) = scene;
    let sges = [sink.sge(0, 2 * HALF as u32)];
    side.qp
        .post_send(&SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 0x77)))
        .unwrap();
    let request = peer.receive().unwrap();
    let stag = u32::from_be_bytes(request[18..22].try_into().unwrap());
    let segment = |last: bool, at: usize| {
        let segment = Tagged {
            last,
            ..Tagged::read_response(stag, sink.addr() + at as u64)
        };
        segment.with(&[SECRET; HALF])
    };
    peer.send(&segment(false, 0));
    until("the first bytes", || {
        side.send_cq.assert_empty();
        slice(sink, HALF - 1, 1) == [SECRET]
    });
    invalidate(peer);
    peer.send(&segment(true, HALF));
    let done = side.send_cq.wait(Some(LIMIT)).unwrap();
    assert_eq!((done.wr_id, done.status), (1, Status::LocalProtection));
    peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let reason = side.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason:?}");
    assert_eq!(slice(sink, 0, HALF), [SECRET; HALF]);
    assert_eq!(slice(sink, HALF, HALF), [FILL; HALF]);
}

#[test]
fn nothing_comes_into_the_sink_of_a_read_after_its_local_invalidation() {
    // 5041-8.3.1-03.
    let (side, mut peer, other, _far) = scene();
    let (sink, sent) = (side.blank(8192), side.send_cq.clone());
    let stag = sink.rkey();
    sink_ends((side, &mut peer), &sink, |_| {
        other.post_send(&SendWr::local_invalidate(2, stag)).unwrap();
        sent.success(2);
    });
}

#[test]
fn nothing_comes_into_the_sink_of_a_read_after_the_peer_has_invalidated_it() {
    // 5040-5.3-10, 5041-8.3.1-03.
    let (side, mut peer, ..) = scene();
    let builder = side.pd.region().access(Access::LOCAL_WRITE);
    let sink = builder.for_qp(&side.qp).vec(vec![FILL; 8192]).unwrap();
    let (received, stag) = (side.recv_cq.clone(), sink.rkey());
    side.qp.post_recv(&RecvWr::new(2, &[])).unwrap();
    sink_ends((side, &mut peer), &sink, |peer| {
        peer.send_with_invalidate(stag);
        assert_eq!(received.success(2).invalidated, Some(stag));
    });
}
