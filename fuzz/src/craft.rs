//! Builds ULPDUs that are valid except where the input asks for a fault. Random bytes seldom form a
//! valid message.

use crate::input::Input;
use crate::model::memory::Region;
use crate::model::stream::{Judge, Waiting};

/// Longest payload of one ULPDU.
const MAX_PAYLOAD: usize = 2100;

/// Builds the next ULPDU of the stream that `judge` models. The input selects the message, its
/// faults and its payload.
pub(crate) fn ulpdu(input: &mut Input<'_>, judge: &Judge, regions: &[Region]) -> Vec<u8> {
    let opcode = input.u8() & 15;
    let wrong = input.flags();
    let queue = match opcode {
        1 | 10 => 1,
        7 => 2,
        11 => 3,
        _ => 0,
    };
    let tagged = matches!(opcode, 0 | 2) ^ wrong(5);
    let mut control = 0x41;
    if wrong(0) {
        control ^= 0x40;
    }
    if wrong(4) {
        control ^= input.u8() & 0x3F;
    }
    let mut bytes = vec![control | if tagged { 0x80 } else { 0 }, 0x40 | opcode];
    if wrong(6) {
        bytes[1] ^= input.u8();
    }
    let (region, stag, to) = place(input, regions);
    if tagged {
        let (stag, to) = match judge.waiting.front() {
            Some(Waiting::Read { stag, to, got, .. }) if opcode == 2 => {
                (*stag, to.wrapping_add(u64::from(*got)))
            }
            _ => (stag, to),
        };
        let (wrong_stag, wrong_to) = (u32::from(wrong(1)), u64::from(wrong(2)));
        bytes.extend_from_slice(&(stag ^ wrong_stag).to_be_bytes());
        bytes.extend_from_slice(&(to ^ wrong_to << 4).to_be_bytes());
    } else {
        bytes.extend_from_slice(&stag.to_be_bytes());
        let qn: u32 = if wrong(1) { input.u8().into() } else { queue };
        bytes.extend_from_slice(&qn.to_be_bytes());
        let msn = judge.msn[queue as usize].wrapping_add(u32::from(wrong(2)));
        bytes.extend_from_slice(&msn.to_be_bytes());
        let mo = match judge.under_way {
            Some((mo, _)) if queue == 0 => mo,
            _ => 0,
        };
        bytes.extend_from_slice(&mo.wrapping_add(u32::from(wrong(3))).to_be_bytes());
    }
    payload(input, opcode, judge, (region, stag, to), &mut bytes);
    if wrong(7) {
        // Truncates the ULPDU to `len` bytes. A shorter ULPDU does not change.
        let len = usize::from(input.u8());
        bytes.truncate(len.max(1));
    }
    bytes
}

/// Chooses an STag and a TO: in a region, just outside it, or of no region.
fn place<'r>(input: &mut Input<'_>, regions: &'r [Region]) -> (Option<&'r Region>, u32, u64) {
    let choice = usize::from(input.u8());
    let offset = input.u16();
    let Some(region) = regions.get(choice % (regions.len() + 1)) else {
        return (None, u32::from(offset) << 8, u64::from(offset) << 48);
    };
    let near = u64::from(offset & 0xFFF);
    let len = region.bytes.len() as u64;
    let to = match offset >> 14 {
        0 => region.base.wrapping_add(near % len),
        1 => region.base.wrapping_add(len).wrapping_sub(near),
        2 => region.base.wrapping_add(near & !7),
        _ => region.base.wrapping_sub(near),
    };
    (Some(region), region.stag, to)
}

/// Appends the bytes after the DDP header.
fn payload(
    input: &mut Input<'_>,
    opcode: u8,
    judge: &Judge,
    (region, stag, to): (Option<&Region>, u32, u64),
    bytes: &mut Vec<u8>,
) {
    match opcode {
        1 => {
            let (sink, len) = (input.u32(), u32::from(input.u16()));
            // Most lengths end in the region, or one byte after it.
            let end = region.map_or(0, |region| {
                region.base.wrapping_add(region.bytes.len() as u64)
            });
            let left = end.wrapping_sub(to).min(4096) as u32;
            let len = if len & 0x8000 != 0 {
                len << 16
            } else {
                len % (left + 2)
            };
            bytes.extend_from_slice(&sink.to_be_bytes());
            bytes.extend_from_slice(&u64::from(sink).rotate_right(7).to_be_bytes());
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(&stag.to_be_bytes());
            bytes.extend_from_slice(&to.to_be_bytes());
        }
        2 => {
            let mut payload = input.slice(MAX_PAYLOAD).to_vec();
            if let Some(Waiting::Read { len, got, .. }) = judge.waiting.front() {
                // A payload of even length is cut or padded to the length that completes the Read.
                if payload.len().is_multiple_of(2) {
                    payload.resize((len - got) as usize, 0x77);
                }
            }
            bytes.extend_from_slice(&payload);
        }
        8 | 9 => bytes.extend_from_slice(&input.u64().to_be_bytes()),
        10 => {
            let code = input.u8() & 0x13;
            bytes.extend_from_slice(&[0, 0, 0, code & 0xFE]);
            bytes.extend_from_slice(&input.u32().to_be_bytes());
            bytes.extend_from_slice(&stag.to_be_bytes());
            bytes.extend_from_slice(&to.to_be_bytes());
            for _ in 0..4 {
                bytes.extend_from_slice(&input.u64().to_be_bytes());
            }
        }
        11 => {
            let id = match judge.waiting.front() {
                Some(Waiting::Atomic { id }) => *id,
                _ => input.u32(),
            };
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&input.u64().to_be_bytes());
        }
        _ => bytes.extend_from_slice(input.slice(MAX_PAYLOAD)),
    }
}
