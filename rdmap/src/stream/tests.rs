use super::*;
use crate::atomic::AtomicOp;
use crate::error::{AccessError, AtomicFault};
use crate::inbound::{Inbound, SendDelivered};
use crate::memory::Memory;
use crate::message::OutMessage;
use crate::{HEAD_LEN, MAX_HEADER};
use alloc::vec;
use alloc::vec::Vec;
use uwarp_ddp::{TaggedFault, TaggedRange};

mod errors;
mod extensions;
mod model;
mod order;
mod random;

/// A registered region of the model memory.
#[derive(Clone, Debug)]
pub(super) struct Region {
    stag: STag,
    base: u64,
    bytes: Vec<u8>,
    remote_write: bool,
    remote_read: bool,
    remote_atomic: bool,
    /// True if the region belongs to the stream under test.
    associated: bool,
}

/// Model memory: a list of regions, and the length of the receive at the head of the queue.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelMemory {
    regions: Vec<Region>,
    receive: Option<u32>,
}

/// Region and offset.
type Place = (usize, usize);

impl ModelMemory {
    fn check(
        &self,
        stag: STag,
        to: u64,
        len: u32,
        right: impl Fn(&Region) -> bool,
    ) -> Result<Place, TaggedFault> {
        assert_ne!(len, 0, "zero length is never checked");
        let (index, region) = self.find(stag)?;
        if !right(region) {
            return Err(TaggedFault::AccessRights);
        }
        let len_of = region.bytes.len() as u64;
        let range = TaggedRange {
            base: TaggedOffset(region.base),
            len: len_of,
        };
        Ok((index, range.locate(TaggedOffset(to), len)?.start as usize))
    }

    fn find(&self, stag: STag) -> Result<(usize, &Region), TaggedFault> {
        let found = self
            .regions
            .iter()
            .enumerate()
            .find(|(_, region)| region.stag == stag);
        let (index, region) = found.ok_or(TaggedFault::InvalidSTag)?;
        if region.associated {
            Ok((index, region))
        } else {
            Err(TaggedFault::NotAssociated)
        }
    }

