use super::*;
use crate::decode::Finding;
use uwarp_testkit::frames::{tagged, untagged};

fn ids(ulpdu: &[u8]) -> Vec<&'static str> {
    let segment = Segment::read(ulpdu, Peer::Rfc).unwrap();
    let mut findings = Findings::default();
    let at = ulpdu.len() - segment.len as usize;
    segment.judge(&ulpdu[at..], true, &mut findings);
    findings.0.iter().map(Finding::id).collect()
}

/// Returns a copy of a ULPDU with one byte changed.
fn with(ulpdu: &[u8], at: usize, byte: u8) -> Vec<u8> {
    let mut ulpdu = ulpdu.to_vec();
    ulpdu[at] = byte;
    ulpdu
}

#[test]
fn every_right_message_is_right_and_says_what_it_is() {
    let mut text = String::new();
    for ulpdu in [
        tagged(0, &[7; 9]),
        tagged(2, &[]),
        untagged(1, 1, 1, &[1; 28]),
        untagged(3, 0, 1, &[7; 1]),
        with(&untagged(4, 0, 2, &[]), 5, 9),
        untagged(5, 0, 3, &[]),
        with(&untagged(6, 0, 4, &[]), 5, 9),
        untagged(7, 2, 1, &[0x12, 2, 0, 0]),
        untagged(8, 0, 5, &[1; 8]),
        untagged(9, 0, 6, &[1; 8]),
        untagged(10, 1, 2, &[0; 52]),
        untagged(11, 3, 1, &[0; 12]),
    ] {
        assert_eq!(ids(&ulpdu), [""; 0]);
        let segment = Segment::read(&ulpdu, Peer::Rfc).unwrap();
        text.push_str(&format!("{segment}\n"));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn each_fault_of_a_header_has_its_rule() {
    let write = tagged(0, &[7; 9]);
    let send = untagged(3, 0, 1, &[7; 9]);
    for (ulpdu, id) in [
        (with(&write, 0, 0xC5), "5041-4.1-08"),
        (with(&write, 0, 0xC2), "5041-4.1-10"),
        (with(&send, 1, 0x03), "5040-4.1-07"),
        (with(&send, 1, 0x53), "5040-4.1-08"),
        (with(&send, 1, 0x4C), "5040-4.1-05"),
        (with(&send, 9, 1), "5040-4.1-06"),
        (with(&send, 1, 0x40), "5040-4.1-04"),
        (with(&write, 1, 0x43), "5040-4.1-04"),
        (with(&send, 2, 1), "5040-4.1-10"),
        (with(&tagged(0, &[]), 0, 0x81), "5041-5.2-09"),
        (with(&untagged(8, 0, 1, &[0; 8]), 2, 1), "7306-4.1-02"),
        (untagged(8, 1, 1, &[0; 8]), "7306-6.3-04"),
        (untagged(10, 0, 1, &[0; 52]), "7306-5.2-01"),
        (untagged(11, 1, 1, &[0; 12]), "7306-5-04"),
        (tagged(8, &[0; 8]), "7306-6.3-01"),
        (tagged(10, &[0; 52]), "7306-5.2.1-02"),
        (tagged(11, &[0; 12]), "7306-5-04"),
    ] {
        assert_eq!(ids(&ulpdu), [id], "{ulpdu:02x?}");
    }
    let mut end = tagged(0, &[7; 9]);
    end[6..14].fill(0xFF);
    assert_eq!(ids(&end), ["5041-7.1-14"]);
}

#[test]
fn each_fault_behind_a_header_has_its_rule() {
    for (ulpdu, id) in [
        (untagged(1, 1, 1, &[0; 29]), "5040-4.4-01"),
        (untagged(1, 1, 1, &[0; 27]), "5040-4.4-01"),
        (untagged(1, 1, 1, &[0xFF; 28]), "5040-7.2-10"),
        (untagged(8, 0, 1, &[0; 7]), "7306-6.3-05"),
        (untagged(10, 1, 1, &[0; 51]), "7306-5.2.1-09"),
        (with(&untagged(10, 1, 1, &[0; 52]), 18, 1), "7306-5.2.1-i01"),
        (with(&untagged(10, 1, 1, &[0; 52]), 21, 1), "7306-5.2.1-06"),
        (untagged(11, 3, 1, &[0; 13]), "7306-5.2.1-09"),
        (untagged(7, 2, 1, &[0x12, 2, 0]), "5040-4.8-01"),
        (untagged(7, 2, 1, &[0x12, 2, 0xC0, 0]), "5040-4.8-11"),
        (untagged(7, 2, 1, &[0x12, 2, 0, 1]), "5040-4.8-07"),
        (untagged(7, 2, 1, &[0x12, 9, 0, 0]), "5040-4.8-03"),
        // siw sends this, with Layer and EType swapped.
        (untagged(7, 2, 1, &[0x02, 2, 0, 0]), "5040-4.8-02"),
    ] {
        assert_eq!(ids(&ulpdu), [id], "{ulpdu:02x?}");
    }
}

#[test]
fn no_bytes_are_too_odd_to_be_read() {
    for control in [0x01, 0x41, 0x81, 0xC1, 0x00, 0x3E, 0xFF] {
        for opcode in 0..=u8::MAX {
            for len in [0, 1, 2, 13, 14, 17, 18, 22, 26, 30, 46, 70, 100] {
                let mut ulpdu = vec![0xA5; len];
                for (byte, value) in ulpdu.iter_mut().zip([control, opcode]) {
                    *byte = value;
                }
                if let Some(segment) = Segment::read(&ulpdu, Peer::Siw) {
                    let _ = (segment.to_string(), ids(&ulpdu));
                }
            }
        }
    }
}
