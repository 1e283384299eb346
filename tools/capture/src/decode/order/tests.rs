use super::*;
use crate::decode::Finding;
use uwarp_rdmap::Peer;
use uwarp_testkit::frames::{tagged, untagged};

/// State of both directions of a connection.
#[derive(Default)]
struct Stream([Sent; 2]);

impl Stream {
    /// Returns the ids of the requirements that the next ULPDU of a side violates. The other side
    /// has an IRD of 2.
    fn ids(&mut self, from: usize, ulpdu: &[u8]) -> Vec<&'static str> {
        let segment = Segment::read(ulpdu, Peer::Rfc).unwrap();
        let mut findings = Findings::default();
        let [first, second] = &mut self.0;
        let (side, peer) = if from == 0 {
            (first, second)
        } else {
            (second, first)
        };
        side.judge(&segment, peer, Some(2), &mut findings);
        findings.0.iter().map(Finding::id).collect()
    }

    fn all(&mut self, from: usize, ulpdus: &[Vec<u8>]) -> Vec<&'static str> {
        let mut all = Vec::new();
        for ulpdu in ulpdus {
            all.extend(self.ids(from, ulpdu));
        }
        all
    }
}

/// Clears L, so that the segment is not the last of its message.
fn more(mut ulpdu: Vec<u8>) -> Vec<u8> {
    ulpdu[0] &= !0x40;
    ulpdu
}

fn send(msn: u32, mo: u32) -> Vec<u8> {
    let mut ulpdu = untagged(3, 0, msn, &[7; 10]);
    ulpdu[14..18].copy_from_slice(&mo.to_be_bytes());
    ulpdu
}

/// Builds a tagged segment of 10 bytes, at `offset` in the buffer of `tagged`.
fn at(opcode: u8, offset: u64) -> Vec<u8> {
    let mut ulpdu = tagged(opcode, &[7; 10]);
    ulpdu[6..14].copy_from_slice(&(0x1000 + offset).to_be_bytes());
    ulpdu
}

/// Builds a Read Request for `len` bytes into the buffer of `tagged`.
fn read(msn: u32, len: u32) -> Vec<u8> {
    let mut header = 0x0012_3456_u32.to_be_bytes().to_vec();
    header.extend(0x1000_u64.to_be_bytes());
    header.extend(len.to_be_bytes());
    header.resize(28, 0);
    untagged(1, 1, msn, &header)
}

#[test]
fn messages_and_segments_in_order_are_right() {
    let mut stream = Stream::default();
    let right = [
        send(1, 0),
        more(send(2, 0)),
        more(send(2, 10)),
        send(2, 20),
        more(at(0, 0)),
        at(0, 10),
        at(0, 999),
        read(1, 20),
        read(2, 0),
    ];
    assert_eq!(stream.all(0, &right), [""; 0]);
    let answers = [more(at(2, 0)), at(2, 10), tagged(2, &[])];
    assert_eq!(stream.all(1, &answers), [""; 0]);
}

#[test]
fn each_fault_of_the_order_of_untagged_segments_has_its_rule() {
    for (ulpdus, id) in [
        (vec![send(2, 0)], "5041-4.3-08"),
        (vec![send(1, 0), send(3, 0)], "5041-4.3-07"),
        (vec![send(1, 0), send(1, 0)], "5041-4.3-07"),
        (vec![send(1, 4)], "5041-4.3-11"),
        (vec![more(send(1, 0)), send(1, 11)], "5041-5.2-06"),
        (vec![more(send(1, 0)), send(2, 0)], "5041-4.3-10"),
    ] {
        assert_eq!(Stream::default().all(0, &ulpdus), [id]);
    }
    let mut other = send(1, 10);
    other[1] = 0x45;
    let ulpdus = [more(send(1, 0)), other];
    assert_eq!(Stream::default().all(0, &ulpdus), ["5041-4.3-04"]);
}

#[test]
fn each_fault_of_the_order_of_tagged_segments_has_its_rule() {
    let gap = [more(at(0, 0)), at(0, 11)];
    assert_eq!(Stream::default().all(0, &gap), ["5041-5.2-08"]);
    let mut other = at(0, 10);
    other[2] = 0xEE;
    let ulpdus = [more(at(0, 0)), other];
    assert_eq!(Stream::default().all(0, &ulpdus), ["5041-4.2-08"]);
}

#[test]
fn a_read_response_is_held_against_its_request() {
    assert_eq!(Stream::default().ids(1, &at(2, 0)), ["5040-5.2-01"]);
    for (len, answers, id) in [
        (20, vec![at(2, 0)], "5040-5.2.1-10"),
        (5, vec![at(2, 0)], "5040-5.2.1-10"),
        (5, vec![more(at(2, 0)), more(at(2, 10))], "5040-5.2.1-10"),
        (10, vec![at(2, 1)], "5041-5.2-08"),
        (10, vec![at(2, 0), at(2, 0)], "5040-5.2-01"),
    ] {
        let mut stream = Stream::default();
        stream.ids(0, &read(1, len));
        assert_eq!(stream.all(1, &answers), [id], "{len}");
    }
    let mut stream = Stream::default();
    stream.ids(0, &read(1, 10));
    let mut other = at(2, 0);
    other[5] = 0;
    assert_eq!(stream.ids(1, &other), ["5040-4.4-02"]);
}