    fn place(&mut self, (region, at): Place, bytes: &[u8]) {
        self.regions[region].bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Memory for ModelMemory {
    type Target = Place;

    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Place, TaggedFault> {
        self.check(stag, to, len, |region| region.remote_write)
    }

    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Place, TaggedFault> {
        self.check(stag, to, len, |region| region.remote_read)
    }

    fn check_atomic(&self, stag: STag, to: u64) -> Result<Place, AtomicFault> {
        let place = self.check(stag, to, 8, |region| region.remote_atomic)?;
        // Each region of the model starts at an address that is a multiple of 8.
        if place.1 % 8 == 0 {
            Ok(place)
        } else {
            Err(AtomicFault::Misaligned)
        }
    }

    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault> {
        self.find(stag).map(|_| ())
    }

    fn receive_buffer(&self) -> Option<u32> {
        self.receive
    }
}

/// STags of [`memory`].
const WRITABLE: STag = STag(0x100);
const READABLE: STag = STag(0x200);
const FOREIGN: STag = STag(0x300);
const ATOMIC: STag = STag(0x400);

/// Creates memory with a receive of 2000 bytes and four regions of 1000 bytes at TO 5000: one to
/// write, one to read, one of another stream, one for atomics.
fn memory() -> ModelMemory {
    let region = |stag, [remote_write, remote_read, remote_atomic]: [bool; 3], associated| Region {
        stag,
        base: 5000,
        bytes: (0..1000).map(|index| index as u8).collect(),
        remote_write,
        remote_read,
        remote_atomic,
        associated,
    };
    ModelMemory {
        regions: vec![
            region(WRITABLE, [true, false, false], true),
            region(READABLE, [false, true, false], true),
            region(FOREIGN, [true; 3], false),
            region(ATOMIC, [false, false, true], true),
        ],
        receive: Some(2000),
    }
}

fn stream() -> Stream {
    Stream::new(StreamConfig { ird: 2, ord: 2 })
}

/// Returns all segments of a message as ULPDUs.
pub(super) fn ulpdus(mut message: OutMessage, payload: &[u8], mulpdu: usize) -> Vec<Vec<u8>> {
    let mut header = [0; MAX_HEADER];
    let mut all = Vec::new();
    while let Some(segment) = message.next_segment(mulpdu, &mut header) {
        let mut ulpdu = header[..segment.header_len].to_vec();
        ulpdu.extend_from_slice(&payload[segment.range()]);
        assert!(ulpdu.len() <= mulpdu);
        all.push(ulpdu);
    }
    assert!(message.is_done());
    all
}

/// Returns the only segment of a message without payload.
fn single(message: OutMessage) -> Vec<u8> {
    let mut all = ulpdus(message, &[], 1500);
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// Passes a ULPDU to the stream as a caller on top of MPA does: its first bytes and its length.
pub(super) fn receive(
    stream: &mut Stream,
    memory: &ModelMemory,
    ulpdu: &[u8],
) -> Result<Inbound<Place>, StreamError> {
    let head = &ulpdu[..ulpdu.len().min(HEAD_LEN)];
    let segment = head
        .first_chunk()
        .and_then(|head| stream.write_segment(head, ulpdu.len()));
    let mut sends = stream.sends;
    let send = head
        .first_chunk()
        .and_then(|head| stream.send_segment(head, ulpdu.len()));
    let between = stream.send_opcode.is_none();
    let inbound = stream.receive(memory, head, ulpdu.len());
    same_write(stream, memory, ulpdu, segment, &inbound);
    match send {
        Some(_) => sends.whole_received(),
        None => sends = stream.sends,
    }
    same_send(memory, ulpdu, (send, between), &inbound);
    // A refused segment changes nothing.
    assert!(inbound.is_err() || sends == stream.sends);
    inbound
}

/// Compares the fast path for a Send with `receive`. If the fast path takes a segment, `receive`
/// must accept it too, or refuse it only because of the receive. The fast path must take every
/// single-segment Send that has payload and no reserved bit set. `between`: true if no Send was in
/// progress.
fn same_send(
    memory: &ModelMemory,
    ulpdu: &[u8],
    (segment, between): (Option<SendSegment>, bool),
    inbound: &Result<Inbound<Place>, StreamError>,
) {
    let Some(SendSegment { len, solicited }) = segment else {
        if let Ok(Inbound::Send {
            len: 1..,
            delivered: Some(delivered),
            ..
        }) = inbound
            && between
            && delivered.invalidated.is_none()
        {
            assert_ne!((ulpdu[0] & 0x3C, ulpdu[1] & 0x30), (0, 0));
        }
        return;
    };
    assert!(between);
    let fits = memory.receive.is_some_and(|buffer| len <= buffer);
    let expected = Inbound::Send {
        payload_at: UNTAGGED_HEADER,
        offset: 0,
        len,
        delivered: Some(SendDelivered {
            len,
            solicited,
            invalidated: None,
        }),
    };
    match inbound {
        Ok(inbound) => assert!(fits && *inbound == expected),
        Err(_) => assert!(!fits),
    }
}

/// Compares the fast path for a Write with `receive`. If the fast path takes a segment, `receive`
/// must accept it too, or refuse it only because of the memory. The fast path must take every Write
/// that has payload and no reserved bit set.
fn same_write(
    stream: &Stream,
    memory: &ModelMemory,
    ulpdu: &[u8],
    segment: Option<WriteSegment>,
    inbound: &Result<Inbound<Place>, StreamError>,
) {
    let Some(segment) = segment else {
        if let Ok(Inbound::Write { len: 1.., .. }) = inbound {
            assert_ne!((ulpdu[0] & 0x3C, ulpdu[1] & 0x30), (0, 0));
        }
        return;
    };
    let WriteSegment {
        stag,
        to,
        len,
        last,
    } = segment;
    let expected = memory
        .check_write(stag, to.0, len)
        .map(|place| Inbound::Write {
            target: Some(place),
            payload_at: TAGGED_HEADER,
            len,
            last,
        });
    let expected = expected.map_err(|fault| {
        StreamError::Access(AccessError {
            opcode: Opcode::Write,
            fault,
            stag,
            to,
            len,
        })
    });
    assert_eq!(*inbound, expected);
    if inbound.is_ok() {
        let mut twin = Stream::new(stream.config);
        twin.write_received(segment);
        assert_eq!(twin.write_begun, stream.write_begun);
    }
}

proptest::proptest! {
    #[test]
    fn the_headers_of_a_whole_message_are_those_of_its_only_segment(
        write in proptest::prelude::any::<(u32, u64)>(),
        kinds in proptest::collection::vec(proptest::prelude::any::<(bool, Option<u32>)>(), 1..8),
        len in 0u32..1000,
    ) {
        let (mut long, mut short) = (stream(), stream());
        let only = |message: OutMessage| {
            let (mut message, mut header) = (message, [0; MAX_HEADER]);
            let segment = message.next_segment(1500, &mut header).unwrap();
            assert!(segment.last && segment.len == len);
            header[..segment.header_len].to_vec()
        };
        let (stag, to) = (STag(write.0), TaggedOffset(write.1));
        assert_eq!(short.whole_write(stag, to).unwrap(), *only(long.begin_write(stag, to, len)));
        for (solicited, invalidate) in kinds {
            let kind = SendKind { solicited, invalidate: invalidate.map(STag) };
            assert_eq!(short.whole_send(kind).unwrap(), *only(long.begin_send(kind, len)));
            short.whole_send_framed();
        }
        for stream in [&mut long, &mut short] {
            stream.llp_lost();
        }
        assert!(long.begin_send(SendKind::default(), len).is_done());
        assert!(short.whole_send(SendKind::default()).is_none());
        assert!(short.whole_write(stag, to).is_none());
    }
}

/// Returns the next request of the peer, which must be a Read.
fn read_job(stream: &mut Stream) -> ReadJob {
    match stream.next_request() {
        Some(Job::Read(job)) => job,
        other => panic!("{other:?}"),
    }
}

/// Returns the next request of the peer, which must be an Atomic Operation.
fn atomic_job(stream: &mut Stream) -> AtomicJob {
    match stream.next_request() {
        Some(Job::Atomic(job)) => job,
        other => panic!("{other:?}"),
    }
}

/// A FetchAdd of 1.
const ADD_ONE: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

fn read_request(len: u32) -> ReadRequestHeader {
    ReadRequestHeader {
        sink_stag: STag(0x77),
        sink_to: TaggedOffset(900),
        len,
        source_stag: READABLE,
        source_to: TaggedOffset(5000),
    }
}

#[test]
fn the_four_sends_have_their_control_bytes_and_count_messages() {
    let mut stream = stream();
    let kinds = [
        (false, None, 0x43, 0),
        (false, Some(STag(0xA1B2)), 0x44, 0xA1B2),
        (true, None, 0x45, 0),
        (true, Some(STag(0xC3D4)), 0x46, 0xC3D4),
    ];
    for (index, (solicited, invalidate, control, word)) in kinds.into_iter().enumerate() {
        let message = stream.begin_send(
            SendKind {
                solicited,
                invalidate,
            },
            0,
        );
        let mut expected = vec![0x41, control];
        for field in [word, 0, index as u32 + 1, 0] {
            expected.extend(u32::to_be_bytes(field));
        }
        assert_eq!(single(message), expected);
    }
}

#[test]
fn a_send_is_delivered_with_its_last_segment() {
    let (mut ours, mut theirs, mut memory) = (stream(), stream(), memory());
    memory.receive = Some(300);
    let payload: Vec<u8> = (0..300).map(|index| index as u8).collect();
    let kind = SendKind {
        solicited: true,
        invalidate: Some(WRITABLE),
    };
    let segments = ulpdus(ours.begin_send(kind, 300), &payload, 128);
    assert_eq!(segments.len(), 3);
    for (index, ulpdu) in segments.iter().enumerate() {
        let inbound = receive(&mut theirs, &memory, ulpdu);
        let delivered = (index == 2).then_some(SendDelivered {
            len: 300,
            solicited: true,
            invalidated: Some(WRITABLE),
        });
        let (offset, len) = ([0, 110, 220][index], [110, 110, 80][index]);
        assert_eq!(
            inbound,
            Ok(Inbound::Send {
                payload_at: 18,
                offset,
                len,
                delivered
            })
        );
    }
}

#[test]
fn a_write_names_the_place_of_every_segment() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let payload = [7; 200];
    let message = ours.begin_write(WRITABLE, TaggedOffset(5800), 200);
    let inbound: Vec<_> = ulpdus(message, &payload, 128)
        .iter()
        .map(|ulpdu| receive(&mut theirs, &memory, ulpdu))
        .collect();
    let segment = |at, len, last| {
        Ok(Inbound::Write {
            target: Some((0, at)),
            payload_at: 14,
            len,
            last,
        })
    };
    assert_eq!(inbound, [segment(800, 114, false), segment(914, 86, true)]);
}

#[test]
fn a_write_of_no_bytes_is_taken_whatever_it_names() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let ulpdu = single(ours.begin_write(STag(0xBAD), TaggedOffset(u64::MAX), 0));
    let inbound = receive(&mut theirs, &memory, &ulpdu);
    // 5041-5.2-11
    assert_eq!(
        inbound,
        Ok(Inbound::Write {
            target: None,
            payload_at: 14,
            len: 0,
            last: true
        })
    );
}

/// 5041-6.2.1-01: a FIN between two segments of one message is no graceful end.
#[test]
fn a_message_is_under_way_from_its_first_segment_to_its_last() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let request = single(ours.begin_read(read_request(250)).unwrap());
    receive(&mut theirs, &memory, &request).unwrap();
    assert_eq!(theirs.message_under_way(), None, "one segment is a whole");
    assert_eq!(ours.message_under_way(), None, "asked is not begun");
    let job = read_job(&mut theirs);
    let solicited = SendKind {
        solicited: true,
        ..SendKind::default()
    };
    let messages = [
        (Opcode::ReadResponse, theirs.begin_read_response(job)),
        (
            Opcode::Write,
            theirs.begin_write(WRITABLE, TaggedOffset(5000), 250),
        ),
        (Opcode::SendSolicited, theirs.begin_send(solicited, 250)),
    ];
    for (opcode, message) in messages {
        let segments = ulpdus(message, &[3; 250], 128);
        for ulpdu in &segments {
            receive(&mut ours, &memory, ulpdu).unwrap();
            let under_way = (Some(ulpdu) != segments.last()).then_some(opcode);
            assert_eq!(ours.message_under_way(), under_way);
        }
        assert_eq!(segments.len(), 3, "{opcode}");
    }
}

