//! MPA startup: a raw peer against siw.

use uwarp_interop::raw::{C, R, REPLY, REQUEST, S, StartupFrame, Tagged};
use uwarp_interop::{Answer, Failure, Outcome, Result, Rig, pattern};

use super::{case, deviation};
use crate::Case;
use crate::errors::same;
use crate::raw_pair::{guest_calls, request};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "startup::request_without_crc",
            "siw's MPA Request: revision 2, IRD, ORD, no CRC",
            request_without_crc,
        ),
        case(
            "startup::flags_come_back",
            "siw's MPA Reply echoes the flags of the Request",
            flags_come_back,
        ),
        case(
            "startup::revision_0",
            "an MPA Request of revision 0 is accepted",
            revision_0,
        ),
        case(
            "startup::revision_1_with_s",
            "an MPA Request of revision 1 with bit S: 4 bytes are private data",
            revision_1_with_s,
        ),
        case("startup::depths", "IRD and ORD in siw's MPA Reply", depths),
        case(
            "startup::rtr_kinds",
            "RTR kinds in siw's MPA Reply",
            rtr_kinds,
        ),
        case(
            "startup::private_data_256",
            "256 bytes of private data, revision 1: siw's consumer gets none",
            private_data_256,
        ),
        case(
            "startup::private_data_252",
            "252 to 255 bytes of private data of siw's consumer: PD_Length wraps",
            private_data_252,
        ),
        case(
            "startup::ird_300",
            "an MPA Reply with an IRD of 300: siw's consumer gets 44",
            ird_300,
        ),
    ]
}

fn four() -> Answer {
    Answer {
        ird: 4,
        ord: 4,
        private_data: Vec::new(),
    }
}

/// Q1: C is 0, and no setting of the driver changes it. This violates 5044-4.4-04.
fn request_without_crc(rig: &mut Rig) -> Result<Outcome> {
    let answer = Answer {
        private_data: pattern(1, 0, 3),
        ..four()
    };
    let (_peer, _, frame) = guest_calls(rig, &answer)?;
    let depths = [0, 4, 0, 4];
    let data = [&depths[..], &answer.private_data].concat();
    same(
        "siw's Request",
        &frame,
        &StartupFrame::new(REQUEST, S, 2, &data),
    )?;
    deviation("RFC 5044 section 4.4 requires CRC to be on by default")
}

/// Sends a Request, which the guest accepts. Returns siw's Reply, and the private data in the event
/// of the request.
fn accepted(rig: &mut Rig, frame: &StartupFrame) -> Result<(StartupFrame, Vec<u8>)> {
    let (mut peer, event) = request(rig, &frame.bytes())?;
    rig.agent.accept(event.conn, &four())?;
    let reply = peer.startup_frame()?;
    if frame
        .private_data
        .first()
        .is_some_and(|first| first & 0x80 != 0)
    {
        // In the peer-to-peer model siw waits for an RTR indication; here it is an empty Write.
        peer.send_ulpdu(&Tagged::write(0, 0).with(&[]))?;
    }
    rig.agent.event(event.conn, "established")?;
    rig.agent.destroy(event.conn)?;
    Ok((reply, event.private_data))
}

/// Q3. siw echoes reserved bits, which violates 5044-7.1.1-10. If a Request has R set, the Reply
/// has R set too, as in a reject. Nevertheless siw's own application gets a connection.
fn flags_come_back(rig: &mut Rig) -> Result<Outcome> {
    for flags in [0, C, R, 0x0f] {
        let frame = StartupFrame::new(REQUEST, flags, 1, &[]);
        let (reply, _) = accepted(rig, &frame)?;
        same(
            "siw's Reply",
            &reply,
            &StartupFrame::new(REPLY, flags, 1, &[]),
        )?;
    }
    // In revision 2 without S, neither frame has IRD and ORD.
    let (reply, _) = accepted(rig, &StartupFrame::new(REQUEST, 0, 2, &[]))?;
    same("siw's Reply", &reply, &StartupFrame::new(REPLY, 0, 2, &[]))?;
    deviation(
        "reserved bits are not zero (RFC 5044 section 7.1.1), and R is set in a Reply that accepts",
    )
}

/// siw accepts revision 0, which does not exist (5044-7.1.1-12 to 14).
fn revision_0(rig: &mut Rig) -> Result<Outcome> {
    let (reply, _) = accepted(rig, &StartupFrame::new(REQUEST, 0, 0, &[]))?;
    same("siw's Reply", &reply, &StartupFrame::new(REPLY, 0, 0, &[]))?;
    deviation("no RFC defines a revision 0; the Reply also has it")
}

