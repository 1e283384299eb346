use super::*;
use crate::wire::fpdu::{FpduForm, Framing};

fn follow(ulpdus: &[&[u8]]) -> Vec<Rule> {
    let (mut tx, mut rx) = (Framing::new(true, false), Framing::new(true, false));
    let mut follower = Follower::default();
    let mut rules = Vec::new();
    for ulpdu in ulpdus {
        let wire = tx.seal(ulpdu, &FpduForm::default());
        let opened = rx.open(&wire).expect("it is whole");
        let breaches = follower.follow(&opened, true);
        rules.extend(breaches.iter().map(|breach| breach.rule));
    }
    rules
}

fn send(msn: u8, mo: u8, last: bool, payload: &[u8]) -> Vec<u8> {
    let ddp = if last { 0x41 } else { 0x01 };
    let header = [ddp, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, mo];
    [&header, payload].concat()
}

#[test]
fn a_right_sender_breaks_no_rule() {
    let segments = [
        send(1, 0, true, b"one"),
        send(2, 0, false, b"two "),
        send(2, 4, true, b"and more"),
    ];
    let segments: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
    assert_eq!(follow(&segments), []);
}

#[test]
fn it_is_known_whether_a_message_is_under_way() {
    let (mut tx, mut rx) = (Framing::new(true, false), Framing::new(true, false));
    let mut follower = Follower::default();
    let write = |last: bool| {
        vec![
            if last { 0xc1 } else { 0x81 },
            0x40,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ]
    };
    let terminate = [&[0x41, 0x47][..], &[0; 7], &[2, 0, 0, 0, 1], &[0; 8]].concat();
    for (ulpdu, between) in [
        (send(1, 0, false, b""), false),
        (write(true), false),
        (send(1, 0, true, b""), true),
        (write(false), false),
        (write(true), true),
        (terminate, false),
    ] {
        let wire = tx.seal(&ulpdu, &FpduForm::default());
        follower.follow(&rx.open(&wire).expect("it is whole"), true);
        assert_eq!(follower.is_between_messages(), between, "{ulpdu:02x?}");
    }
}

#[test]
fn msn_and_mo_are_followed() {
    assert_eq!(follow(&[&send(0, 0, true, b"")]), [Rule::Msn]);
    assert_eq!(
        follow(&[&send(1, 0, false, b"1234"), &send(1, 5, true, b"")]),
        [Rule::Mo]
    );
    assert_eq!(
        follow(&[&send(1, 0, true, b""), &send(1, 0, true, b"")]),
        [Rule::Msn]
    );
}

#[test]
fn wrong_control_bytes_are_named() {
    let mut segment = send(1, 0, true, b"");
    segment[0] = 0x46;
    segment[1] = 0xb3;
    assert_eq!(
        follow(&[&segment]),
        [
            Rule::DdpVersion,
            Rule::DdpReserved,
            Rule::RdmapVersion,
            Rule::RdmapReserved
        ]
    );
}

#[test]
fn a_terminate_has_what_it_announces() {
    let terminate = |payload: &[u8]| {
        let mut segment = send(1, 0, true, payload);
        segment[1] = 0x47;
        segment[9] = 2;
        follow(&[&segment])
    };
    let named = send(1, 0, true, b"");
    let whole = [&[0x12, 1, 0xc0, 0, 0, 34], named.as_slice()].concat();
    assert_eq!(terminate(&whole), []);
    assert_eq!(terminate(&[0, 0, 0, 0]), []);
    assert_eq!(terminate(&[0, 0, 0, 0, 0, 0]), []);
    assert_eq!(terminate(&[0, 0, 0, 0, 0, 1]), [Rule::TerminateHeaders]);
    assert_eq!(terminate(&whole[..23]), [Rule::TerminateHeaders]);
    assert_eq!(terminate(&[0]), [Rule::TerminateHeaders]);
    assert_eq!(terminate(&[0x12, 7, 0, 0]), [Rule::TerminateCode]);
    assert_eq!(terminate(&[0, 0, 0x10, 1]), [Rule::TerminateReserved]);
}

#[test]
fn fields_of_an_atomic_request_that_mean_nothing_have_their_values() {
    let mut request = send(1, 0, true, &[0; 52]);
    (request[1], request[9]) = (0x4a, 1);
    request[18 + 44..].fill(0xff);
    assert_eq!(follow(&[&request]), []);
    (request[18], request[18 + 36]) = (1, 1);
    let both = [Rule::AtomicReserved, Rule::FetchAddCompare];
    assert_eq!(follow(&[&request]), both);
    request[18 + 3] = 2;
    assert_eq!(follow(&[&request]), [Rule::AtomicReserved]);
}

#[test]
fn nothing_may_come_behind_a_terminate() {
    let mut terminate = send(1, 0, true, &[0, 0xff, 0, 0]);
    terminate[1] = 0x47;
    terminate[9] = 2;
    assert_eq!(
        follow(&[&terminate, &send(1, 0, true, b"")]),
        [Rule::SilentAfterTerminate]
    );
}
