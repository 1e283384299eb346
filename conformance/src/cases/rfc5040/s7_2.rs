//! RFC 5040 section 7.2: validation of incoming messages.

use super::*;
use crate::script::{Msn, OutSegment, must, read_response, send_invalidate, send_se_invalidate};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = fields();
    cases.extend(versions());
    cases.extend(read_requests());
    cases
}

/// Builds a case that sends an invalid segment and expects that the connection ends this way.
fn wrong(number: u32, row: &'static str, rule: &str, segment: OutSegment, ends: Ends) -> Case {
    must(&format!("rdmap/5040-7.2/{number}"), &[row], rule).steps([
        Establish(Setup::default()),
        Region(Region::atomic("r", 4096)),
        Send(vec![segment]),
        End(ends),
    ])
}

fn fields() -> Vec<Case> {
    let row = "5040-7.2-01";
    vec![
        wrong(
            1,
            row,
            "DDP validates the fields of an RDMA Write: the version.",
            write(Stag::Of("r"), To::In("r", 0), 16).ddp_version(2),
            Ends::term(1, 1, 4),
        ),
        wrong(
            2,
            row,
            "DDP validates the fields of an RDMA Write: the TO.",
            write(Stag::Of("r"), To::End("r", -8), 16),
            Ends::term(1, 1, 1),
        ),
        wrong(
            3,
            row,
            "DDP validates the fields of a Send with SE and Invalidate: the MO.",
            send_se_invalidate(Stag::Is(STAG), 16).mo(1),
            Ends::term(1, 2, 4),
        ),
        wrong(
            4,
            row,
            "DDP validates the fields of a Send: the version.",
            send(16).ddp_version(0),
            Ends::term(1, 2, 6),
        ),
        wrong(
            5,
            row,
            "DDP validates the fields of a Read Response: the STag.",
            read_response(Stag::Near("r", 0x0100_0000), To::In("r", 0), 16),
            Ends::any_term(),
        ),
        wrong(
            6,
            row,
            "DDP validates the fields of a Terminate: the version.",
            crate::script::terminate(&[0; 4]).ddp_version(3),
            Ends::term(1, 2, 6).or_close(),
        ),
        wrong(
            40,
            "5040-7.2-04",
            "The Invalidate STag of a Send with Invalidate is validated.",
            send_invalidate(Stag::Near("r", 0x0100_0000), 16),
            Ends::term(0, 1, 0).or(0, 1, 9).or(0, 2, 9),
        ),
        wrong(
            41,
            "5040-7.2-04",
            "The Invalidate STag of a Send with SE and Invalidate is validated.",
            send_se_invalidate(Stag::Is(u32::MAX), 0),
            Ends::term(0, 1, 0).or(0, 1, 9).or(0, 2, 9),
        ),
    ]
}

fn versions() -> Vec<Case> {
    let messages = [
        ("a Send", send(16)),
        ("an RDMA Write", write(Stag::Of("r"), To::In("r", 0), 16)),
        (
            "a Read Request",
            read_request(Stag::Of("r"), To::In("r", 0), 16),
        ),
        ("a Send with Invalidate", send_invalidate(Stag::Of("r"), 16)),
    ];
    let mut cases = Vec::new();
    for (number, (what, segment)) in (30..).step_by(2).zip(messages) {
        for version in [2, 3] {
            let rule = format!("RV {version} in {what} is an error.");
            cases.push(wrong(
                number + u32::from(version) - 2,
                "5040-7.2-03",
                &rule,
                segment.clone().rdmap_version(version),
                Ends::term(0, 2, 5),
            ));
        }
    }
    cases
}

fn read_requests() -> Vec<Case> {
    let a_read = || read_request(Stag::Of("r"), To::In("r", 0), 16);
    let row = "5040-7.2-05";
    vec![
        wrong(
            50,
            row,
            "DDP validates the fields of a Read Request: the queue.",
            a_read().qn(9),
            Ends::term(1, 2, 1),
        ),
        wrong(
            51,
            row,
            "DDP validates the fields of a Read Request: the MSN.",
            a_read().msn(Msn::Off(1)),
            Ends::term(1, 2, 3).or(1, 2, 2),
        ),
        wrong(
            52,
            row,
            "DDP validates the fields of a Read Request: the MO.",
            a_read().mo(1),
            Ends::term(1, 2, 4).or(1, 2, 5),
        ),
        wrong(
            53,
            row,
            "DDP validates the fields of a Read Request: the version.",
            a_read().ddp_version(2),
            Ends::term(1, 2, 6),
        ),
        wrong(
            54,
            row,
            "DDP validates the length of a Read Request: a buffer of QN 1 has 28 bytes.",
            a_read().opcode(opcode::READ_REQUEST).payload(vec![0; 600]),
            Ends::term(1, 2, 5),
        ),
        wrong(
            60,
            "5040-7.2-06",
            "A Read of an STag that does not exist is an error: invalid STag.",
            read_request(Stag::Near("r", 0x0100_0000), To::In("r", 0), 16),
            Ends::term(0, 1, 0).naming_last(),
        ),
        must(
            "rdmap/5040-7.2/70",
            &["5040-7.2-07", "5040-8.1.1-01"],
            "A Read of an STag of another protection domain is an error: STag not associated with the stream, or invalid.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::readable("foreign", 64).pd(1)),
            read("foreign", 0, 16),
            End(Ends::term(0, 1, 3).or(0, 1, 0).naming_last()),
        ]),
        wrong(
            80,
            "5040-7.2-08",
            "A Read that begins before the region is an error: base or bounds violation.",
            read_request(Stag::Of("r"), To::In("r", -1), 16),
            Ends::term(0, 1, 1),
        ),
        wrong(
            81,
            "5040-7.2-08",
            "A Read that begins after the region is an error: base or bounds violation.",
            read_request(Stag::Of("r"), To::End("r", 0), 1),
            Ends::term(0, 1, 1),
        ),
        wrong(
            90,
            "5040-7.2-09",
            "A Read that ends one byte after the region is an error: base or bounds violation.",
            read_request(Stag::Of("r"), To::In("r", 1), 4096),
            Ends::term(0, 1, 1),
        ),
        wrong(
            100,
            "5040-7.2-10",
            "A Read whose SrcTO wraps before its end is an error.",
            read_request(Stag::Of("r"), To::Is(u64::MAX - 7), 16),
            Ends::term(0, 1, 4).or(0, 1, 1),
        ),
    ]
}