/// siw echoes S in revision 1, where the bit is reserved (5044-7.1.1-10).
fn revision_1_with_s(rig: &mut Rig) -> Result<Outcome> {
    let data = [0, 4, 0, 4];
    let (reply, heard) = accepted(rig, &StartupFrame::new(REQUEST, S, 1, &data))?;
    same("siw's Reply", &reply, &StartupFrame::new(REPLY, S, 1, &[]))?;
    same("private data", &heard, &data.to_vec())?;
    deviation("a reserved bit is not zero (RFC 5044 section 7.1.1)")
}

/// An IRD or ORD of 0x3FFF leaves the depth to the applications, and a peer should echo it
/// (6581-9.1-10, -12). siw handles the value as a depth.
fn depths(rig: &mut Rig) -> Result<Outcome> {
    for (ird, ord, their_ird, their_ord) in [
        (4, 4, 4, 4),
        (1, 1, 4, 1),
        (0, 0, 4, 0),
        (200, 200, 128, 4),
        (0x3fff, 0x3fff, 128, 4),
    ] {
        let (reply, _) = accepted(rig, &StartupFrame::enhanced(REQUEST, 0, ird, ord))?;
        let want = StartupFrame::enhanced(REPLY, 0, their_ird, their_ord);
        same(&format!("siw's Reply to {ird}, {ord}"), &reply, &want)?;
    }
    deviation("0x3FFF is not understood (RFC 6581 section 9.1)")
}

const A: u16 = 0x8000;
const B: u16 = 0x4000;
/// Flags C and D, in the field of ORD.
const WRITE: u16 = 0x8000;
const READ: u16 = 0x4000;

/// Flag B announces Sends, C Writes and D Reads as RTR indications. siw selects one kind, which
/// 6581-9.2-06 and -08 permit. 6581-9.2-05 recommends naming all kinds.
fn rtr_kinds(rig: &mut Rig) -> Result<Outcome> {
    for (ird, ord, their_ird, their_ord) in [
        (A | B, WRITE | READ, A, WRITE),
        (A | B, 0, A, WRITE),
        (A, WRITE, A, WRITE),
        (A, READ, A, READ),
        (A, 0, A, WRITE),
        // Without A the other bits have no meaning (6581-9.2-13, -14).
        (0, WRITE | READ, 0, 0),
    ] {
        let frame = StartupFrame::enhanced(REQUEST, 0, ird | 4, ord | 4);
        let (reply, _) = accepted(rig, &frame)?;
        let want = StartupFrame::enhanced(REPLY, 0, their_ird | 4, their_ord | 4);
        same(
            &format!("siw's Reply to {:02x?}", frame.private_data),
            &reply,
            &want,
        )?;
    }
    deviation("it names one of the common kinds (RFC 6581 section 9.2: it should name each)")
}

/// siw truncates the length to 8 bits for the application, which violates 5044-7.1.2-20.
fn private_data_256(rig: &mut Rig) -> Result<Outcome> {
    let (_, heard) = accepted(rig, &StartupFrame::new(REQUEST, 0, 1, &[7; 255]))?;
    same("private data", &heard, &vec![7; 255])?;
    let (_, heard) = accepted(rig, &StartupFrame::new(REQUEST, 0, 1, &[7; 256]))?;
    same("private data", &heard, &Vec::new())?;
    deviation("RFC 5044 section 7.1.1 permits 512 bytes")
}

/// Q5. siw violates 5044-7.1.1-15: `PD_Length` is too small, so the receiver must parse the
/// remaining bytes as FPDUs.
fn private_data_252(rig: &mut Rig) -> Result<Outcome> {
    for len in [252_usize, 255] {
        let answer = Answer {
            private_data: pattern(1, 0, len),
            ..four()
        };
        let (mut peer, conn, frame) = guest_calls(rig, &answer)?;
        let wrapped = (len + 4) % 256;
        same("PD_Length", &frame.private_data.len(), &wrapped)?;
        let rest = peer.bytes(len + 4 - wrapped)?;
        let came = [&frame.private_data[..], &rest].concat();
        let want = [&[0, 4, 0, 4][..], &answer.private_data].concat();
        if came != want {
            return Err(Failure::new(format!(
                "siw sends {came:02x?} as private data, not {want:02x?}"
            )));
        }
        rig.agent.destroy(conn)?;
    }
    deviation("`PD_Length` is 0 to 3 (RFC 5044 section 7.1.1)")
}

/// With an IRD of 300 in our Reply, siw's ORD becomes 300, above its own maximum of 128. librdmacm
/// reports only the low 8 bits.
fn ird_300(rig: &mut Rig) -> Result<Outcome> {
    let (mut peer, conn, _) = guest_calls(rig, &four())?;
    peer.send(&StartupFrame::enhanced(REPLY, 0, 300, 4).bytes())?;
    let event = rig.agent.event(conn, "established")?;
    same("IRD and ORD", &(event.ird, event.ord), &(44, 4))?;
    deviation("the consumer gets another depth (RFC 6581 section 9.1)")
}
