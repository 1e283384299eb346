//! Immediate Data and Atomic Operations (RFC 7306), from one stream to another.

use super::*;
use uwarp_ddp::DdpError;

/// Passes the request of `ours` to `theirs` and the answer back. `original` is the value before the
/// operation.
fn round_trip(ours: &mut Stream, theirs: &mut Stream, op: AtomicOp, original: u64) -> Vec<u8> {
    let memory = memory();
    let request = ours.begin_atomic(ATOMIC, TaggedOffset(5008), op).unwrap();
    let request = single(request);
    assert_eq!(
        receive(theirs, &memory, &request),
        Ok(Inbound::AtomicRequest)
    );
    let job = atomic_job(theirs);
    assert_eq!(
        (job.stag(), job.to(), job.op()),
        (ATOMIC, TaggedOffset(5008), op)
    );
    let response = single(theirs.begin_atomic_response(job, original));
    theirs.response_sent();
    assert_eq!(
        receive(ours, &memory, &response),
        Ok(Inbound::AtomicResponse { original })
    );
    [request, response].concat()
}

#[test]
fn immediate_data_has_its_control_bytes_and_is_numbered_with_the_sends() {
    let mut stream = stream();
    let _send = stream.begin_send(SendKind::default(), 0);
    for (msn, solicited, control) in [(2, false, 0x48), (3, true, 0x49)] {
        let ulpdu = single(stream.begin_immediate([1, 2, 3, 4, 5, 6, 7, 8], solicited));
        let mut expected = vec![0x41, control];
        expected.extend([0; 8]); // 7306-4.1-02; 7306-6.3-04: Queue Number 0
        expected.extend([0, 0, 0, msn, 0, 0, 0, 0]);
        expected.extend([1, 2, 3, 4, 5, 6, 7, 8]); // 7306-6.3-05
        assert_eq!(ulpdu, expected);
    }
    let send = single(stream.begin_send(SendKind::default(), 0));
    assert_eq!(send[10..14], [0, 0, 0, 4]);
}

#[test]
fn immediate_data_needs_a_receive_of_any_size() {
    let (mut ours, mut theirs) = (stream(), stream());
    for (receive_len, solicited) in [(0, false), (7, true), (2000, false)] {
        let memory = ModelMemory {
            receive: Some(receive_len),
            ..memory()
        };
        let mut ulpdu = single(ours.begin_immediate([9; 8], solicited));
        ulpdu[2..6].fill(0xEE); // 7306-4.1-03
        let inbound = Inbound::Immediate {
            data: [9; 8],
            solicited,
        };
        assert_eq!(receive(&mut theirs, &memory, &ulpdu), Ok(inbound)); // 7306-6.3-02
    }
}