#[test]
fn a_read_is_answered_in_segments_and_complete_with_the_last() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let request = read_request(250);
    let ulpdu = single(ours.begin_read(request).unwrap());
    assert_eq!(ulpdu.len(), 46);
    assert_eq!(
        receive(&mut theirs, &memory, &ulpdu),
        Ok(Inbound::ReadRequest)
    );
    assert!(theirs.requests_pending());

    let job = read_job(&mut theirs);
    assert_eq!(job.header(), &request);
    assert!(!theirs.requests_pending());
    let message = theirs.begin_read_response(job);
    assert_eq!(message.read_response_progress(), Some((request, 0)));
    let segments = ulpdus(message, &[9; 250], 128);
    theirs.response_sent();

    let expected = [(0, 114, false), (114, 114, false), (228, 22, true)];
    for (ulpdu, (offset, len, complete)) in segments.iter().zip(expected) {
        assert_eq!(ours.requests_outstanding(), 1);
        let inbound = receive(&mut ours, &memory, ulpdu);
        assert_eq!(
            inbound,
            Ok(Inbound::ReadResponse {
                payload_at: 14,
                offset,
                len,
                complete
            })
        );
    }
    assert_eq!(ours.requests_outstanding(), 0);
}

#[test]
fn a_read_of_no_bytes_is_answered_with_none_whatever_it_names() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let request = ReadRequestHeader {
        source_stag: STag(0xBAD),
        ..read_request(0)
    };
    let ulpdu = single(ours.begin_read(request).unwrap());
    // 5040-5.2.1-13
    assert_eq!(
        receive(&mut theirs, &memory, &ulpdu),
        Ok(Inbound::ReadRequest)
    );
    let job = read_job(&mut theirs);
    let mut ulpdu = single(theirs.begin_read_response(job)); // 5040-5.2.1-14
    ulpdu[2..14].fill(0xEE); // STag and TO are not checked (5041-5.2-11)
    let inbound = receive(&mut ours, &memory, &ulpdu);
    let complete = Inbound::ReadResponse {
        payload_at: 14,
        offset: 0,
        len: 0,
        complete: true,
    };
    assert_eq!(inbound, Ok(complete));
}

