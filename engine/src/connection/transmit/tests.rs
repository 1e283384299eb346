//! Tests of the batch.

use super::*;

fn batch_of(frames: &[&[u8]]) -> TxBatch {
    let mut batch = TxBatch::default();
    for frame in frames {
        batch.stage(|staged| staged.extend_from_slice(frame));
        batch.end_of_fpdu();
    }
    batch
}

fn rest(batch: &TxBatch) -> Vec<u8> {
    let mut out = Vec::new();
    let mut skip = batch.within;
    for part in &batch.parts[batch.part..] {
        match part {
            Part::Staged(range) => {
                out.extend_from_slice(&batch.staged[range.start + skip..range.end]);
            }
            Part::InPlace(run) => assert!(run.copy_to(skip, run.len() - skip, &mut out)),
            Part::Lent(run) => assert!(run.copy_to(skip, run.len() - skip, &mut out)),
        }
        skip = 0;
    }
    out
}

#[test]
fn truncate_keeps_the_fpdu_under_way_and_drops_the_rest() {
    for taken in 1..4 {
        let mut batch = batch_of(&[b"abcd", b"efgh", b"ijkl"]);
        batch.taken(taken);
        assert_eq!(batch.truncate(), 8);
        assert_eq!(rest(&batch), b"abcd"[taken..]);
    }
}

#[test]
fn truncate_between_fpdus_drops_all_that_follows() {
    let mut batch = batch_of(&[b"abcd", b"efgh"]);
    batch.taken(4);
    assert_eq!(batch.truncate(), 4);
    assert!(batch.is_empty());
    assert_eq!(batch.framed_to(), 4);
}

#[test]
fn truncate_before_the_first_byte_drops_everything() {
    let mut batch = batch_of(&[b"abcd", b"efgh"]);
    assert_eq!(batch.truncate(), 8);
    assert!(batch.is_empty());
    assert_eq!(batch.taken_to(), 0);
}

#[test]
fn a_batch_is_bounded_also_where_its_bytes_are_not_staged() {
    let mut batch = TxBatch::default();
    batch.reset();
    let mut len = 0;
    while batch.has_room() {
        batch.framed += 32 * 1024;
        len += 32;
    }
    assert_eq!(len, 1024);
}

#[test]
fn staging_goes_back_when_there_is_nothing_to_send_also_without_a_part_that_used_it() {
    let pool = BufferPool::default();
    let mut batch = TxBatch::default();
    batch.reset();
    batch.stage(|staged| staged.resize(100_000, 0));
    batch.taken(100_000);
    // `reset` has the effect of `reclaim` after lent payload was taken.
    batch.reset();
    batch.rests(&pool);
    assert_eq!(batch.staged.capacity(), 0);
}

#[test]
fn a_batch_of_more_parts_than_one_call_takes_needs_more_calls() {
    let mut batch = TxBatch::default();
    batch.reset();
    for at in 0..PARTS_PER_CALL {
        batch.parts.push(Part::Staged(at..at));
    }
    assert!(!batch.needs_more_calls());
    batch.parts.push(Part::Staged(0..0));
    assert!(batch.needs_more_calls());
    batch.part = 1;
    assert!(!batch.needs_more_calls());
}

#[test]
fn a_batch_has_a_whole_response_or_half_of_what_was_asked_for_but_what_it_may_have_anyway() {
    let mut batch = TxBatch::default();
    let mut staged = |(next, queued_after): (u64, u64)| {
        batch.reset();
        batch.raise_limit(next, queued_after);
        let mut len = 0;
        while batch.has_room() {
            let filled = batch.stage_over(32 * 1024, |out| Ok::<_, ()>(out.len()));
            filled.unwrap();
            len += 32;
        }
        batch.taken(len * 1024);
        len
    };
    let small = 64 << 10;
    let many = [0, 448 << 10, 960 << 10, 64 << 20].map(|behind| (small, behind));
    assert_eq!(many.map(&mut staged), [256, 256, 512, 1024]);
    let large = 768 << 10;
    let few = [(large, 0), (large, small), (4 << 20, 0), (0, large)];
    assert_eq!(few.map(&mut staged), [768, 768, 1024, 384]);
}

#[test]
fn staging_that_has_grown_keeps_its_memory_when_the_connection_rests() {
    let mut batch = TxBatch::default();
    let mut stage = |bytes: usize| {
        batch.reset();
        let filled = batch.stage_over(bytes, |out| Ok::<_, ()>(out.len()));
        filled.unwrap();
        batch.taken(bytes);
        batch.release();
        (batch.staged.capacity(), batch.staged.as_ptr().addr())
    };
    let small = stage(1000);
    assert!(small.0 <= SMALL_STAGING);
    let grown = stage(SMALL_STAGING + 1);
    assert_eq!(grown.0, STAGED_LIMIT + FPDU_ROOM);
    assert_eq!(stage(STAGED_LIMIT + 65_000), grown);
    let most = stage(BATCH_LIMIT + FPDU_ROOM);
    assert_eq!(most.0, STAGING_KEPT);
    assert_eq!(stage(BATCH_LIMIT + 65_000), most);
}

#[test]
fn a_batch_that_lacks_memory_takes_no_more_and_gives_its_memory_back() {
    headroom::with_limit(|| {
        for before in [0, 100_000] {
            let mut batch = TxBatch::default();
            batch.reset();
            let filled = batch.stage_over(before, |out| Ok::<_, ()>(out.len()));
            filled.unwrap();
            assert!(batch.has_room());
            let filled = batch.stage_over(headroom::TOO_MUCH, |_| -> Result<usize, ()> {
                panic!("there is no room to write to")
            });
            filled.unwrap();
            assert!(batch.lacks_memory() && !batch.is_empty() && !batch.has_room());
            assert_eq!(batch.staged.capacity(), 0);
            // The rest of an FPDU that was begun.
            batch.stage(|staged| staged.extend_from_slice(&[0; 16]));
            assert!(batch.staged.capacity() < 1024);
        }
    });
}

#[test]
fn truncate_never_drops_a_startup_frame() {
    let mut batch = TxBatch::default();
    batch.stage(|staged| staged.extend_from_slice(b"reply"));
    batch.end_of_startup();
    batch.stage(|staged| staged.extend_from_slice(b"fpdu"));
    batch.end_of_fpdu();
    assert_eq!(batch.truncate(), 4);
    assert_eq!(rest(&batch), b"reply");
}

#[test]
fn truncate_twice_is_the_same_as_once() {
    let mut batch = batch_of(&[b"abcd", b"efgh"]);
    batch.taken(2);
    assert_eq!(batch.truncate(), 4);
    assert_eq!(batch.truncate(), 0);
    assert_eq!(rest(&batch), b"cd");
}

#[test]
fn a_part_taken_in_pieces_is_offered_from_where_it_stopped() {
    let mut batch = batch_of(&[b"abcd", b"efgh"]);
    batch.taken(3);
    batch.taken(2);
    assert_eq!(rest(&batch), b"fgh");
    batch.taken(3);
    assert!(batch.is_empty());
}
