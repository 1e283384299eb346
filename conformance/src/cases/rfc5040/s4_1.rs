//! RFC 5040 section 4.1: the RDMAP Control Field and the Invalidate STag field.

use super::*;
use crate::script::{Condition, must, send_se, terminate};

/// Expects a Send with Invalidate that contains the STag of the work request.
fn with_stag(opcode: u8, len: usize) -> Action {
    Expect(Want::Send {
        opcode,
        invalidate: Some(STAG),
        data: Data::len(len),
    })
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = senders();
    cases.extend(receivers());
    cases.extend(opcodes());
    cases
}

fn senders() -> Vec<Case> {
    let watched = |id: &str, rows: &[&'static str], rule: &str, rules: &'static [Rule]| {
        must(id, rows, rule)
            .steps(every_kind(rules))
            .steps(every_terminate(rules))
    };
    vec![
        watched(
            "rdmap/5040-4.1/1",
            &["5040-4.1-01", "5040-4.1-02"],
            "The first byte of RsvdULP is the RDMAP Control Field: RV, two reserved bits, Opcode.",
            &[Rule::RdmapVersion, Rule::RdmapReserved, Rule::Opcode],
        ),
        must(
            "rdmap/5040-4.1/3",
            &["5040-4.1-03", "5040-5.3-09"],
            "A Send with Invalidate, with or without SE, has the STag in bytes 2 to 5 of RsvdULP.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::send_invalidate(9, STAG)),
            with_stag(opcode::SEND_INVALIDATE, 9),
            Post(Post::send_invalidate(0, STAG).solicited()),
            with_stag(opcode::SEND_SE_INVALIDATE, 0),
        ]),
        watched(
            "rdmap/5040-4.1/4",
            &["5040-4.1-04"],
            "The Tagged flag is 1 in RDMA Writes and Read Responses and 0 in all other messages.",
            &[Rule::TaggedFlag],
        ),
        must(
            "rdmap/5040-4.1/5",
            &["5040-4.1-05"],
            "Each kind of message has its opcode.",
        )
        .steps(every_kind(&[Rule::Opcode])),
        watched(
            "rdmap/5040-4.1/6",
            &["5040-4.1-06"],
            "Tagged messages have their STag and TO; Sends use QN 0, Read Requests QN 1, Terminates QN 2.",
            &[Rule::QueueNumber],
        ),
        watched(
            "rdmap/5040-4.1/7",
            &["5040-4.1-07"],
            "RV is 1 in every message.",
            &[Rule::RdmapVersion],
        ),
        watched(
            "rdmap/5040-4.1/8",
            &["5040-4.1-08"],
            "The two reserved bits of the RDMAP Control Field are sent as zero.",
            &[Rule::RdmapReserved],
        ),
        watched(
            "rdmap/5040-4.1/10",
            &["5040-4.1-10"],
            "The Invalidate STag field is zero in messages that invalidate nothing.",
            &[Rule::InvalidateZero],
        ),
        must(
            "rdmap/5040-4.2/1",
            &["5040-4.2-01"],
            "Only Read Requests and Terminates have an RDMA Header, and only Writes, Read Responses and Sends have ULP Payload.",
        )
        .steps(every_kind(&[Rule::HeaderLength]))
        .steps(every_terminate(&[
            Rule::HeaderLength,
            Rule::TerminateHeaders,
        ])),
    ]
}

fn receivers() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-4.1/9",
            &["5040-4.1-09"],
            "The two reserved bits of the RDMAP Control Field are ignored on receive.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::atomic("r", 4096)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 700).rdmap_reserved(3),
                send(16).rdmap_reserved(1),
                send_se(16).rdmap_reserved(2),
                read_request(Stag::Of("r"), To::In("r", 0), 700).rdmap_reserved(3),
            ]),
            response(700),
            completes("recv"),
            completes("recv"),
        ])
        .steps(posts_read(100))
        .steps([
            Send(vec![answer_read(0, 100).rdmap_reserved(3)]),
            completes("read"),
            Ping,
        ]),
        must(
            "rdmap/5040-4.1/11",
            &["5040-4.1-11"],
            "The Invalidate STag field of a Send, a Send with SE and a Read Request is ignored on receive.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("r", 4096)),
            Send(vec![
                send(16).invalidate(Stag::Of("r")),
                send_se(16).invalidate(Stag::Of("r")),
                read_request(Stag::Of("r"), To::In("r", 0), 16).invalidate(Stag::Of("r")),
            ]),
            response(16),
            completes("recv"),
            completes("recv"),
            read("r", 0, 100),
            response(100),
        ]),
        must(
            "rdmap/5040-4.1/12",
            &["5040-4.1-11"],
            "The Invalidate STag field of a Terminate is ignored on receive.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![terminate(&[0, 0, 0, 0]).invalidate(Stag::Is(STAG))]),
            Fin,
            End(Ends::close()),
        ]),
    ]
}

