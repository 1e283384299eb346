//! Layout in which a Terminate Message is read, and the meaning of Linux siw's codes.

use super::*;
use crate::terminate::layout::decide;
use alloc::vec;

/// Terminate Headers of Linux siw (6.1) by cause: the first three bytes, and the opcode of the
/// segment whose header siw puts into the message. All were measured, unless noted otherwise.
#[rustfmt::skip]
const SIW: [(&str, [u8; 3], Option<Opcode>); 28] = [
    ("DDP version, tagged", [0x11, 0x04, 0x00], None),
    ("DDP version, untagged", [0x21, 0x06, 0x00], None),
    ("RDMAP version", [0x20, 0x05, 0x00], None),
    ("opcode above 7", [0x20, 0x06, 0x00], None),
    ("Send, bad QN", [0x21, 0x01, 0x03], Some(Opcode::Send)),
    ("Send, bad MSN", [0x21, 0x03, 0x03], Some(Opcode::Send)),
    ("Send, bad MO", [0x21, 0x04, 0x03], Some(Opcode::Send)),
    ("no receive posted", [0x21, 0x02, 0x03], Some(Opcode::Send)),
    ("Send longer than the receive", [0x21, 0x02, 0x03], Some(Opcode::SendSolicited)),
    ("CRC", [0x02, 0x02, 0x00], None),
    ("FPDU length", [0x02, 0x03, 0x00], None),
    ("MPA Reply with the wrong key", [0x02, 0x04, 0x00], None),
    ("MPA Reply, IRD too small", [0x02, 0x06, 0x00], None),
    ("MPA Reply, no RTR in common (by its source)", [0x02, 0x07, 0x00], None),
    ("Write, bad STag", [0x11, 0x00, 0x03], Some(Opcode::Write)),
    ("Write, no permission", [0x11, 0x00, 0x03], Some(Opcode::Write)),
    ("Write out of bounds", [0x11, 0x01, 0x03], Some(Opcode::Write)),
    ("Write, TO not contiguous", [0x11, 0x01, 0x03], Some(Opcode::Write)),
    ("Write, TO wrap", [0x01, 0x00, 0x03], Some(Opcode::Write)),
    ("Read, bad STag", [0x10, 0x00, 0x07], Some(Opcode::ReadRequest)),
    ("Read out of bounds", [0x10, 0x01, 0x07], Some(Opcode::ReadRequest)),
    ("Read of 2^31 bytes", [0x10, 0xFF, 0x07], Some(Opcode::ReadRequest)),
    ("Read Request, bad MSN", [0x21, 0x03, 0x03], Some(Opcode::ReadRequest)),
    ("more Reads than IRD", [0x20, 0x07, 0x03], Some(Opcode::ReadRequest)),
    ("STag cannot be invalidated", [0x20, 0x09, 0x03], Some(Opcode::Send)),
    ("Send with Invalidate, protection (by its source)", [0x10, 0x03, 0x07], Some(Opcode::SendInvalidate)),
    ("unsolicited Read Response", [0x01, 0x00, 0x03], Some(Opcode::ReadResponse)),
    ("modify_qp to SQE", [0x00, 0xFF, 0x00], None),
];

/// Returns a Terminate Header as siw sends it: with the payload length, and the headers of the
/// segment.
fn siw([kind, code, present]: [u8; 3], about: Option<Opcode>) -> Vec<u8> {
    let mut bytes = vec![kind, code, present, 0];
    let Some(opcode) = about else {
        return bytes;
    };
    bytes.extend([0, 4]);
    match opcode.queue() {
        None => bytes.extend(&tagged()[..TAGGED_HEADER]),
        Some(qn) => {
            let control = crate::opcode::control(opcode);
            let request = request();
            let whole = ulpdu(control, 0, qn.0, Some(request));
            let end = if opcode == Opcode::ReadRequest && present == 7 {
                whole.len()
            } else {
                UNTAGGED_HEADER
            };
            bytes.extend(&whole[..end]);
        }
    }
    if opcode == Opcode::ReadResponse {
        bytes[7] = crate::opcode::control(opcode);
    }
    bytes
}

#[test]
fn every_terminate_of_siw_is_read_and_explained_with_its_profile() {
    let mut table = String::new();
    for (cause, wire, about) in SIW {
        let bytes = siw(wire, about);
        let message = Terminate::parse_from(Peer::Siw, &bytes).unwrap();
        assert_eq!(message.read_as(), Peer::Siw, "{cause}");
        assert_eq!(message.opcode(), about, "{cause}");
        let [kind, code, present] = wire;
        let _ = writeln!(
            table,
            "{cause}: {kind:02x} {code:02x} {present:02x}\n    {message}\n    RFC: {}",
            message.rfc_reason()
        );
    }
    insta::assert_snapshot!(table);
}