#[test]
fn no_more_reads_than_the_ird_are_outstanding() {
    let mut stream = Stream::default();
    assert_eq!(stream.all(0, &[read(1, 10), read(2, 10)]), [""; 0]);
    assert_eq!(stream.ids(0, &read(3, 10)), ["5040-6.1-04"]);
    assert_eq!(stream.all(1, &[at(2, 0), at(2, 0)]), [""; 0]);
    assert_eq!(stream.ids(0, &read(4, 10)), [""; 0]);
}

/// Builds an Atomic Request. `atomic_answer` builds the response to it.
fn atomic(msn: u32, id: u8) -> Vec<u8> {
    let mut request = untagged(10, 1, msn, &[0; 52]);
    request[25] = id;
    request
}

fn atomic_answer(msn: u32, id: u8) -> Vec<u8> {
    let mut answer = untagged(11, 3, msn, &[0; 12]);
    answer[21] = id;
    answer
}

#[test]
fn atomics_take_places_of_the_ird_as_well() {
    let mut stream = Stream::default();
    assert_eq!(stream.all(0, &[atomic(1, 1), atomic(2, 2)]), [""; 0]);
    assert_eq!(stream.ids(0, &atomic(3, 3)), ["7306-5.2.2-01"]);
    let answers = [atomic_answer(1, 1), atomic_answer(2, 2)];
    assert_eq!(stream.all(1, &answers), [""; 0]);
    assert_eq!(stream.ids(0, &read(4, 10)), [""; 0]);
    assert_eq!(stream.ids(0, &read(5, 10)), ["7306-5.2.2-01"]);
    // After the response to the last atomic, only the two Reads are outstanding.
    assert_eq!(stream.ids(1, &atomic_answer(3, 3)), [""; 0]);
    assert_eq!(stream.ids(0, &read(6, 10)), ["5040-6.1-04"]);
    assert_eq!(stream.all(1, &[at(2, 0), at(2, 0)]), [""; 0]);
    assert_eq!(stream.ids(0, &atomic(7, 7)), [""; 0]);
    assert_eq!(stream.ids(0, &atomic(8, 8)), ["7306-5.2.2-01"]);
}

#[test]
fn where_bytes_are_missing_or_no_ird_was_agreed_on_atomics_are_not_counted() {
    let mut stream = Stream::default();
    stream.0.iter_mut().for_each(Sent::forget_requests);
    let many: Vec<Vec<u8>> = (1..9).map(|msn| atomic(msn, 0)).collect();
    assert_eq!(stream.all(0, &many), [""; 0]);
    let (mut sent, mut peer) = (Sent::default(), Sent::default());
    for ulpdu in &many {
        let segment = Segment::read(ulpdu, Peer::Rfc).unwrap();
        let mut findings = Findings::default();
        sent.judge(&segment, &mut peer, None, &mut findings);
        assert!(findings.0.is_empty());
    }
}

#[test]
fn an_atomic_response_is_held_against_its_request() {
    let answer = atomic_answer(1, 0);
    assert_eq!(Stream::default().ids(1, &answer), ["7306-5.2.1-09"]);
    let mut stream = Stream::default();
    stream.ids(0, &atomic(1, 5));
    assert_eq!(stream.ids(1, &answer), ["7306-5.2.1-i03"]);
    let mut stream = Stream::default();
    stream.ids(0, &atomic(1, 5));
    assert_eq!(stream.ids(1, &atomic_answer(1, 5)), [""; 0]);
}

#[test]
fn nothing_may_follow_a_terminate_in_its_direction() {
    let mut stream = Stream::default();
    let terminate = untagged(7, 2, 1, &[0x12, 2, 0, 0]);
    assert_eq!(stream.ids(0, &terminate), [""; 0]);
    assert_eq!(stream.ids(1, &send(1, 0)), [""; 0]);
    assert_eq!(stream.ids(0, &send(1, 0)), ["5040-5.4-07"]);
}

#[test]
fn behind_a_gap_only_what_is_known_is_judged() {
    let mut stream = Stream::default();
    stream.ids(0, &more(send(1, 0)));
    stream.0[0].lose_track();
    stream.0.iter_mut().for_each(Sent::forget_requests);
    let after = [send(7, 30), at(0, 5), read(9, 1)];
    assert_eq!(stream.all(0, &after), [""; 0]);
    assert_eq!(stream.ids(1, &at(2, 99)), [""; 0]);
    assert_eq!(stream.ids(0, &send(9, 0)), ["5041-4.3-07"]);
}

#[test]
fn requests_that_are_never_answered_take_no_more_memory_than_the_limit() {
    let mut sent = Stream::default();
    for msn in 1..=MAX_REQUESTS as u32 + 10 {
        sent.ids(0, &read(msn, 1));
        assert!(sent.0[0].held() <= MAX_REQUESTS * size_of::<ReadRequestHeader>());
    }
    assert_eq!(sent.0[0].held(), 0);
}
