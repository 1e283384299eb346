//! Counts the descriptors and threads of the whole process. This is possible only in a separate
//! process.

use crate::peer::eventually;
use crate::program::this_program;

/// Tests to run, one for every way in which a connection can end.
const CASES: [fn(); 17] = [
    crate::tagged::write_with_an_stag_that_was_never_given_out,
    crate::untagged::send_without_a_receive,
    crate::untagged::send_longer_than_its_receive,
    crate::rdmap::ulpdu_shorter_than_its_ddp_header,
    crate::reads::read_from_an_stag_that_was_never_given_out,
    crate::reads::more_reads_than_ird,
    crate::reads::read_response_longer_than_asked_for,
    crate::invalidate::of_an_stag_that_streams_share,
    crate::terminate::terminate_is_taken_with_and_without_receives,
    crate::ends::reset_before_the_first_fpdu,
    crate::ends::fin_within_an_fpdu,
    crate::framing::first_fpdu_with_a_bad_crc,
    crate::responder::wrong_key,
    crate::responder::request_that_ends_too_early,
    crate::initiator::peer_that_is_not_iwarp,
    crate::initiator::close_without_a_word,
    crate::timeouts::peer_that_does_not_close_after_our_terminate,
];

fn count(what: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{what}"))
        .unwrap()
        .count()
}

#[test]
fn bad_input_leaves_no_descriptor_and_no_thread() {
    let alone = this_program()
        .args([
            "--exact",
            "leaks::in_a_process_of_its_own",
            "--ignored",
            "--test-threads=1",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout);
    assert!(
        alone.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&alone.stderr)
    );
}

#[test]
#[ignore = "counts what the whole process has; `bad_input_leaves_no_descriptor_and_no_thread` runs it alone"]
fn in_a_process_of_its_own() {
    // The first run opens everything that stays open for the lifetime of the process.
    CASES[0]();
    for case in CASES {
        let (descriptors, threads) = (count("fd"), count("task"));
        case();
        eventually("as many descriptors and threads as before", || {
            (count("fd") <= descriptors && count("task") <= threads).then_some(())
        });
    }
}