#[test]
fn progress_of_a_response_is_what_was_sent_before_the_last_segment() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let ulpdu = single(ours.begin_read(read_request(250)).unwrap());
    receive(&mut theirs, &memory, &ulpdu).unwrap();
    let job = read_job(&mut theirs);
    let mut message = theirs.begin_read_response(job);
    let mut header = [0; MAX_HEADER];
    for sent in [0, 114, 228] {
        message.next_segment(128, &mut header).unwrap();
        assert_eq!(
            message.read_response_progress(),
            Some((read_request(250), sent))
        );
    }
    let send = ours.begin_send(SendKind::default(), 1);
    assert_eq!(send.read_response_progress(), None);
}

#[test]
fn no_more_reads_than_ord_are_outstanding() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let mut requests = Vec::new();
    for outstanding in 0..2 {
        assert!(ours.ord_available());
        assert_eq!(ours.requests_outstanding(), outstanding);
        requests.push(single(ours.begin_read(read_request(0)).unwrap()));
    }
    assert!(!ours.ord_available());
    assert_eq!(
        ours.begin_read(read_request(0)),
        Err(OrdExhausted { ord: 2 })
    ); // 5040-6.1-04

    receive(&mut theirs, &memory, &requests[0]).unwrap();
    let job = read_job(&mut theirs);
    let response = single(theirs.begin_read_response(job));
    receive(&mut ours, &memory, &response).unwrap();
    // The request has MSN 3 on queue 1: the refused request used no MSN.
    assert_eq!(
        single(ours.begin_read(read_request(0)).unwrap())[10..14],
        [0, 0, 0, 3]
    );
}

