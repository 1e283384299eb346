//! Faults and siw's reactions. The comment above each row names the violated requirement.

use uwarp_interop::raw::{Crc, Tagged, Untagged, fpdu, read_request};

use crate::raw_pair::{LEN, RawPair};

const FLUSHED: &str = "wr_flush_err";

pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// Builds the invalid bytes, including their FPDUs.
    pub(super) wrong: fn(&RawPair) -> Vec<u8>,
    /// Length in bytes of each receive in the guest.
    pub(super) receives: &'static [usize],
    /// First bytes of the Terminate Header; `None` if siw closes without one.
    pub(super) bytes: Option<[u8; 3]>,
    /// Description of the bytes that the RFCs require.
    pub(super) rfc: &'static str,
    /// Additional remark for the deviation.
    pub(super) besides: &'static str,
    /// Expected statuses of the receives.
    pub(super) received: &'static [&'static str],
}

fn one(ulpdu: &[u8]) -> Vec<u8> {
    fpdu(ulpdu, Crc::Right)
}

fn write(pair: &RawPair) -> Tagged {
    Tagged::write(pair.all.rkey, pair.all.addr)
}

/// STag and TO of the raw peer's sink.
const SINK: (u32, u64) = (0x1234_5600, 0x1000);

/// Builds a Read Request that is valid if `msn` is.
pub(super) fn read(pair: &RawPair, msn: u32) -> Vec<u8> {
    read_request(msn, SINK, 16, (pair.all.rkey, pair.all.addr))
}

const BASE: Row = Row {
    name: "",
    title: "",
    wrong: |_| Vec::new(),
    receives: &[LEN],
    bytes: None,
    rfc: "",
    besides: "",
    received: &[FLUSHED],
};

