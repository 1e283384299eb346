//! Seeds from a conversation between two streams.

use uwarp_ddp::{STag, TaggedFault, TaggedOffset};
use uwarp_fuzz::input::Seed;
use uwarp_rdmap::{
    AccessError, AtomicFault, AtomicOp, Job, MAX_HEADER, MAX_TERMINATE_HEADER, Memory, Opcode,
    OutMessage, ReadRequestHeader, SendKind, Stream, StreamConfig, StreamError,
};

/// Memory that permits every access.
struct Open;

impl Memory for Open {
    type Target = ();
    fn check_write(&self, _: STag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn check_read(&self, _: STag, _: u64, _: u32) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn check_atomic(&self, _: STag, _: u64) -> Result<(), AtomicFault> {
        Ok(())
    }
    fn check_invalidate(&self, _: STag) -> Result<(), TaggedFault> {
        Ok(())
    }
    fn receive_buffer(&self) -> Option<u32> {
        Some(4096)
    }
}

fn ulpdus(mut message: OutMessage, mulpdu: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut header = [0; MAX_HEADER];
    while let Some(segment) = message.next_segment(mulpdu, &mut header) {
        let mut ulpdu = header[..segment.header_len].to_vec();
        ulpdu.resize(ulpdu.len() + segment.len as usize, 0x5A);
        all.push(ulpdu);
    }
    all
}

fn stream() -> Stream {
    Stream::new(StreamConfig { ird: 4, ord: 4 })
}

const READ: ReadRequestHeader = ReadRequestHeader {
    sink_stag: STag(0x0BAD_5EED),
    sink_to: TaggedOffset(77),
    len: 300,
    source_stag: STag(0x101),
    source_to: TaggedOffset(16),
};

const SWAP: AtomicOp = AtomicOp::CompareSwap {
    compare: 1,
    compare_mask: 0xFFFF,
    swap: 2,
    swap_mask: 0xFF,
};

/// Returns the segments of every message that a peer sends, addressed to the memory of the model.
pub(crate) fn conversation(mulpdu: usize) -> Vec<Vec<u8>> {
    let mut peer = stream();
    let mut all = ulpdus(peer.begin_send(SendKind::default(), 450), mulpdu);
    all.extend(ulpdus(
        peer.begin_write(STag(0x202), TaggedOffset(5100), 600),
        mulpdu,
    ));
    all.extend(ulpdus(peer.begin_read(READ).unwrap(), mulpdu));
    all.extend(ulpdus(
        peer.begin_atomic(STag(0x101), TaggedOffset(8), SWAP)
            .unwrap(),
        mulpdu,
    ));
    all.extend(ulpdus(peer.begin_immediate(*b"12345678", true), mulpdu));
    all
}

/// Returns the last Send of a conversation, which invalidates an STag.
fn invalidating() -> Vec<u8> {
    let mut peer = stream();
    let _ = (
        peer.begin_send(SendKind::default(), 0),
        peer.begin_immediate([0; 8], false),
    );
    let kind = SendKind {
        solicited: true,
        invalidate: Some(STag(0x505)),
    };
    ulpdus(peer.begin_send(kind, 9), 128).remove(0)
}

/// Returns the responses of a peer to a Read and an atomic operation of the target's stream.
fn answers(mulpdu: usize) -> Vec<Vec<u8>> {
    let (mut asking, mut peer) = (stream(), stream());
    // The target's `send` builds its Read with the same arguments.
    let read = ReadRequestHeader {
        sink_stag: STag(0x101 ^ 0x55),
        sink_to: TaggedOffset(48),
        ..READ
    };
    let mut all = ulpdus(asking.begin_read(read).unwrap(), 128);
    all.extend(ulpdus(
        asking
            .begin_atomic(STag(0x101), TaggedOffset(16), SWAP)
            .unwrap(),
        128,
    ));
    for request in &all {
        peer.receive(&Open, request, request.len()).unwrap();
    }
    let mut answers = Vec::new();
    while let Some(job) = peer.next_request() {
        let message = match job {
            Job::Read(job) => peer.begin_read_response(job),
            Job::Atomic(job) => peer.begin_atomic_response(job, 7),
        };
        answers.extend(ulpdus(message, mulpdu));
        peer.response_sent();
    }
    answers
}

/// Creates the seeds of `rdmap_message`: the conversation as it arrives, with receives, requests
/// and responses in between.
pub(crate) fn received() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for mulpdu in [128, 400, 1500] {
        let mut seed = Seed::new().u8(4).u8(4).u8(16).u16(600);
        // Our Read of 300 bytes and our CmpSwap, then their responses.
        seed = seed.u8(25).u8(10).u32(0x101).u64(16).u16(1500).u32(300);
        seed = seed.u8(25).u8(15).u32(0x101).u64(16).u16(1500).u32(1);
        for ulpdu in answers(mulpdu).into_iter().chain(conversation(mulpdu)) {
            seed = seed.u8(0).slice(&ulpdu);
        }
        seed = seed
            .u8(19)
            .u8(19)
            .u8(22)
            .u64(0)
            .u16(200)
            .u8(22)
            .u64(5)
            .u16(0);
        seed = seed.u8(0).slice(&invalidating());
        for kind in [0, 3, 4, 9] {
            seed = seed.u8(25).u8(kind).u32(9).u64(1 << 33).u16(140).u32(500);
        }
        let terminate = ulpdus(terminate(&StreamError::UnexpectedOpcode(15)), 128).remove(0);
        seeds.push(seed.u8(0).slice(&terminate).done());
    }
    seeds
}

