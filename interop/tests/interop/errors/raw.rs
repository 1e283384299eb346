//! What the verbs of neither side can do: a raw peer sends it to siw. The octets of its Terminate Messages
//! are pinned as they are. siw exchanges Layer and EType, and has M, D and R at the low end of their octet, against
//! RFC 5040 section 4.8 (5040-4.8-04 to 5040-4.8-10; Q11).

use uwarp_interop::raw::{Crc, MORE, TAGGED_MORE, Tagged, Untagged, fpdu, read_request};
use uwarp_interop::{Failure, Outcome, Result, Rig};

use super::{case, polled, same, theirs};
use crate::Case;
use crate::raw_pair::{LEN, RawPair, Terms, guest_serves};

const FLUSHED: &str = "wr_flush_err";

struct Row {
    name: &'static str,
    title: &'static str,
    /// The octets that are wrong, FPDUs and all.
    wrong: fn(&RawPair) -> Vec<u8>,
    /// Octets of the receives in the guest.
    receives: &'static [usize],
    /// The first octets of the Terminate Header; `None` when siw closes without a word.
    octets: Option<[u8; 3]>,
    /// The octets by the RFCs.
    rfc: &'static str,
    /// What else is to be said of it.
    besides: &'static str,
    /// How the receives end.
    received: &'static [&'static str],
}

fn one(ulpdu: &[u8]) -> Vec<u8> {
    fpdu(ulpdu, Crc::Right)
}

fn write(pair: &RawPair) -> Tagged {
    Tagged::write(pair.all.rkey, pair.all.addr)
}

/// Of a sink of the raw peer's.
const SINK: (u32, u64) = (0x1234_5600, 0x1000);

fn read(pair: &RawPair, msn: u32) -> Vec<u8> {
    read_request(msn, SINK, 16, (pair.all.rkey, pair.all.addr))
}

const BASE: Row = Row {
    name: "",
    title: "",
    wrong: |_| Vec::new(),
    receives: &[LEN],
    octets: None,
    rfc: "",
    besides: "",
    received: &[FLUSHED],
};