#[test]
fn a_place_in_ird_is_free_again_when_the_response_is_sent() {
    let (mut ours, mut theirs, memory) = (
        Stream::new(StreamConfig { ird: 0, ord: 9 }),
        stream(),
        memory(),
    );
    let mut next = || single(ours.begin_read(read_request(10)).unwrap());
    assert!(receive(&mut theirs, &memory, &next()).is_ok());
    assert!(receive(&mut theirs, &memory, &next()).is_ok());
    let job = read_job(&mut theirs);
    let _response = theirs.begin_read_response(job);
    theirs.response_sent();
    assert!(receive(&mut theirs, &memory, &next()).is_ok());
    // 5040-6.1-05: one request was taken but is not answered yet; two are waiting.
    let error = StreamError::IrdExceeded { ird: 2 };
    assert_eq!(receive(&mut theirs, &memory, &next()), Err(error));
}

#[test]
fn memory_is_reserved_when_the_stream_is_made() {
    let stream = Stream::new(StreamConfig { ird: 100, ord: 50 });
    assert!(stream.unanswered.capacity() >= 100);
    assert!(stream.outstanding.capacity() >= 50);
}

#[test]
fn a_terminate_is_taken_without_any_receive_and_ends_the_stream() {
    let (mut ours, mut theirs, mut memory) = (stream(), stream(), memory());
    memory.receive = None; // 5040-5.4-04
    let terminate = Stream::terminate_for(&StreamError::Mpa(2), None).unwrap();
    let ulpdu = single(ours.begin_terminate(&terminate).unwrap());
    assert_eq!(ulpdu.len(), 22);
    let inbound = receive(&mut theirs, &memory, &ulpdu);
    assert_eq!(inbound, Ok(Inbound::Terminate(terminate)));
    assert_eq!(theirs.state(), StreamState::Terminated);
    assert_eq!(
        receive(&mut theirs, &memory, &ulpdu),
        Err(StreamError::Ended)
    );
    assert_eq!(theirs.begin_terminate(&terminate), None);
    assert_eq!(theirs.error(), None);
}

