//! Hostile peers: every segment leads to a placement within bounds, or to an error with a Terminate
//! Message.

use super::*;
use crate::Blame;
use crate::code::TerminateCode;
use proptest::prelude::*;

/// A valid conversation: the ULPDUs that a peer sends to a stream with two Reads of 300 bytes and
/// an Atomic Operation outstanding.
fn conversation(mulpdu: usize) -> Vec<Vec<u8>> {
    let mut peer = stream();
    let payload = [0x5A; 600];
    let solicited = SendKind {
        solicited: true,
        invalidate: Some(WRITABLE),
    };
    let mut all = ulpdus(peer.begin_send(SendKind::default(), 500), &payload, mulpdu);
    all.extend(ulpdus(
        peer.begin_write(WRITABLE, TaggedOffset(5100), 600),
        &payload,
        mulpdu,
    ));
    all.push(single(peer.begin_read(read_request(300)).unwrap()));
    let (mut asking, mut answering) = (deep_stream(), deep_stream());
    for _ in 0..2 {
        let request = single(asking.begin_read(read_request(300)).unwrap());
        receive(&mut answering, &memory(), &request).unwrap();
        let job = read_job(&mut answering);
        all.extend(ulpdus(answering.begin_read_response(job), &payload, mulpdu));
    }
    let request = asking.begin_atomic(ATOMIC, TaggedOffset(5008), ADD_ONE);
    receive(&mut answering, &memory(), &single(request.unwrap())).unwrap();
    let job = atomic_job(&mut answering);
    all.push(single(answering.begin_atomic_response(job, 99)));
    all.push(single(
        peer.begin_atomic(ATOMIC, TaggedOffset(5992), ADD_ONE)
            .unwrap(),
    ));
    all.push(single(peer.begin_immediate([3; 8], true)));
    all.extend(ulpdus(peer.begin_send(solicited, 130), &payload, mulpdu));
    all
}

/// Creates a stream with room for three requests in each direction.
fn deep_stream() -> Stream {
    Stream::new(StreamConfig { ird: 3, ord: 3 })
}

/// Passes the ULPDUs to a stream. Panics if a placement is out of bounds, or if an error does not
/// blame the peer, has no named code or is not returned again.
fn feed(ulpdus: &[Vec<u8>]) -> Result<(), StreamError> {
    let (mut stream, memory) = (deep_stream(), memory());
    for _ in 0..2 {
        let _request = stream.begin_read(read_request(300)).unwrap();
    }
    let _request = stream
        .begin_atomic(ATOMIC, TaggedOffset(5008), ADD_ONE)
        .unwrap();
    for ulpdu in ulpdus {
        match receive(&mut stream, &memory, ulpdu) {
            Ok(inbound) => inside(&memory, &inbound, ulpdu.len()),
            Err(error) => {
                assert_eq!(error.blame(), Blame::Peer, "{error}");
                let head = &ulpdu[..ulpdu.len().min(HEAD_LEN)];
                let terminate = Stream::terminate_for(&error, Some((head, ulpdu.len()))).unwrap();
                let unnamed = TerminateCode::new(9, 9, 9).name();
                assert_ne!(terminate.reason().name(), unnamed, "{error}");
                assert_eq!(receive(&mut stream, &memory, ulpdu), Err(error));
                return Err(error);
            }
        }
        if stream.state() == StreamState::Terminated {
            break;
        }
    }
    Ok(())
}

fn inside(memory: &ModelMemory, inbound: &Inbound<Place>, ulpdu_len: usize) {
    let (payload_at, len, end, room) = match *inbound {
        Inbound::Write {
            target,
            payload_at,
            len,
            ..
        } => match target {
            Some((region, at)) => {
                assert_eq!(memory.regions[region].stag, WRITABLE);
                (
                    payload_at,
                    len,
                    at + len as usize,
                    memory.regions[region].bytes.len(),
                )
            }
            None => (payload_at, len, len as usize, 0),
        },
        Inbound::Send {
            payload_at,
            offset,
            len,
            ..
        } => (payload_at, len, offset as usize + len as usize, 2000),
        Inbound::ReadResponse {
            payload_at,
            offset,
            len,
            ..
        } => (payload_at, len, offset as usize + len as usize, 300),
        Inbound::ReadRequest
        | Inbound::Immediate { .. }
        | Inbound::AtomicRequest
        | Inbound::AtomicResponse { .. }
        | Inbound::Terminate(_) => return,
    };
    assert!(end <= room, "{inbound:?}");
    assert_eq!(payload_at + len as usize, ulpdu_len);
}

#[test]
fn the_conversation_is_valid() {
    for mulpdu in [128, 333, 1500] {
        assert_eq!(feed(&conversation(mulpdu)), Ok(()));
    }
}

proptest! {
    #[test]
    fn a_changed_byte_is_harmless_or_an_error(
        mulpdu in 128usize..800,
        which in any::<prop::sample::Index>(),
        at in 0usize..48,
        change in 1u8..,
    ) {
        let mut ulpdus = conversation(mulpdu);
        let ulpdu = which.get_mut(&mut ulpdus);
        let at = at.min(ulpdu.len() - 1);
        ulpdu[at] ^= change;
        let _ = feed(&ulpdus);
    }

    #[test]
    fn a_lost_or_doubled_or_shortened_ulpdu_is_harmless_or_an_error(
        mulpdu in 128usize..800,
        which in any::<prop::sample::Index>(),
        what in 0u8..3,
        cut in any::<prop::sample::Index>(),
    ) {
        let mut ulpdus = conversation(mulpdu);
        let which = which.index(ulpdus.len());
        match what {
            0 => drop(ulpdus.remove(which)),
            1 => ulpdus.insert(which, ulpdus[which].clone()),
            _ => {
                let len = cut.index(ulpdus[which].len());
                ulpdus[which].truncate(len);
            }
        }
        let _ = feed(&ulpdus);
    }

    #[test]
    fn random_ulpdus_never_panic(
        ulpdus in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 1..8),
        seal in any::<bool>(),
    ) {
        let mut ulpdus = ulpdus;
        if seal {
            // Sets valid versions, so that the later checks are reached.
            for ulpdu in &mut ulpdus {
                for (byte, keep, set) in [(0, 0xFC, 0x01), (1, 0x37, 0x40)] {
                    if let Some(byte) = ulpdu.get_mut(byte) {
                        *byte = *byte & keep | set;
                    }
                }
            }
        }
        let _ = feed(&ulpdus);
    }
}