#[test]
fn an_atomic_operation_goes_out_on_queue_1_and_comes_back_on_queue_3() {
    let (mut ours, mut theirs) = (stream(), stream());
    let op = AtomicOp::CompareSwap {
        compare: 1,
        compare_mask: 2,
        swap: 3,
        swap_mask: 4,
    };
    for msn in 1..=3 {
        let bytes = round_trip(&mut ours, &mut theirs, op, 0x0102_0304_0506_0708);
        let (request, response) = bytes.split_at(70);
        assert_eq!(request[..2], [0x41, 0x4A]);
        assert_eq!(
            request[6..18],
            [0, 0, 0, 1, 0, 0, 0, msn, 0, 0, 0, 0] // 7306-5.2-01
        );
        assert_eq!(request[18..22], [0, 0, 0, 2]);
        assert_eq!(response[..2], [0x41, 0x4B]);
        assert_eq!(
            response[6..18],
            [0, 0, 0, 3, 0, 0, 0, msn, 0, 0, 0, 0] // 7306-5-04
        );
        assert_eq!(response[18..22], request[22..26]); // 7306-5.2.1-i03
        assert_eq!(response[22..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(ours.requests_outstanding(), 0);
    }
}

#[test]
fn reads_and_atomics_share_ord_and_the_numbers_of_queue_1() {
    let mut ours = stream();
    let to = TaggedOffset(5000);
    let read = single(ours.begin_read(read_request(0)).unwrap());
    let atomic = single(ours.begin_atomic(ATOMIC, to, ADD_ONE).unwrap());
    assert_eq!((read[13], atomic[13]), (1, 2));
    let exhausted = OrdExhausted { ord: 2 };
    assert_eq!(ours.begin_atomic(ATOMIC, to, ADD_ONE), Err(exhausted));
    assert_eq!(ours.begin_read(read_request(0)), Err(exhausted)); // 5040-6.1-04
    assert_eq!(ours.requests_outstanding(), 2);
}

#[test]
fn reads_and_atomics_are_answered_in_the_order_of_their_requests() {
    let (mut ours, mut theirs, memory) = (
        Stream::new(StreamConfig { ird: 0, ord: 4 }),
        Stream::new(StreamConfig { ird: 4, ord: 0 }),
        memory(),
    );
    let to = TaggedOffset(5000);
    for atomic in [true, false, true, false] {
        let message = if atomic {
            ours.begin_atomic(ATOMIC, to, ADD_ONE).unwrap()
        } else {
            ours.begin_read(read_request(5)).unwrap()
        };
        receive(&mut theirs, &memory, &single(message)).unwrap();
    }
    let mut answers = Vec::new();
    while let Some(job) = theirs.next_request() {
        let ulpdu = match job {
            Job::Read(job) => ulpdus(theirs.begin_read_response(job), &[0; 5], 128).remove(0),
            Job::Atomic(job) => single(theirs.begin_atomic_response(job, 3)),
        };
        theirs.response_sent();
        answers.push(ulpdu[1]);
        receive(&mut ours, &memory, &ulpdu).unwrap();
    }
    assert_eq!(answers, [0x4B, 0x42, 0x4B, 0x42]); // 7306-5.2.1-08, 7306-5.2.2-04
    assert_eq!(ours.requests_outstanding(), 0);
}

#[test]
fn an_msn_on_queue_1_tells_which_outstanding_request_it_is() {
    let (mut ours, mut theirs) = (stream(), stream());
    let to = TaggedOffset(5000);
    round_trip(&mut ours, &mut theirs, ADD_ONE, 0);
    let _read = ours.begin_read(read_request(5)).unwrap();
    let _atomic = ours.begin_atomic(ATOMIC, to, ADD_ONE).unwrap();
    let before = [1, 2, 3, 4, 0].map(|msn| ours.outstanding_before(Msn(msn)));
    assert_eq!(before, [None, Some(0), Some(1), None, None]);
}

#[test]
fn an_atomic_whose_memory_has_gone_is_told_with_its_ddp_header_alone() {
    let (mut ours, mut theirs, memory) = (stream(), stream(), memory());
    let to = TaggedOffset(5000);
    let request = single(ours.begin_atomic(ATOMIC, to, ADD_ONE).unwrap());
    receive(&mut theirs, &memory, &request).unwrap();
    let job = atomic_job(&mut theirs);
    let error = StreamError::of_atomic(ATOMIC, to, AtomicFault::Tagged(TaggedFault::InvalidSTag));
    let terminate = Terminate::for_atomic(&error, &job);
    assert_eq!(terminate.reason(), error.terminate_code().unwrap());
    assert_eq!(terminate.ddp_bytes(), Some(&request[..18])); // 7306-8.1-02
    assert_eq!(terminate.segment_len(), Some(70));
    assert_eq!(terminate.rdma_header(), None);
    assert!(terminate.is_about_request() && !terminate.is_about_read_request());
}

#[test]
fn local_errors_carry_no_headers_of_an_atomic_request() {
    let mut ours = stream();
    let request = single(
        ours.begin_atomic(ATOMIC, TaggedOffset(5000), ADD_ONE)
            .unwrap(),
    );
    let error = StreamError::Ddp(DdpError::LocalCatastrophic);
    let terminate = Stream::terminate_for(&error, Some((&request, request.len()))).unwrap();
    assert_eq!(terminate.ddp_bytes(), None); // 7306-8.1-01
    assert_eq!(terminate.rdma_header(), None);
}
