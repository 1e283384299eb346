//! Messages of RFC 7306 between two sides: the sent bytes, the completions, and an Atomic Operation
//! whose memory is deregistered before its turn.

use super::wire::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, IMMEDIATE, READ_RESPONSE, SEND_SE, Segment, WRITE, segments,
};
use super::*;
use crate::mem::RemoteBuffer;
use uwarp_ddp::{TaggedFault, TaggedOffset};
use uwarp_rdmap::{AtomicFault, StreamError};

/// Adds a region for atomics to `memory`.
fn words(memory: &Memory) -> Arc<Region> {
    region(memory, PAGE, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)
}

/// Adds a region of `len` bytes to `memory`.
fn region(memory: &Memory, len: usize, access: Access) -> Arc<Region> {
    let backing = Backing::buffer(Arc::new(Buffer::zeroed(len).unwrap()));
    let spec = RegionSpec {
        memory: backing,
        to_base: None,
        pd: 1,
        qp: None,
        access,
    };
    memory.table.insert(spec).unwrap()
}

/// Returns an element of 8 bytes in the client's memory, for the result of an atomic.
fn sink(client: &End, nth: u64) -> [Sge; 1] {
    [Sge {
        addr: client.memory.open.to_base() + 8 * nth,
        len: 8,
        lkey: client.memory.open.stag().0,
    }]
}

fn opcodes(bytes: &[u8]) -> Vec<u8> {
    let (sent, whole) = segments(bytes, false);
    assert!(whole);
    sent.iter()
        .map(|segment: &Segment| segment.opcode)
        .collect()
}

#[test]
fn immediate_data_follows_its_write_before_anything_else() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    server.post_receives(3);
    let (open, rkey) = (memory.open.to_base(), memory.open.stag().0);
    let source = [Sge {
        len: 4096,
        ..sink(&client, 0)[0]
    }];
    // The server has posted two Reads. The client answers one of them before the Write. The second
    // answer has its turn after the Write, but does not come between it and its Immediate Data.
    let answer = {
        let (addr, rkey) = (client.memory.open.to_base(), client.memory.open.stag().0);
        let into = [Sge {
            addr: memory.open.to_base(),
            len: 8,
            lkey: memory.open.stag().0,
        }];
        client
            .conn
            .post_send(&SendWr::send_inline(9, b"first FPDU"))
            .unwrap();
        server.deliver(&client.bytes(), &pool);
        for wr_id in [5, 6] {
            let read = SendWr::read(wr_id, &into, RemoteBuffer::at(addr, rkey));
            server.conn.post_send(&read).unwrap();
        }
        server.bytes()
    };
    let wr = SendWr::write_with_immediate(1, &source, RemoteBuffer::at(open, rkey), *b"imm data");
    client.conn.post_send(&wr).unwrap();
    client.deliver(&answer, &pool);
    let sent = client.bytes();
    let order = opcodes(&sent);
    let due = [READ_RESPONSE, WRITE, WRITE, WRITE, IMMEDIATE, READ_RESPONSE];
    assert_eq!(order, due);

    server.deliver(&sent, &pool);
    let done = server.completions();
    let immediate: Vec<_> = done.iter().filter_map(|done| done.immediate).collect();
    assert_eq!(immediate, [*b"imm data"]);
}

#[test]
fn immediate_data_of_a_send_precedes_it_before_anything_else() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    client.conn.take_send_immediate();
    server.conn.take_send_immediate();
    server.post_receives(2);
    // The client has to answer two Reads of the server, and takes turns.
    let first = SendWr::send_inline(9, b"first FPDU");
    client.conn.post_send(&first).unwrap();
    server.deliver(&client.bytes(), &pool);
    let from = RemoteBuffer::at(client.memory.open.to_base(), client.memory.open.stag().0);
    let into = [Sge {
        lkey: memory.open.stag().0,
        addr: memory.open.to_base(),
        len: 8,
    }];
    for wr_id in [5, 6] {
        let read = SendWr::read(wr_id, &into, from);
        server.conn.post_send(&read).unwrap();
    }
    let reads = server.bytes();
    let payload = [Sge {
        len: 4096,
        ..sink(&client, 0)[0]
    }];
    let wr = SendWr::send_with_immediate(1, &payload, *b"4321").solicited();
    client.conn.post_send(&wr).unwrap();
    client.deliver(&reads, &pool);
    let sent = client.bytes();
    let order = opcodes(&sent);
    let due = [
        READ_RESPONSE,
        IMMEDIATE,
        SEND_SE,
        SEND_SE,
        SEND_SE,
        READ_RESPONSE,
    ];
    assert_eq!(order, due);
    // The receive is too short, and the connection ends as it would without Immediate Data.
    server.deliver(&sent, &pool);
    let done = server.completions();
    assert_eq!(done.last().unwrap().status, Status::LocalLength, "{done:?}");
}