pub(super) const ROWS: &[Row] = &[
    // 5041-4.1-12.
    Row {
        name: "ddp_version_tagged",
        title: "a tagged segment of DDP version 0",
        wrong: |pair| {
            one(&Tagged {
                ddp_version: 0,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x11, 0x04, 0x00]),
        rfc: "11 04",
        ..BASE
    },
    // 5041-4.1-13.
    Row {
        name: "ddp_version_untagged",
        title: "an untagged segment of DDP version 0",
        wrong: |_| {
            one(&Untagged {
                ddp_version: 0,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x21, 0x06, 0x00]),
        rfc: "12 06",
        ..BASE
    },
    // 5040-7.2-03.
    Row {
        name: "rdmap_version",
        title: "a Send of RDMAP version 0",
        wrong: |_| {
            one(&Untagged {
                rdmap_version: 0,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x20, 0x05, 0x00]),
        rfc: "02 05",
        ..BASE
    },
    // 5040-7.2-02.
    Row {
        name: "opcode_8",
        title: "opcode 8 (Immediate Data of RFC 7306)",
        wrong: |_| {
            one(&Untagged {
                opcode: 8,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x20, 0x06, 0x00]),
        rfc: "02 06",
        ..BASE
    },
    // 5040-7.2-02.
    Row {
        name: "opcode_15",
        title: "opcode 15",
        wrong: |_| {
            one(&Untagged {
                opcode: 15,
                ..Untagged::send(1)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x20, 0x06, 0x00]),
        rfc: "02 06",
        ..BASE
    },
    // 5041-7.1-01.
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
        bytes: Some([0x21, 0x01, 0x03]),
        rfc: "12 01 c0",
        received: &["general_err"],
        ..BASE
    },
    // 5041-7.1-05.
    Row {
        name: "send_bad_msn",
        title: "a Send with MSN 2 where 1 is due",
        wrong: |_| one(&Untagged::send(2).with(&[1; 8])),
        bytes: Some([0x21, 0x03, 0x03]),
        rfc: "12 03 c0",
        received: &["general_err"],
        ..BASE
    },
    // 5041-7.1-03.
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
        bytes: Some([0x21, 0x04, 0x03]),
        rfc: "12 04 c0",
        received: &["general_err"],
        ..BASE
    },
    // 5041-7.1-02.
    Row {
        name: "send_no_receive",
        title: "a Send without a receive",
        wrong: |_| one(&Untagged::send(1).with(&[1; 8])),
        receives: &[],
        bytes: Some([0x21, 0x02, 0x03]),
        rfc: "12 02 c0",
        received: &[],
        ..BASE
    },
    // 5041-7.1-04. The RFC has a separate code for this error (Q12).
    Row {
        name: "send_too_long",
        title: "a Send of 8 bytes for a receive of 7",
        wrong: |_| one(&Untagged::send(1).with(&[1; 8])),
        receives: &[7],
        bytes: Some([0x21, 0x02, 0x03]),
        rfc: "12 05 c0",
        received: &["loc_len_err"],
        ..BASE
    },
    // 5044-4.4-16.
    Row {
        name: "crc",
        title: "a Send with a wrong CRC",
        wrong: |_| fpdu(&Untagged::send(1).with(&[1; 8]), Crc::Wrong),
        bytes: Some([0x02, 0x02, 0x00]),
        rfc: "20 02",
        received: &["general_err"],
        ..BASE
    },
    // RFC 5044 section 8.
    Row {
        name: "fpdu_length",
        title: "an FPDU that ends inside the DDP header",
        wrong: |_| one(&Untagged::send(1).with(&[])[..17]),
        bytes: Some([0x02, 0x03, 0x00]),
        rfc: "20 03",
        ..BASE
    },
    // 5041-7.1-10.
    Row {
        name: "write_bad_stag",
        title: "a Write to an unknown STag",
        wrong: |pair| {
            one(&Tagged {
                stag: !pair.all.rkey,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x11, 0x00, 0x03]),
        rfc: "11 00 c0",
        ..BASE
    },
    // 5041-7.1-11.
    Row {
        name: "write_no_right",
        title: "a Write to memory without the right of remote write",
        wrong: |pair| one(&Tagged::write(pair.local.rkey, pair.local.addr).with(&[1; 8])),
        bytes: Some([0x11, 0x00, 0x03]),
        rfc: "11 00 c0",
        ..BASE
    },
    // 5041-7.1-13.
    Row {
        name: "write_out_of_bounds",
        title: "a Write that ends after the memory",
        wrong: |pair| {
            one(&Tagged {
                to: pair.all.addr + 121,
                ..write(pair)
            }
            .with(&[1; 8]))
        },
        bytes: Some([0x11, 0x01, 0x03]),
        rfc: "11 01 c0",
        ..BASE
    },
    // Each segment is checked on its own (5041-7.1-10 to -14).
    Row {
        name: "write_gap",
        title: "a Write whose second segment leaves a gap",
        wrong: |pair| {
            let first = Tagged {
                last: false,
                ..write(pair)
            };
            let second = Tagged {
                to: pair.all.addr + 9,
                ..write(pair)
            };
            [one(&first.with(&[0; 8])), one(&second.with(&[1; 8]))].concat()
        },
        bytes: Some([0x11, 0x01, 0x03]),
        rfc: "no error, each segment is independent",
        ..BASE
    },
    // 5041-7.1-14 (Q12).
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
        bytes: Some([0x01, 0x00, 0x03]),
        rfc: "11 03 c0",
        ..BASE
    },
    // 5040-5.2.1-12.
    Row {
        name: "read_bad_stag",
        title: "a Read from an unknown STag",
        wrong: |pair| one(&read_request(1, SINK, 16, (!pair.all.rkey, pair.all.addr))),
        bytes: Some([0x10, 0x00, 0x07]),
        rfc: "01 00 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    // 5040-5.2.1-12.
    Row {
        name: "read_out_of_bounds",
        title: "a Read that ends after the memory",
        wrong: |pair| one(&read_request(1, SINK, 129, (pair.all.rkey, pair.all.addr))),
        bytes: Some([0x10, 0x01, 0x07]),
        rfc: "01 01 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    // 5040-5.2.1-12. The error is that the memory is shorter than the Read. siw sends another code.
    Row {
        name: "read_2_gib",
        title: "a Read of 2^31 bytes",
        wrong: |pair| {
            one(&read_request(
                1,
                SINK,
                1 << 31,
                (pair.all.rkey, pair.all.addr),
            ))
        },
        bytes: Some([0x10, 0xff, 0x07]),
        rfc: "01 01 e0",
        besides: "siw's own receives are never flushed",
        received: &[],
        ..BASE
    },
    // 5041-7.1-05.
    Row {
        name: "read_bad_msn",
        title: "a Read Request with MSN 2 where 1 is due",
        wrong: |pair| one(&read(pair, 2)),
        bytes: Some([0x21, 0x03, 0x03]),
        rfc: "12 03 c0",
        ..BASE
    },
    // 5040-7.1-04.
    Row {
        name: "read_with_payload",
        title: "a Read Request with bytes after its header",
        wrong: |pair| one(&[read(pair, 1), vec![0; 4]].concat()),
        bytes: None,
        rfc: "a Terminate Message",
        besides: "closes without a Terminate Message",
        ..BASE
    },
    // 5041-5.3-01 forbids senders to mix messages, so a receiver need not handle this case. But
    // 5040-7.1-03 requires a Terminate Message.
    Row {
        name: "read_inside_send",
        title: "a Read Request between two segments of a Send",
        wrong: |pair| {
            let first = Untagged {
                last: false,
                ..Untagged::send(1)
            };
            [one(&first.with(&[1; 8])), one(&read(pair, 1))].concat()
        },
        bytes: None,
        rfc: "a Terminate Message",
        besides: "closes without a Terminate Message",
        received: &["general_err"],
        ..BASE
    },
    // 5040-5.2.2-05 leaves the check to the sink and specifies no code.
    Row {
        name: "unsolicited_read_response",
        title: "an unsolicited Read Response",
        wrong: |pair| one(&Tagged::read_response(pair.all.rkey, pair.all.addr).with(&[1; 8])),
        bytes: Some([0x01, 0x00, 0x03]),
        rfc: "no code of its own, uwarp sends 02 06 c0",
        ..BASE
    },
];
