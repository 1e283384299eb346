//! Defects in FPDUs and messages, shown by a raw peer.

use serde_json::json;
use uwarp_interop::raw::{Crc, SEND_INVALIDATE, TERMINATE, Tagged, Untagged, fpdu, read_request};
use uwarp_interop::{Outcome, Post, Result, Rig, pattern, sge};

use super::{case, deviation};
use crate::Case;
use crate::errors::{pinned, same, theirs};
use crate::raw_pair::{LEN, Terms, guest_connects, guest_serves};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "messages::responder_sends_first",
            "siw as responder sends before the initiator's first FPDU",
            responder_sends_first,
        ),
        case(
            "messages::placement_before_crc",
            "a Write with a wrong CRC is in siw's memory before it is refused",
            placement_before_crc,
        ),
        case("messages::t_bit", "siw ignores T", t_bit),
        case(
            "messages::reserved_bits",
            "reserved bits, a wrong QN and a wrong MO of a Read Request are ignored",
            reserved_bits,
        ),
        case(
            "messages::read_response_tail",
            "siw's Read succeeds with a short answer and a wrong second header",
            read_response_tail,
        ),
        case(
            "messages::read_response_too_long",
            "siw's Read refuses an answer that is too long: 11 01 03",
            read_response_too_long,
        ),
        case(
            "messages::send_inv_of_the_user_library",
            "siw's Send with Invalidate carries `rkey` in place of `invalidate_rkey`",
            send_inv_of_the_user_library,
        ),
        case(
            "messages::rfc_terminate",
            "a Terminate Message in the RFC's layout ends siw's connection without a specific status",
            rfc_terminate,
        ),
        case(
            "messages::half_close",
            "siw handles a half close as the end; a later Send never completes",
            half_close,
        ),
    ]
}

/// Q8. siw violates 5044-7.1.2-15.
fn responder_sends_first(rig: &mut Rig) -> Result<Outcome> {
    for crc in [true, false] {
        let terms = Terms {
            crc,
            ..Terms::default()
        };
        let mut pair = guest_serves(rig, &terms)?;
        rig.agent.fill(&pair.all, 0, 5, 1)?;
        let send = Post::new("send", 1, sge(&pair.all, 0, 5));
        rig.agent.post(pair.conn, &send)?;
        let want = Untagged::send(1).with(&pattern(1, 0, 5));
        same("siw's first FPDU", &pair.peer.ulpdu()?, &want)?;
        rig.agent.completion(pair.conn)?.expect(1, "send")?;
    }
    deviation("RFC 5044 section 7.1.2 requires it to wait")
}

/// Q14. siw violates 5044-4.4-15.
fn placement_before_crc(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    let write = Tagged::write(pair.all.rkey, pair.all.addr + 8).with(&pattern(2, 0, 16));
    pair.peer.send(&fpdu(&write, Crc::Wrong))?;
    pinned(&pair.peer.terminate()?, [0x02, 0x02, 0x00])?;
    pair.peer.closed()?;
    rig.agent.check_zero(&pair.all, 0, 8)?;
    rig.agent.check(&pair.all, 8, 16, 2, 0)?;
    deviation("RFC 5044 section 4.4 requires the CRC to be checked before any other use")
}

/// RFC 5040 section 4.2 assigns each opcode a buffer model. With the wrong model, an opcode is
/// unexpected (5040-7.2-02).
fn t_bit(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    let send = Untagged {
        t: true,
        ..Untagged::send(1)
    };
    let write = Tagged {
        t: false,
        ..Tagged::write(pair.all.rkey, pair.all.addr)
    };
    pair.peer.send_ulpdu(&write.with(&pattern(3, 0, 9)))?;
    pair.peer.send_ulpdu(&send.with(&pattern(4, 0, 7)))?;
    rig.agent.completion(pair.conn)?.expect(100, "recv")?;
    rig.agent.check(&pair.all, 0, 9, 3, 0)?;
    rig.agent.check(&pair.inbox, 0, 7, 4, 0)?;
    deviation("by RFC 5040 section 7.2 an unexpected opcode")
}

/// siw ignores reserved bits, which is correct (5041-4.1-09, 5040-4.1-09). But a Read Request
/// belongs on queue 1 (5040-5.2.1-05) at MO 0 (5041-7.1-03).
fn reserved_bits(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    let send = Untagged {
        ddp_version: 1 | 0x3c,
        opcode: 3 | 0x30,
        word: 0x0102_0304,
        ..Untagged::send(1)
    };
    pair.peer.send_ulpdu(&send.with(&pattern(5, 0, 7)))?;
    rig.agent.completion(pair.conn)?.expect(100, "recv")?;
    rig.agent.check(&pair.inbox, 0, 7, 5, 0)?;
    rig.agent.fill(&pair.all, 0, 40, 6)?;
    let sink = (0x1234_5600, 0x1000);
    let mut request = read_request(1, sink, 40, (pair.all.rkey, pair.all.addr));
    request[6..10].copy_from_slice(&0_u32.to_be_bytes());
    request[14..18].copy_from_slice(&99_u32.to_be_bytes());
    pair.peer.send_ulpdu(&request)?;
    let want = Tagged::read_response(sink.0, sink.1).with(&pattern(6, 0, 40));
    same("the Read Response", &pair.peer.ulpdu()?, &want)?;
    deviation("QN and MO of a Read Request are not checked (RFC 5041 section 7.1)")
}

