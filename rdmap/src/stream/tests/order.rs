//! Order of the checks: if several things are wrong, the lowest layer reports its error.

use super::*;
use uwarp_ddp::{DdpError, Qn, UntaggedFault};

/// Starts from a Send with many faults and corrects one after the other. The faults are DDP
/// version, Queue Number, RDMAP version, opcode, MSN, Message Offset and length.
#[test]
fn checks_go_from_the_bottom_up() {
    let memory = ModelMemory {
        receive: Some(3),
        ..memory()
    };
    let mut ulpdu = vec![
        0x40, 0x0F, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 9, 0, 0, 0, 9, 1, 2, 3, 4,
    ];
    let untagged = |fault| StreamError::Ddp(DdpError::Untagged(fault));
    let steps: [(usize, u8, StreamError); 8] = [
        (
            0,
            0x41,
            StreamError::Ddp(DdpError::Version {
                tagged: false,
                got: 0,
            }),
        ),
        (9, 1, untagged(UntaggedFault::InvalidQn(Qn(9)))),
        (1, 0x4F, StreamError::RdmapVersion(0)),
        (1, 0x43, StreamError::UnexpectedOpcode(0xF)),
        (
            9,
            0,
            StreamError::WrongQueue {
                opcode: Opcode::Send,
                got: Qn(1),
            },
        ),
        (
            13,
            1,
            untagged(UntaggedFault::MsnRange {
                expected: Msn(1),
                got: Msn(9),
            }),
        ),
        (
            17,
            0,
            untagged(UntaggedFault::InvalidMo {
                expected: 0,
                got: 9,
            }),
        ),
        (
            0,
            0x41,
            untagged(UntaggedFault::MessageTooLong {
                qn: QN_SEND,
                end: 4,
                buffer: 3,
            }),
        ),
    ];
    for (at, right, error) in steps {
        assert_eq!(receive(&mut stream(), &memory, &ulpdu), Err(error));
        ulpdu[at] = right;
    }
    ulpdu.pop();
    assert!(receive(&mut stream(), &memory, &ulpdu).is_ok());
}

#[test]
fn a_read_request_beyond_ird_is_told_before_its_contents_are_looked_at() {
    let mut stream = Stream::new(StreamConfig { ird: 0, ord: 0 });
    let mut peer = super::stream();
    let bad = ReadRequestHeader {
        source_stag: STag(0xBAD),
        ..read_request(10)
    };
    let ulpdu = single(peer.begin_read(bad).unwrap());
    let error = StreamError::IrdExceeded { ird: 0 };
    assert_eq!(receive(&mut stream, &memory(), &ulpdu), Err(error));
}

#[test]
fn messages_of_different_queues_and_of_tagged_buffers_may_arrive_between_segments_of_a_send() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let send = ulpdus(ours.begin_send(SendKind::default(), 150), &[1; 150], 128);
    let write = ulpdus(
        ours.begin_write(WRITABLE, TaggedOffset(5000), 9),
        &[2; 9],
        128,
    );
    let read = single(ours.begin_read(read_request(9)).unwrap());
    for ulpdu in [&send[0], &write[0], &read, &send[1]] {
        assert!(receive(&mut theirs, &memory, ulpdu).is_ok());
    }
}