#[test]
fn siw_is_recognized_without_a_profile_except_for_four_bare_codes() {
    let mut unrecognized = Vec::new();
    for (cause, wire, about) in SIW {
        let bytes = siw(wire, about);
        let told = Terminate::parse_from(Peer::Siw, &bytes).unwrap();
        let message = Terminate::parse(&bytes).unwrap();
        if message.read_as() == Peer::Siw {
            assert_eq!(message, told, "{cause}");
        } else if message.reason() != told.reason() {
            // The message reports the meaning that siw would give it.
            assert_eq!(message.if_siw(), Some(told.reason()), "{cause}");
            unrecognized.push(wire);
        }
    }
    assert_eq!(
        unrecognized,
        [
            [0x20, 0x05, 0x00],
            [0x20, 0x06, 0x00],
            [0x02, 0x06, 0x00],
            [0x02, 0x07, 0x00]
        ]
    );
}

/// Returns everything that a sender that follows the RFCs can send, as a set of the first three
/// bytes.
fn rfc_sends() -> Vec<bool> {
    let mut set = vec![false; 1 << 24];
    for (layer, etype, codes) in DEFINED {
        let any: Vec<u8> = (0..=0xFF).collect();
        // RFC 5040 Figure 9: a local catastrophic error of RDMAP may have any code.
        let codes = if (layer, etype) == (0, 0) {
            &any
        } else {
            codes
        };
        for &code in codes {
            for flags in 0..8u8 {
                set[index([layer << 4 | etype, code, flags << 5])] = true;
            }
        }
    }
    // RFC 5041 section 7.2 leaves this type to the LLP.
    for code in 0..=0xFF {
        for flags in 0..8u8 {
            set[index([0x13, code, flags << 5])] = true;
        }
    }
    set
}

/// Returns everything that siw sends, as a set of the first three bytes: each code with the headers
/// that siw puts after it.
fn siw_sends() -> Vec<bool> {
    let mut set = vec![false; 1 << 24];
    for code in 0..=0xFF {
        set[index([0x00, code, 0])] = true;
    }
    let headers: [(u8, u8, &[u8]); 9] = [
        (0x20, 0, &[0x05, 0x06]),
        (0x11, 0, &[0x04]),
        (0x21, 0, &[0x06]),
        (0x02, 0, &[0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07]),
        (0x10, 7, &[0x00, 0x01, 0x02, 0x03, 0x04, 0x09, 0xFF]),
        (0x20, 3, &[0x07, 0x08, 0x09, 0xFF]),
        (0x01, 3, &[0x00]),
        (0x11, 3, &[0x00, 0x01, 0x02, 0x03]),
        (0x21, 3, &[0x01, 0x02, 0x03, 0x04, 0x05]),
    ];
    for (kind, present, codes) in headers {
        for &code in codes {
            set[index([kind, code, present])] = true;
        }
    }
    set
}

fn index([kind, code, present]: [u8; 3]) -> usize {
    usize::from(kind) << 16 | usize::from(code) << 8 | usize::from(present)
}

/// Tries all values of the first three bytes. They must be read in siw's layout exactly if siw
/// sends them and no RFC allows them. They must be ambiguous exactly if siw sends them and an RFC
/// allows them with another meaning.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
fn certain_and_ambiguous_over_all_combinations() {
    let (rfc, theirs) = (rfc_sends(), siw_sends());
    // Opcodes whose headers give the messages the lengths of siw's messages.
    let about = |present| match present {
        0 => None,
        3 => Some(Opcode::Write),
        _ => Some(Opcode::ReadRequest),
    };
    let whole: Vec<Vec<u8>> = (0..=0xFF)
        .map(|present| siw([0, 0, present], about(present)))
        .collect();
    let (mut certain, mut both, mut ambiguous, mut only_rfc, mut neither) = (0, 0, 0, 0, 0);
    let mut table = String::new();
    for kind in 0..=0xFFu8 {
        for code in 0..=0xFFu8 {
            for present in 0..=0xFFu8 {
                let at = index([kind, code, present]);
                let reading = decide(
                    Peer::Rfc,
                    [kind, code, present, 0],
                    &whole[usize::from(present)],
                );
                let same = kind >> 4 == kind & 0x0F;
                let expected = match (rfc[at], theirs[at]) {
                    (false, true) => {
                        certain += 1;
                        if present == 0 {
                            let _ = writeln!(table, "siw, bare: {kind:02x} {code:02x}");
                        }
                        Reading::Siw
                    }
                    (true, true) if same => {
                        both += 1;
                        Reading::Rfc
                    }
                    (true, true) => {
                        ambiguous += 1;
                        let _ = writeln!(table, "ambiguous: {kind:02x} {code:02x} {present:02x}");
                        Reading::RfcOrSiw
                    }
                    (true, false) => {
                        only_rfc += 1;
                        Reading::Rfc
                    }
                    (false, false) => {
                        neither += 1;
                        Reading::Rfc
                    }
                };
                assert_eq!(reading, expected, "{kind:02x} {code:02x} {present:02x}");
                // Messages that only siw sends have bits set that the RFCs reserve, or no headers.
                if reading == Reading::Siw {
                    assert!(present & 0xF8 == 0, "{present:02x}");
                }
            }
        }
    }
    assert_eq!(certain + both + ambiguous + only_rfc + neither, 1 << 24);
    let _ = writeln!(
        table,
        "{certain} siw's, {both} the same for both, {ambiguous} ambiguous, {only_rfc} an RFC's, {neither} nobody's"
    );
    insta::assert_snapshot!(table);
}