fn opcodes() -> Vec<Case> {
    let unexpected = |number: u32, opcode: u8| {
        must(
            &format!("rdmap/5040-4.1/{number}"),
            &["5040-4.1-i01", "5040-7.2-02"],
            &format!("A message with the unassigned opcode {opcode:#x} is an error."),
        )
    };
    let mut cases = Vec::new();
    for (number, opcode) in (20..).zip(12..=15) {
        cases.push(unexpected(number, opcode).steps([
            Establish(Setup::default()),
            Send(vec![send(16).opcode(opcode)]),
            End(Ends::term(0, 2, 6)),
        ]));
    }
    for (number, opcode) in (24..).zip(12..=15) {
        cases.push(unexpected(number, opcode).steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 16).opcode(opcode),
            ]),
            End(Ends::term(0, 2, 6)),
        ]));
    }
    for (number, opcode) in (28..).zip(8..=11) {
        cases.push(unexpected(number, opcode).steps([
            Require(Condition::NotRfc7306),
            Establish(Setup::default()),
            Send(vec![send(8).opcode(opcode)]),
            End(Ends::term(0, 2, 6)),
        ]));
    }
    // T, QN and length do not match the opcode, so the error is "unexpected opcode". But DDP may
    // find an invalid STag, MSN or length before RDMAP checks the message. The RFC does not order
    // these checks, so any registered code is accepted.
    let of_the_other_kind = [
        (32, send(16).opcode(opcode::WRITE)),
        (33, send(16).opcode(opcode::READ_RESPONSE)),
        (
            34,
            write(Stag::Of("r"), To::In("r", 0), 16).opcode(opcode::SEND),
        ),
        (
            35,
            write(Stag::Of("r"), To::In("r", 0), 28).opcode(opcode::READ_REQUEST),
        ),
        (
            36,
            write(Stag::Of("r"), To::In("r", 0), 4).opcode(opcode::TERMINATE),
        ),
    ];
    for (number, segment) in of_the_other_kind {
        let tagged = if segment.t { "a tagged" } else { "an untagged" };
        let rule = format!(
            "The opcode of {} in {tagged} message is an error.",
            opcode::name(segment.opcode)
        );
        let rows = ["5040-4.1-04", "5040-7.2-02"];
        cases.push(
            must(&format!("rdmap/5040-4.1/{number}"), &rows, &rule).steps([
                Establish(Setup::default()),
                Region(Region::writable("r", 64)),
                Send(vec![segment]),
                End(Ends::any_term()),
            ]),
        );
    }
    let on_the_other_queue = [
        (37, send(16).qn(1), Ends::any_term()),
        (
            38,
            read_request(Stag::Of("r"), To::In("r", 0), 16).qn(0),
            Ends::any_term(),
        ),
        // Section 7.1 does not require a Terminate for an error in a Terminate Message. A close is
        // therefore allowed, too.
        (
            39,
            terminate(&[0, 0, 0, 0]).qn(0),
            Ends::any_term().or_close(),
        ),
        (40, send(4).qn(2), Ends::any_term()),
    ];
    for (number, segment, ends) in on_the_other_queue {
        let rule = format!("{segment}: an error, because its opcode belongs to another queue.");
        let rows = ["5040-4.1-06", "5040-7.2-02"];
        cases.push(
            must(&format!("rdmap/5040-4.1/{number}"), &rows, &rule).steps([
                Establish(Setup::default()),
                Region(Region::atomic("r", 64)),
                Send(vec![segment]),
                End(ends),
            ]),
        );
    }
    cases
}