#[test]
fn a_write_with_immediate_completes_when_the_llp_has_both_messages() {
    // 5040-5.5-06: a message that is framed, but not yet taken by the LLP, does not count as sent.
    let memory = Memory::new();
    let (mut client, _server, _pool) = connected(&Settings::default(), &memory);
    let (open, rkey) = (memory.open.to_base(), memory.open.stag().0);
    let wr =
        SendWr::write_with_immediate_inline(1, &[1; 100], RemoteBuffer::at(open, rkey), [2; 8]);
    client.conn.post_send(&wr).unwrap();
    client.conn.fill();
    let all = client.conn.tx.framed_to() - client.conn.tx.taken_to();
    client.conn.taken(usize::try_from(all - 1).unwrap());
    assert_eq!(client.completions(), []);
    client.conn.taken(1);
    assert_eq!(client.completions().len(), 1);
}

#[test]
fn atomics_are_carried_out_in_their_turn_and_answered_with_what_was_there() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    let region = words(&memory);
    let (to, rkey) = (region.to_base(), region.stag().0);
    for nth in 0..4 {
        let sges = sink(&client, nth);
        let wr = SendWr::fetch_add(nth, &sges, RemoteBuffer::at(to, rkey), 10);
        client.conn.post_send(&wr).unwrap();
    }
    let requests = client.bytes();
    assert_eq!(opcodes(&requests), [ATOMIC_REQUEST; 4]);
    server.deliver(&requests, &pool);
    // 7306-5.4-02, 7306-5.2.1-08: delivered, but not executed yet.
    let mut word = [0; 8];
    region.read_at(0, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 0);
    let answers = server.bytes();
    assert_eq!(opcodes(&answers), [ATOMIC_RESPONSE; 4]);
    region.read_at(0, &mut word).unwrap();
    assert_eq!(u64::from_ne_bytes(word), 40);
    // 7306-5.4-04
    assert_eq!(client.completions(), []);
    client.deliver(&answers, &pool);
    assert_eq!(client.completions().len(), 4);
    let mut found = [0; 32];
    client.memory.open.read_at(0, &mut found).unwrap();
    let found: Vec<u64> = found
        .chunks(8)
        .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(found, [0, 10, 20, 30]);
}

#[test]
fn an_atomic_whose_memory_goes_before_its_turn_ends_with_its_ddp_header() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    let region = words(&memory);
    let sges = sink(&client, 0);
    let wr = SendWr::fetch_add(
        1,
        &sges,
        RemoteBuffer::at(region.to_base(), region.stag().0),
        1,
    );
    client.conn.post_send(&wr).unwrap();
    server.deliver(&client.bytes(), &pool);
    memory.table.remove(region.stag()).unwrap();
    client.deliver(&server.bytes(), &pool);
    let Some(EndReason::TerminateSent {
        error,
        terminate: Some(terminate),
        ..
    }) = &server.conn.end
    else {
        panic!("{:?}", server.conn.end)
    };
    let gone = AtomicFault::Tagged(TaggedFault::InvalidSTag);
    let refused = StreamError::of_atomic(region.stag(), TaggedOffset(region.to_base()), gone);
    assert_eq!(*error, refused);
    // 7306-8.1-02
    assert!(terminate.ddp_bytes().is_some() && terminate.rdma_header().is_none());
    let done: Vec<_> = client
        .completions()
        .iter()
        .map(|done| (done.wr_id, done.status))
        .collect();
    assert_eq!(done, [(1, Status::RemoteAccess)]);
}

/// Removes a right of the peer from the QP, as Modify QP does.
fn without(end: &mut End, right: Access) {
    let left = [
        Access::REMOTE_READ,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ];
    let left = left.into_iter().filter(|each| *each != right);
    end.conn.attr.access = left.fold(Access::NONE, |all, each| all | each);
}