/// Posts a Read of 100 bytes on siw, and checks its Read Request. Returns STag and TO of the sink.
fn sink(pair: &mut crate::raw_pair::RawPair, rig: &mut Rig) -> Result<(u32, u64)> {
    let read = Post::new("read", 1, sge(&pair.inbox, 0, 100)).remote(0x2000, 0x7700);
    rig.agent.post(pair.conn, &read)?;
    let sink = (pair.inbox.rkey, pair.inbox.addr);
    let want = read_request(1, sink, 100, (0x7700, 0x2000));
    same("siw's Read Request", &pair.peer.ulpdu()?, &want)?;
    Ok(sink)
}

/// Q15. 5040-5.2.2-05 makes the check optional, but 5041-7.1-10 and -12 require it for every tagged
/// segment.
fn read_response_tail(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_connects(rig, &Terms::default())?;
    let (stag, to) = sink(&mut pair, rig)?;
    let first = Tagged {
        last: false,
        ..Tagged::read_response(stag, to)
    };
    pair.peer.send_ulpdu(&first.with(&pattern(7, 0, 52)))?;
    let second = Tagged::read_response(!stag, 0x0bad);
    pair.peer.send_ulpdu(&second.with(&pattern(7, 52, 20)))?;
    let done = rig.agent.completion(pair.conn)?;
    same("bytes read", &done.expect(1, "read")?.len, &72)?;
    rig.agent.check(&pair.inbox, 0, 72, 7, 0)?;
    rig.agent.check_zero(&pair.inbox, 72, 28)?;
    deviation("every tagged segment must be checked (RFC 5041 section 7.1)")
}

fn read_response_too_long(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_connects(rig, &Terms::default())?;
    let (stag, to) = sink(&mut pair, rig)?;
    let first = Tagged {
        last: false,
        ..Tagged::read_response(stag, to)
    };
    pair.peer.send_ulpdu(&first.with(&pattern(8, 0, 52)))?;
    let second = Tagged::read_response(stag, to + 52);
    pair.peer.send_ulpdu(&second.with(&pattern(8, 52, 52)))?;
    pinned(&pair.peer.terminate()?, [0x11, 0x01, 0x03])?;
    pair.peer.closed()?;
    rig.agent.check_zero(&pair.inbox, 100, 28)?;
    deviation("Layer and EType are exchanged; M and D are in the low bits")
}

/// Q17. siw's user library violates 5040-5.3-09.
fn send_inv_of_the_user_library(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_connects(rig, &Terms::default())?;
    let mut send = Post::new("send_inv", 1, sge(&pair.all, 0, 4)).remote(0, 0x1122_3300);
    send.inv = 0xdead_be00;
    rig.agent.post(pair.conn, &send)?;
    let want = Untagged {
        opcode: SEND_INVALIDATE,
        word: 0x1122_3300,
        ..Untagged::send(1)
    };
    same("siw's Send", &pair.peer.ulpdu()?, &want.with(&[0; 4]))?;
    deviation("the STag of the work request is not sent (RFC 5040 section 5.3)")
}

/// Sends a Terminate Message with code 1/1/00 (invalid STag) and the flags M and D. siw reads it in
/// its own layout, and does not report it to its application.
fn rfc_terminate(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_connects(rig, &Terms::default())?;
    sink(&mut pair, rig)?;
    let request = read_request(1, (pair.inbox.rkey, pair.inbox.addr), 100, (0x7700, 0x2000));
    let header = [&[0x01, 0x00, 0xe0, 0, 0, 46][..], &request].concat();
    let terminate = Untagged::new(TERMINATE, 2, 1, &header);
    pair.peer.send_ulpdu(&terminate.bytes())?;
    pair.peer.closed()?;
    let flushed = [1, 100, 101].map(|wr_id| (wr_id, "wr_flush_err".to_owned()));
    let came = theirs(&mut rig.agent, pair.conn, 3)?;
    same("completions in the guest", &came, &flushed.to_vec())?;
    rig.agent.event(pair.conn, "disconnected")?;
    deviation(
        "the Read is flushed, but RFC 5040 section 7.1 requires the error to be reported to the consumer",
    )
}

/// TCP permits the other half to continue, but siw ends the connection. Q19: a work request that
/// siw's application posts afterwards is accepted and never completes. The request should complete,
/// because 5040-7.1-01 requires that the application is informed.
fn half_close(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    pair.peer.half_close()?;
    pair.peer.closed()?;
    let flushed = [100, 101].map(|wr_id| (wr_id, "wr_flush_err".to_owned()));
    let came = theirs(&mut rig.agent, pair.conn, 2)?;
    same("completions in the guest", &came, &flushed.to_vec())?;
    rig.agent.event(pair.conn, "disconnected")?;
    let late = Post::new("send", 1, sge(&pair.all, 0, 4));
    rig.agent.post(pair.conn, &late)?;
    let polled = rig
        .agent
        .command(&json!({"cmd": "poll", "conn": pair.conn.0}))?;
    same("late completions", &polled["count"], &json!(0))?;
    same("reports of the guest", &rig.agent.unread(), &Vec::new())?;
    // An incomplete message is dropped; here it is the first segment of a Send.
    let mut pair = guest_serves(rig, &Terms::default())?;
    let first = Untagged {
        last: false,
        ..Untagged::send(1)
    };
    pair.peer.send_ulpdu(&first.with(&[1; LEN - 1]))?;
    pair.peer.half_close()?;
    pair.peer.closed()?;
    let came = theirs(&mut rig.agent, pair.conn, 2)?;
    same("completions in the guest", &came, &flushed.to_vec())?;
    deviation("a work request posted after the end never completes")
}