#[test]
fn nothing_is_sent_after_a_terminate() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let request = single(theirs.begin_read(read_request(10)).unwrap());
    receive(&mut ours, &memory, &request).unwrap();
    receive(
        &mut ours,
        &memory,
        &single(theirs.begin_read(read_request(10)).unwrap()),
    )
    .unwrap();
    let job = read_job(&mut ours);

    let terminate = Stream::terminate_for(&StreamError::LocalCatastrophic, None).unwrap();
    assert!(ours.begin_terminate(&terminate).is_some());
    assert_eq!(ours.begin_terminate(&terminate), None);
    // 5040-5.4-07
    let silent = [
        ours.begin_send(SendKind::default(), 10),
        ours.begin_write(WRITABLE, TaggedOffset(0), 10),
        ours.begin_read(read_request(10)).unwrap(),
        ours.begin_read_response(job),
        ours.begin_immediate([0; 8], false),
        ours.begin_atomic(ATOMIC, TaggedOffset(5000), ADD_ONE)
            .unwrap(),
    ];
    for message in silent {
        assert!(message.is_done());
        assert!(ulpdus(message, &[0; 10], 1500).is_empty());
    }
    assert_eq!(ours.requests_outstanding(), 0);
    assert_eq!(ours.next_request(), None);
}

#[test]
fn a_half_closed_stream_still_works_the_other_way() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    ours.close();
    theirs.peer_closed();
    assert_eq!(
        (ours.state(), theirs.state()),
        (StreamState::Closing, StreamState::PeerClosed)
    );
    assert!(ours.begin_send(SendKind::default(), 0).is_done()); // 5041-6.2.1-02
    let ulpdu = single(theirs.begin_send(SendKind::default(), 0)); // 5041-6.2.1-04
    assert!(receive(&mut ours, &memory, &ulpdu).is_ok()); // 5041-6.2.1-06
    assert_eq!(
        receive(&mut theirs, &memory, &ulpdu),
        Err(StreamError::Ended)
    );
    theirs.close();
    ours.peer_closed();
    assert_eq!(
        (ours.state(), theirs.state()),
        (StreamState::Closed, StreamState::Closed)
    );
}

#[test]
fn an_error_of_the_llp_can_still_be_told_to_the_peer() {
    let mut stream = stream();
    stream.fail(StreamError::Mpa(2));
    stream.fail(StreamError::LocalCatastrophic);
    assert_eq!(stream.error(), Some(StreamError::Mpa(2))); // 5040-7.1-05
    assert_eq!(stream.state(), StreamState::Failed);
    let terminate = Stream::terminate_for(&StreamError::Mpa(2), None).unwrap();
    assert!(stream.begin_terminate(&terminate).is_some());
    stream.llp_lost();
    assert_eq!(stream.state(), StreamState::Closed);
}

#[test]
fn only_the_first_segment_of_a_message_for_the_receive_queue_takes_a_receive() {
    let memory = ModelMemory {
        receive: Some(100),
        ..memory()
    };
    let (mut a, mut b) = (stream(), stream());
    let head = |ulpdu: &[u8]| ulpdu[..ulpdu.len().min(HEAD_LEN)].to_vec();
    let write = ulpdus(a.begin_write(WRITABLE, TaggedOffset(1000), 4), &[7; 4], 64);
    assert!(!b.takes_receive(&head(&write[0])));
    let read = single(a.begin_read(read_request(4)).unwrap());
    assert!(!b.takes_receive(&head(&read)));
    receive(&mut b, &memory, &read).unwrap();
    let send = ulpdus(a.begin_send(SendKind::default(), 100), &[7; 100], 64);
    assert_eq!(send.len(), 3);
    // Asking twice gives the same answer, because the query does not change the stream.
    for _ in 0..2 {
        assert!(b.takes_receive(&head(&send[0])));
    }
    receive(&mut b, &memory, &send[0]).unwrap();
    for segment in &send[1..] {
        assert!(!b.takes_receive(&head(segment)));
        receive(&mut b, &memory, segment).unwrap();
    }
    let send = single(a.begin_send(SendKind::default(), 0));
    assert!(b.takes_receive(&head(&send)), "one of no bytes, too");
    // Segments that are refused before the receive is considered, because of version, opcode, queue
    // or MSN.
    for (byte, value) in [(0, 0x40), (1, 0x03), (1, 0x4F), (9, 1), (13, 9)] {
        let mut wrong = send.clone();
        wrong[byte] = value;
        assert!(!b.takes_receive(&head(&wrong)), "byte {byte}");
        assert!(!b.takes_receive(&head(&wrong)[..10]));
    }
    b.peer_closed();
    assert!(!b.takes_receive(&head(&send)));
}