fn terminate(error: &StreamError) -> OutMessage {
    let offending = conversation(128).remove(0);
    let message = Stream::terminate_for(error, Some((&offending[..70], offending.len()))).unwrap();
    stream().begin_terminate(&message).unwrap()
}

/// Creates the seeds of `rdmap_terminate`: headers for an error of each kind, and three in the
/// layout of Linux siw.
pub(crate) fn terminates() -> Vec<Vec<u8>> {
    let request = ulpdus(stream().begin_read(READ).unwrap(), 128).remove(0);
    let write = ulpdus(stream().begin_write(STag(1), TaggedOffset(2), 30), 128).remove(0);
    let bounds = AccessError {
        opcode: Opcode::Write,
        fault: TaggedFault::BaseOrBounds,
        stag: STag(1),
        to: TaggedOffset(2),
        len: 30,
    };
    let mut seeds = Vec::new();
    for (error, ulpdu) in [
        (
            AccessError::of_read(&READ, TaggedFault::AccessRights).into(),
            &request,
        ),
        (StreamError::IrdExceeded { ird: 4 }, &request),
        (StreamError::Access(bounds), &write),
        (StreamError::RdmapVersion(0), &write),
        (StreamError::Mpa(2), &write),
        (StreamError::LocalCatastrophic, &write),
    ] {
        let head = &ulpdu[..ulpdu.len().min(70)];
        let message = Stream::terminate_for(&error, Some((head, ulpdu.len()))).unwrap();
        let mut bytes = [0; MAX_TERMINATE_HEADER];
        let len = message.emit(&mut bytes);
        seeds.push(bytes[..len].to_vec());
    }
    // In siw's layout, layer and type are swapped, and flags M, D and R are the low bits of their
    // byte.
    seeds.push(vec![0x02, 2, 0, 0]);
    let mut siw = vec![0x10, 1, 7, 0, 0, 28];
    siw.extend_from_slice(&request);
    seeds.push(siw);
    let mut siw = vec![0x11, 0, 3, 0, 0, 30];
    siw.extend_from_slice(&write[..14]);
    seeds.push(siw);
    seeds
}

/// Creates the seeds of `ddp_placement`: segments near the edges of regions.
pub(crate) fn placed() -> Vec<Vec<u8>> {
    let payload = [0x11; 64];
    let mut seeds = Vec::new();
    for region in 0..7 {
        for offset in [0_u16, 0x4040, 0x4041, 0xC001] {
            // A Write to this place, a Send, and the stream's own Read with its response.
            let mut seed = Seed::new()
                .u8(3)
                .u8(0)
                .u8(0)
                .u8(region)
                .u16(offset)
                .slice(&payload);
            seed = seed.u8(3).u8(3).u8(0).u8(region).u16(0).slice(&payload);
            seed = seed.u8(1).u32(5).u64(6).u16(200);
            seed = seed
                .u8(3)
                .u8(2)
                .u8(1)
                .u8(region)
                .u16(0)
                .slice(&payload[..63]);
            seed = seed.u8(3).u8(2).u8(0).u8(region).u16(0).slice(&payload);
            let to = [0, 5000, 1 << 40, u64::MAX - 256][usize::from(region) % 4];
            seed = seed.u8(2).u8(region).u64(to).slice(&payload);
            seeds.push(seed.done());
        }
    }
    seeds
}
