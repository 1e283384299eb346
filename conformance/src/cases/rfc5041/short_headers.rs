//! RFC 5041 sections 4.1 to 4.3: ULPDUs that are shorter than their DDP Header.
//!
//! No RFC names an Error Code for them. A receiver that subtracts the length of the header from the
//! length of the ULPDU without a check gets a negative number. Such a receiver may crash, so the
//! cases are marked as dangerous.

use super::{STAG, TO, asks_for, piece, untouched};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, OutSegment, Post, Region, Setup, Stag, To, answer_read, must, send,
    should, write,
};
use crate::wire::segment::opcode;
use crate::wire::terminate::M;

/// Length in bytes of a tagged DDP Header.
const TAGGED: usize = 14;
/// Length in bytes of an untagged DDP Header.
const UNTAGGED: usize = 18;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = controls();
    for code in 0..16 {
        cases.push(every_length(
            &format!("ddp/5041-4.2/{}", 20 + code),
            &["5041-4.2-01", requirement(code)],
            &format!("tagged segment with opcode {code} ({})", opcode::name(code)),
            &write(Stag::Is(0), To::Is(0), 0).opcode(code),
            TAGGED,
        ));
        cases.push(every_length(
            &format!("ddp/5041-4.3/{}", 20 + code),
            &["5041-4.3-01", requirement(code)],
            &format!(
                "untagged segment with opcode {code} ({})",
                opcode::name(code)
            ),
            &send(0)
                .opcode(code)
                .qn(opcode::queue(code).flatten().unwrap_or(0)),
            UNTAGGED,
        ));
    }
    cases.extend(expected());
    cases.extend(terminates());
    cases
}

/// Returns the requirement that a receiver validates the fields of such a segment.
fn requirement(code: u8) -> &'static str {
    match code {
        opcode::READ_REQUEST => "5040-7.2-05",
        opcode::IMMEDIATE..=opcode::ATOMIC_RESPONSE => "7306-8.2-01",
        _ => "5040-7.2-01",
    }
}

/// Accepted ends of the connection. A Terminate cannot quote the DDP Header, because the header is
/// incomplete.
fn ends() -> Ends {
    Ends::any_term().or_close().headers_within(0, M)
}

/// Sends a correct segment truncated to each of these lengths, each on a new connection. Then the
/// target must accept another connection.
fn each(segment: &OutSegment, lengths: &[usize], ends: &Ends) -> Vec<Action> {
    let mut steps = Vec::new();
    for length in lengths {
        steps.extend([
            Establish(Setup::default()),
            // The next FPDU follows in the same write and is correct. It gives no reason to end the
            // stream, and its bytes must not be used in place of the missing ones.
            Send(vec![
                segment.clone().cut(*length),
                write(Stag::Is(0), To::Is(0), 0),
            ]),
            End(ends.clone()),
        ]);
    }
    steps.extend([Establish(Setup::default()), Ping]);
    steps
}

fn every_length(
    id: &str,
    requirements: &[&'static str],
    what: &str,
    segment: &OutSegment,
    header: usize,
) -> Case {
    let rule = format!(
        "A {what} in a ULPDU shorter than its DDP Header of {header} bytes is an error: the stream ends, and the target continues to serve."
    );
    must(id, requirements, &rule)
        .steps(each(segment, &shorter_than(header), &ends()))
        .dangerous()
}

/// Lengths of ULPDUs with an incomplete header, longest first. A ULPDU of 6 bytes ends after STag
/// or the untagged RsvdULP. A ULPDU of 2 bytes contains only the control bytes.
fn shorter_than(header: usize) -> Vec<usize> {
    let mut lengths = vec![header - 1, TAGGED, TAGGED - 1, 6, 2];
    lengths.retain(|length| *length < header);
    lengths.sort_unstable_by(|one, other| other.cmp(one));
    lengths.dedup();
    lengths
}

/// Cases in which the ULPDU contains only the DDP Control Field.
fn controls() -> Vec<Case> {
    let segments = [
        (
            14,
            "5041-4.1-01",
            "tagged",
            write(Stag::Is(0), To::Is(0), 0),
        ),
        (15, "5041-4.1-02", "untagged", send(0)),
    ];
    segments
        .map(|(number, requirement, kind, segment)| {
            let rule = format!(
                "A {kind} segment that consists only of its DDP Control Field is an error: the stream ends, and the target continues to serve."
            );
            let id = format!("ddp/5041-4.1/{number}");
            must(&id, &[requirement, "5040-7.2-01"], &rule)
                .steps(each(&segment, &[1], &ends()))
                .dangerous()
        })
        .into()
}

/// Cases in which the target expects the message of the short segment, and could place its payload.
fn expected() -> Vec<Case> {
    vec![
        must(
            "ddp/5041-4.2/40",
            &["5041-4.2-01", "5040-7.2-01"],
            "A Write to a valid STag in a ULPDU that ends within its TO is an error: nothing is placed.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 64)),
            Send(vec![
                write(Stag::Of("r"), To::In("r", 0), 0).cut(TAGGED - 1),
                write(Stag::Of("r"), To::In("r", 0), 64),
            ]),
            End(ends()),
            End(Ends::close()),
            Holds {
                region: "r",
                offset: 0,
                data: untouched(64),
            },
        ])
        .dangerous(),
        must(
            "ddp/5041-4.2/41",
            &["5041-4.2-01", "5040-7.2-01"],
            "The Read Response to an outstanding Read in a ULPDU shorter than its DDP Header is an error: the Read fails.",
        )
        .steps([
            Establish(Setup::default()),
            Post(Post::read(STAG, TO, 16)),
            asks_for(16),
            Send(vec![answer_read(0, 16).cut(TAGGED - 1), answer_read(0, 16)]),
            End(ends()),
            Completion {
                op: "read",
                success: false,
            },
        ])
        .dangerous(),
        must(
            "ddp/5041-4.3/40",
            &["5041-4.3-01", "5040-7.2-01"],
            "A middle segment of a Send in a ULPDU shorter than its DDP Header is an error: the Send is not delivered.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![
                send(40).more(),
                send(piece(40, 24)).mo(40).more().cut(UNTAGGED - 1),
                send(Data::none()).mo(40),
            ]),
            End(ends()),
            Completion {
                op: "recv",
                success: false,
            },
        ])
        .dangerous(),
    ]
}

fn terminates() -> Vec<Case> {
    vec![
        should(
            "ddp/5041-4.2/42",
            &["5041-4.2-01", "5041-7.1-19"],
            "A tagged segment shorter than its DDP Header is answered by a Terminate.",
        )
        .steps(each(
            &write(Stag::Is(0), To::Is(0), 0),
            &[TAGGED - 1],
            &Ends::any_term(),
        ))
        .dangerous(),
        should(
            "ddp/5041-4.3/42",
            &["5041-4.3-01", "5041-7.1-19"],
            "An untagged segment shorter than its DDP Header is answered by a Terminate.",
        )
        .steps(each(&send(0), &[UNTAGGED - 1], &Ends::any_term()))
        .dangerous(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_is_played_once() {
        assert_eq!(shorter_than(TAGGED), [13, 6, 2]);
        assert_eq!(shorter_than(UNTAGGED), [17, 14, 13, 6, 2]);
    }
}