#[test]
fn an_atomic_that_waits_for_its_turn_is_not_done_when_the_qp_has_lost_the_right() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    let region = words(&memory);
    let (to, rkey) = (region.to_base(), region.stag().0);
    // The atomic is delivered while the peer has the right, and its turn comes after a Read.
    let (into, found) = (client.source(4000), sink(&client, 511));
    let open = (memory.open.to_base(), memory.open.stag().0);
    for wr in [
        SendWr::read(1, &into, RemoteBuffer::at(open.0, open.1)),
        SendWr::fetch_add(2, &found, RemoteBuffer::at(to, rkey), 1),
    ] {
        client.conn.post_send(&wr).unwrap();
    }
    server.deliver(&client.bytes(), &pool);
    without(&mut server, Access::REMOTE_ATOMIC);
    client.deliver(&server.bytes(), &pool);
    let mut word = [0; 8];
    region.read_at(0, &mut word).unwrap();
    assert_eq!(word, [0; 8]);
    let Some(EndReason::TerminateSent { error, .. }) = &server.conn.end else {
        panic!("{:?}", server.conn.end)
    };
    let refused = AtomicFault::Tagged(TaggedFault::AccessRights);
    let refused = StreamError::of_atomic(region.stag(), TaggedOffset(to), refused);
    assert_eq!(*error, refused);
    assert_eq!(
        client.numbers(),
        [(1, Status::Success), (2, Status::RemoteAccess)]
    );
}

#[test]
fn a_read_that_is_being_answered_is_finished_when_the_qp_has_lost_the_right() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    // Longer than one batch.
    const LEN: usize = 1 << 20;
    let source = region(&memory, LEN, Access::REMOTE_READ);
    let into = region(&client.memory, LEN, Access::LOCAL_WRITE);
    let sges = [Sge {
        addr: into.to_base(),
        len: LEN as u32,
        lkey: into.stag().0,
    }];
    let read = |wr_id| {
        SendWr::read(
            wr_id,
            &sges,
            RemoteBuffer::at(source.to_base(), source.stag().0),
        )
    };
    client.conn.post_send(&read(1)).unwrap();
    server.deliver(&client.bytes(), &pool);
    server.conn.fill();
    let Stage::Open(stream) = &server.conn.stage else {
        panic!("open")
    };
    assert!(
        stream.outbound.current.is_some(),
        "in the middle of the Response"
    );
    without(&mut server, Access::REMOTE_READ);
    pump(&mut client, &mut server, &pool);
    assert_eq!(client.numbers(), [(1, Status::Success)]);
    client.conn.post_send(&read(2)).unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(client.numbers(), [(2, Status::RemoteAccess)]);
}

#[test]
fn the_alignment_is_that_of_the_memory_and_not_of_the_offset() {
    // 7306-5.2.1-01: a region whose TO is odd while its memory is aligned, and the reverse.
    let memory = Memory::new();
    let asker = crate::mem::Asker {
        pd: 1,
        qp: 2,
        access: Access::ALL,
    };
    for (to_base, to, expected) in [
        (0x1003, 0x1003, Ok(())),
        (0x1003, 0x100B, Ok(())),
        (0x1003, 0x1008, Err(AtomicFault::Misaligned)),
        (0x1000, 0x1004, Err(AtomicFault::Misaligned)),
    ] {
        let backing = Backing::buffer(Arc::new(Buffer::zeroed(64).unwrap()));
        let spec = RegionSpec {
            memory: backing,
            to_base: Some(to_base),
            pd: 1,
            qp: None,
            access: Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
        };
        let region = memory.table.insert(spec).unwrap();
        let checked = memory.table.check_atomic(region.stag(), to, &asker);
        assert_eq!(checked.map(|_| ()), expected, "{to:#x} of {to_base:#x}");
        memory.table.remove(region.stag()).unwrap();
    }
}

/// The Read is checked when it arrives, and again when its turn comes.
#[test]
fn the_cause_of_a_read_that_waited_names_the_right_that_the_qp_has_lost() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    let sink = client.source(16);
    let open = RemoteBuffer::at(memory.open.to_base(), memory.open.stag().0);
    client
        .conn
        .post_send(&SendWr::read(1, &sink, open))
        .unwrap();
    server.deliver(&client.bytes(), &pool);
    without(&mut server, Access::REMOTE_READ);
    client.deliver(&server.bytes(), &pool);
    let Some(EndReason::TerminateSent { error, cause, .. }) = &server.conn.end else {
        panic!("{:?}", server.conn.end)
    };
    let StreamError::Access(refused) = error else {
        panic!("{error:?}")
    };
    assert_eq!(refused.fault, TaggedFault::AccessRights);
    let words = cause.to_string();
    assert!(words.contains("access rights violation"), "{words}");
    assert!(!words.contains("deregistered"), "{words}");
}