/// With siw's profile, a message is read in the RFC's layout only if it has a meaning there and
/// none in siw's layout.
#[test]
#[cfg_attr(miri, ignore = "exhaustive, and nothing but arithmetic")]
fn the_profile_of_siw_yields_only_to_what_siw_cannot_mean() {
    let rfc = rfc_sends();
    // Messages that have a meaning in siw's layout: every code with all values of its three bits.
    let mut fits = vec![false; 1 << 24];
    for (at, &allowed) in rfc.iter().enumerate() {
        let [_, kind, code, present] = (at as u32).to_be_bytes();
        if allowed {
            let swapped = present.reverse_bits();
            fits[index([kind.rotate_left(4), code, swapped])] = true;
        }
    }
    let mut by_rfc = 0;
    for at in 0..1u32 << 24 {
        let [_, kind, code, present] = at.to_be_bytes();
        let reading = decide(Peer::Siw, [kind, code, present, 0], &[]);
        let at = at as usize;
        let expected = if rfc[at] && !fits[at] {
            by_rfc += 1;
            Reading::Rfc
        } else {
            Reading::Siw
        };
        assert_eq!(reading, expected, "{kind:02x} {code:02x} {present:02x}");
    }
    assert!(by_rfc > 0);
}

#[test]
fn what_this_side_sends_is_read_back_with_either_profile() {
    // Messages with headers are unambiguous. Messages without headers are not.
    let bounds = bounds();
    let protection = protection(TaggedFault::AccessRights);
    let (tagged, read) = (tagged(), ulpdu(0x41, 0, 1, Some(request())));
    for message in [
        Terminate::for_error(&bounds, Some((&tagged, tagged.len()))),
        Terminate::for_error(&protection, Some((&read, read.len()))),
    ] {
        let message = message.unwrap();
        let mut out = [0; MAX_TERMINATE_HEADER];
        let len = message.emit(&mut out);
        for peer in [Peer::Rfc, Peer::Siw] {
            assert_eq!(Terminate::parse_from(peer, &out[..len]), Some(message));
        }
    }
}

#[test]
fn a_message_of_siw_is_passed_on_in_the_layout_of_the_rfc() {
    let bytes = siw([0x21, 0x02, 0x03], Some(Opcode::Send));
    let message = Terminate::parse(&bytes).unwrap();
    let mut out = [0; MAX_TERMINATE_HEADER];
    let len = message.emit(&mut out);
    assert_eq!(&out[..3], [0x12, 0x02, 0xC0]);
    assert_eq!(&out[4..len], &bytes[4..]);
}

#[test]
fn reserved_bits_alone_do_not_make_it_siws() {
    // 5040-4.8-08: the lengths do not match siw's layout, so the reserved bits are ignored.
    for bytes in [
        &[0x10, 0x01, 0x07, 0][..],
        &[0x21, 0x02, 0x03, 0, 0, 4],
        &[0x12, 0x02, 0x03, 0],
        &[0x02, 0x02, 0x00, 1],
    ] {
        let message = Terminate::parse(bytes).unwrap();
        assert_eq!(message.read_as(), Peer::Rfc, "{bytes:02x?}");
        assert_eq!(
            message.reason(),
            TerminateCode::new(bytes[0] >> 4, bytes[0] & 0x0F, bytes[1])
        );
    }
}

#[test]
fn headers_cut_short_are_left_out_with_the_profile_of_siw() {
    for (_, wire, about) in SIW {
        let bytes = siw(wire, about);
        for len in 0..bytes.len() {
            let message = Terminate::parse_from(Peer::Siw, &bytes[..len]);
            match message {
                None => assert!(len < 4),
                Some(message) => {
                    assert_eq!(message.reason().code, wire[1]);
                    assert!(!message.to_string().is_empty());
                    assert!(message.rdma_header().is_none());
                }
            }
        }
    }
}

/// Checks Terminates captured from siw (Linux 6.1.192), as whole ULPDUs.
#[test]
fn captured_from_siw() {
    let captured = [
        "41470000000000000002000000010000000020060000",
        "414700000000000000020000000100000000210103000004414300000000000000010000000100000000",
        "41470000000000000002000000010000000002020000",
        "414700000000000000020000000100000000110003000004c140123456000000000000000000",
        "414700000000000000020000000100000000100107000000414100000000000000010000002000000000000000770000000000002222000000204b8abd0000007f533f638ff0",
    ];
    let mut table = String::new();
    for hex in captured {
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        for peer in [Peer::Rfc, Peer::Siw] {
            let message = Terminate::parse_from(peer, &bytes[UNTAGGED_HEADER..]).unwrap();
            let _ = writeln!(table, "{peer}: {message}");
        }
    }
    insta::assert_snapshot!(table);
}