const ROWS: &[Row] = &[
    Row {
        name: "ddp_version_tagged",
        title: "a tagged segment of DDP version 0",
        wrong: |pair| {
            one(&Tagged {
                ddp: 0xc0,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x11, 0x04, 0x00]),
        rfc: "11 04",
        ..BASE
    },
    Row {
        name: "ddp_version_untagged",
        title: "an untagged segment of DDP version 0",
        wrong: |_| {
            one(&Untagged {
                ddp: 0x40,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x21, 0x06, 0x00]),
        rfc: "12 06",
        ..BASE
    },
    Row {
        name: "rdmap_version",
        title: "a Send of RDMAP version 0",
        wrong: |_| {
            one(&Untagged {
                rdmap: 0x03,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x20, 0x05, 0x00]),
        rfc: "02 05",
        ..BASE
    },
    Row {
        name: "opcode_8",
        title: "opcode 8 (Immediate Data of RFC 7306)",
        wrong: |_| {
            one(&Untagged {
                rdmap: 0x48,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x20, 0x06, 0x00]),
        rfc: "02 06",
        ..BASE
    },
    Row {
        name: "opcode_15",
        title: "opcode 15",
        wrong: |_| {
            one(&Untagged {
                rdmap: 0x4f,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x20, 0x06, 0x00]),
        rfc: "02 06",
        ..BASE
    },
    Row {
        name: "send_bad_qn",
        title: "a Send on Queue Number 1",
        wrong: |_| {
            one(&Untagged {
                qn: 1,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x21, 0x01, 0x03]),
        rfc: "12 01 c0",
        received: &["general_err"],
        ..BASE
    },
    Row {
        name: "send_bad_msn",
        title: "a Send with MSN 2 where 1 is due",
        wrong: |_| one(&Untagged::send(2).with(&[1; 8])),
        octets: Some([0x21, 0x03, 0x03]),
        rfc: "12 03 c0",
        received: &["general_err"],
        ..BASE
    },
    Row {
        name: "send_bad_mo",
        title: "a Send that begins at MO 4",
        wrong: |_| {
            one(&Untagged {
                mo: 4,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x21, 0x04, 0x03]),
        rfc: "12 04 c0",
        received: &["general_err"],
        ..BASE
    },
    Row {
        name: "send_no_receive",
        title: "a Send without a receive",
        wrong: |_| one(&Untagged::send(1).with(&[1; 8])),
        receives: &[],
        octets: Some([0x21, 0x02, 0x03]),
        rfc: "12 02 c0",
        received: &[],
        ..BASE
    },
    Row {
        name: "send_too_long",
        title: "a Send of 8 octets for a receive of 7",
        wrong: |_| one(&Untagged::send(1).with(&[1; 8])),
        receives: &[7],
        octets: Some([0x21, 0x02, 0x03]),
        rfc: "12 05 c0", // 5041-7.1 has a code of its own (Q12)
        received: &["loc_len_err"],
        ..BASE
    },
    Row {
        name: "crc",
        title: "a Send with a wrong CRC",
        wrong: |_| fpdu(&Untagged::send(1).with(&[1; 8]), Crc::Wrong),
        octets: Some([0x02, 0x02, 0x00]),
        rfc: "20 02",
        received: &["general_err"],
        ..BASE
    },
    Row {
        name: "fpdu_length",
        title: "an FPDU that ends inside the DDP header",
        wrong: |_| one(&Untagged::send(1).with(&[])[..17]),
        octets: Some([0x02, 0x03, 0x00]),
        rfc: "20 03",
        ..BASE
    },
    Row {
        name: "write_bad_stag",
        title: "a Write to an STag that was never given out",
        wrong: |pair| {
            one(&Tagged {
                stag: !pair.all.rkey,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x11, 0x00, 0x03]),
        rfc: "11 00 c0",
        ..BASE
    },
    Row {
        name: "write_no_right",
        title: "a Write to memory without the right of remote write",
        wrong: |pair| one(&Tagged::write(pair.local.rkey, pair.local.addr).with(&[1; 8])),
        octets: Some([0x11, 0x00, 0x03]),
        rfc: "11 00 c0",
        ..BASE
    },
    Row {
        name: "write_out_of_bounds",
        title: "a Write that ends behind the memory",
        wrong: |pair| {
            one(&Tagged {
                to: pair.all.addr + 121,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x11, 0x01, 0x03]),
        rfc: "11 01 c0",
        ..BASE
    },
    Row {
        name: "write_gap",
        title: "a Write whose second segment leaves a gap",
        wrong: |pair| {
            let first = Tagged {
                ddp: TAGGED_MORE,
                ..write(pair)
            };
            let second = Tagged {
                to: pair.all.addr + 9,
                ..write(pair)
            };
            [one(&first.with(&[0; 8])), one(&second.with(&[1; 8]))].concat()
        },
        // No RFC lets a receiver of tagged segments ask for that: each stands for itself (5041-5.1).
        octets: Some([0x11, 0x01, 0x03]),
        rfc: "no error: tagged segments stand for themselves",
        ..BASE
    },
    Row {
        name: "write_to_wrap",
        title: "a Write whose TO wraps past 2^64",
        wrong: |pair| {
            one(&Tagged {
                to: u64::MAX - 1,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        octets: Some([0x01, 0x00, 0x03]),
        rfc: "11 03 c0", // 5041-7.1-14 (Q12)
        ..BASE
    },
    Row {
        name: "read_bad_stag",
        title: "a Read from an STag that was never given out",
        wrong: |pair| one(&read_request(1, SINK, 16, (!pair.all.rkey, pair.all.addr))),
        octets: Some([0x10, 0x00, 0x07]),
        rfc: "01 00 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    Row {
        name: "read_out_of_bounds",
        title: "a Read that ends behind the memory",
        wrong: |pair| one(&read_request(1, SINK, 129, (pair.all.rkey, pair.all.addr))),
        octets: Some([0x10, 0x01, 0x07]),
        rfc: "01 01 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    Row {
        name: "read_2_gib",
        title: "a Read of 2^31 octets",
        wrong: |pair| {
            one(&read_request(
                1,
                SINK,
                1 << 31,
                (pair.all.rkey, pair.all.addr),
            ))
        },
        octets: Some([0x10, 0xff, 0x07]),
        rfc: "01 01 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    Row {
        name: "read_bad_msn",
        title: "a Read Request with MSN 2 where 1 is due",
        wrong: |pair| one(&read(pair, 2)),
        octets: Some([0x21, 0x03, 0x03]),
        rfc: "12 03 c0",
        ..BASE
    },
    Row {
        name: "read_with_payload",
        title: "a Read Request with octets behind its header",
        wrong: |pair| one(&[read(pair, 1), vec![0; 4]].concat()),
        octets: None,
        rfc: "02 ff or to be ignored",
        besides: "closes without a Terminate Message",
        ..BASE
    },
    Row {
        name: "read_inside_send",
        title: "a Read Request between two segments of a Send",
        wrong: |pair| {
            let first = Untagged {
                ddp: MORE,
                ..Untagged::send(1)
            };
            [one(&first.with(&[1; 8])), one(&read(pair, 1))].concat()
        },
        // 5041-5.2: a sender must not, so that a receiver need not cope; but it is no reason for silence.
        octets: None,
        rfc: "a Terminate Message",
        besides: "closes without a Terminate Message",
        received: &["general_err"],
        ..BASE
    },
    Row {
        name: "unsolicited_read_response",
        title: "a Read Response that nobody has asked for",
        wrong: |pair| one(&Tagged::read_response(pair.all.rkey, pair.all.addr).with(&[1; 8])),
        octets: Some([0x01, 0x00, 0x03]),
        rfc: "02 06 c0",
        ..BASE
    },
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ROWS
        .iter()
        .map(|row| {
            let title = match row.octets {
                Some(octets) => format!(
                    "a raw peer sends {}; siw answers {}",
                    row.title,
                    hex(&octets)
                ),
                None => format!("a raw peer sends {}; siw says nothing", row.title),
            };
            case(&format!("raw::{}", row.name), title, |rig| {
                refused(rig, row)
            })
        })
        .collect();
    cases.push(case(
        "raw::more_reads_than_ird",
        "a raw peer sends a Read where IRD is 0; siw answers 20 07 03".to_owned(),
        more_reads_than_ird,
    ));
    cases.push(case(
        "raw::qp_to_sqe",
        "the guest's consumer moves its QP to SQE; siw says 00 ff 00".to_owned(),
        qp_to_sqe,
    ));
    cases
}

fn hex(octets: &[u8]) -> String {
    let words: Vec<String> = octets.iter().map(|octet| format!("{octet:02x}")).collect();
    words.join(" ")
}

fn refused(rig: &mut Rig, row: &Row) -> Result<Outcome> {
    let terms = Terms {
        receives: row.receives.to_vec(),
        ..Terms::default()
    };
    let mut pair = guest_serves(rig, &terms)?;
    pair.peer.send(&(row.wrong)(&pair))?;
    if let Some(octets) = row.octets {
        pinned(&pair.peer.terminate()?, octets)?;
    }
    pair.peer.closed()?;
    let received: Vec<_> = (100..)
        .zip(row.received)
        .map(|(wr_id, status)| (wr_id, (*status).to_owned()))
        .collect();
    let came = theirs(&mut rig.agent, pair.conn, received.len())?;
    same("completions in the guest", &came, &received)?;
    polled(&mut rig.agent, pair.conn, 0)?;
    rig.agent.event(pair.conn, "disconnected")?;
    rig.agent.check_zero(&pair.all, 0, LEN)?;
    rig.agent.check_zero(&pair.local, 0, LEN)?;
    let said = match row.besides {
        "" => format!("by the RFCs: {}", row.rfc),
        besides => format!("by the RFCs: {}; {besides}", row.rfc),
    };
    Ok(Outcome::Deviation(said))
}

/// That a Terminate Header begins so.
pub(crate) fn pinned(header: &[u8], octets: [u8; 3]) -> Result<()> {
    if header.starts_with(&octets) && header.get(3) == Some(&0) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "siw's Terminate Header is {header:02x?}, but it used to begin with {octets:02x?}"
    )))
}

/// Queue 1 has as many buffers as IRD says (5040-5.2.2-02), so that it is DDP's error: no buffer (5041-7.1-02; Q12).
fn more_reads_than_ird(rig: &mut Rig) -> Result<Outcome> {
    let mut terms = Terms {
        depths: (0, 0),
        ..Terms::default()
    };
    terms.answer.ird = 0;
    let mut pair = guest_serves(rig, &terms)?;
    let request = read(&pair, 1);
    pair.peer.send_ulpdu(&request)?;
    pinned(&pair.peer.terminate()?, [0x20, 0x07, 0x03])?;
    pair.peer.closed()?;
    Ok(Outcome::Deviation("by the RFCs: 12 02 c0".to_owned()))
}

fn qp_to_sqe(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    let conn = pair.conn.0;
    rig.agent
        .command(&serde_json::json!({"cmd": "modify", "conn": conn, "state": "sqe"}))?;
    pinned(&pair.peer.terminate()?, [0x00, 0xff, 0x00])?;
    pair.peer.closed()?;
    Ok(Outcome::Passed)
}
