//! Rules that apply to every FPDU that the target sends. A breach fails only the cases that watch
//! the rule. Otherwise one mistake of a sender would fail every case.

use std::fmt;

use crate::size::Sizes;
use crate::wire::fpdu::OpenedFpdu;
use crate::wire::segment::{Address, Segment, opcode};
use crate::wire::terminate::{self, Terminate, is_registered};
use crate::words::many;

/// A rule for the sender of FPDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// PAD bytes are zero.
    PadZero,
    /// The CRC field holds the correct CRC32C, if CRCs are in use.
    Crc,
    /// ULPDU_Length is at most 64768.
    UlpduLength,
    /// The reserved bits of a Marker are zero.
    MarkerReserved,
    /// The two low bits of FPDUPTR are zero.
    MarkerLowBits,
    /// FPDUPTR is the distance from the Marker back to ULPDU_Length.
    MarkerPointer,
    /// The ULPDU is long enough for its DDP Header.
    DdpHeader,
    /// DV is 1.
    DdpVersion,
    /// The 4 reserved bits of DDP Control are zero.
    DdpReserved,
    /// RV is 1.
    RdmapVersion,
    /// The 2 reserved bits of RDMAP Control are zero.
    RdmapReserved,
    /// The opcode is assigned.
    Opcode,
    /// T has the value that the opcode requires.
    TaggedFlag,
    /// QN is the queue that the opcode uses.
    QueueNumber,
    /// Invalidate STag is zero in messages that invalidate nothing.
    InvalidateZero,
    /// The MSNs of a queue begin at 1 and rise by 1 with each message.
    Msn,
    /// MO begins at 0 and continues where the previous segment ended.
    Mo,
    /// TO continues where the previous segment ended.
    To,
    /// All segments of a message have one STag.
    SameStag,
    /// All segments of a message have the same RDMAP Control and Invalidate STag.
    SameRsvdUlp,
    /// Read Requests, Terminates, Atomic messages and Immediate Data consist of one segment with
    /// the length that the opcode requires.
    HeaderLength,
    /// Layer, EType and Error Code of a Terminate are registered.
    TerminateCode,
    /// The 13 reserved bits of the Terminate Header are zero.
    TerminateReserved,
    /// A Terminate contains exactly the headers that its bits M, D and R announce.
    TerminateHeaders,
    /// The 28 reserved bits of an Atomic Request are zero.
    AtomicReserved,
    /// A FetchAdd has Compare Data zero and all bits of Compare Mask set.
    FetchAddCompare,
    /// Nothing follows a Terminate.
    SilentAfterTerminate,
    /// No ULPDU is longer than MULPDU. Checked only if the suite knows the EMSS.
    Mulpdu,
    /// A message does not have many more segments than MULPDU requires.
    FewSegments,
}

/// Violation of a rule, with a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    pub(crate) rule: Rule,
    pub(crate) detail: String,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::PadZero => "PAD bytes are zero",
            Rule::Crc => "the CRC field holds the CRC32C of the FPDU, least significant byte first",
            Rule::UlpduLength => "ULPDU_Length is at most 64768",
            Rule::MarkerReserved => "the reserved bits of a Marker are zero",
            Rule::MarkerLowBits => "the two low bits of FPDUPTR are zero",
            Rule::MarkerPointer => "FPDUPTR is the distance from ULPDU_Length to the Marker",
            Rule::DdpHeader => "every segment has a whole DDP Header",
            Rule::DdpVersion => "DV is 1",
            Rule::DdpReserved => "the reserved bits of DDP Control are zero",
            Rule::RdmapVersion => "RV is 1",
            Rule::RdmapReserved => "the reserved bits of RDMAP Control are zero",
            Rule::Opcode => "the opcode is assigned",
            Rule::TaggedFlag => "T has the value that the opcode requires",
            Rule::QueueNumber => "QN is the queue of the opcode",
            Rule::InvalidateZero => "Invalidate STag is zero in a message that invalidates nothing",
            Rule::Msn => "MSN begins at 1 and rises by 1 with each message of a queue",
            Rule::Mo => "MO begins at 0 and continues where the last segment ended",
            Rule::To => "TO continues where the last segment ended",
            Rule::SameStag => "all segments of a message have one STag",
            Rule::SameRsvdUlp => "all segments of a message have the same RsvdULP",
            Rule::HeaderLength => "a message without ULP Payload has exactly its header",
            Rule::TerminateCode => "Layer, EType and Error Code of a Terminate are registered",
            Rule::TerminateReserved => "the reserved bits of the Terminate Header are zero",
            Rule::TerminateHeaders => "a Terminate has the headers that M, D and R announce",
            Rule::AtomicReserved => "the 28 reserved bits of an Atomic Request are zero",
            Rule::FetchAddCompare => "a FetchAdd has Compare Data zero and Compare Mask all ones",
            Rule::SilentAfterTerminate => "nothing is sent after a Terminate",
            Rule::Mulpdu => "no ULPDU is longer than MULPDU",
            Rule::FewSegments => "a message has few segments, as large as MULPDU allows",
        })
    }
}

/// Incomplete message of an untagged queue, or the incomplete tagged message.
#[derive(Clone, Copy, Debug)]
struct Open {
    rdmap: u8,
    invalidate: u32,
    stag: u32,
    /// Expected TO or MO of the next segment.
    next: u64,
}

/// State of the checks for one connection, updated with each segment of the target.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// MSN of the latest message, by QN.
    msns: [u32; 4],
    tagged: Option<Open>,
    untagged: [Option<Open>; 4],
    terminated: bool,
    /// State of the checks of ULPDU lengths.
    pub(crate) sizes: Sizes,
}

impl Follower {
    /// Checks an FPDU and returns the breaches.
    pub(crate) fn follow(&mut self, fpdu: &OpenedFpdu, crc: bool) -> Vec<Breach> {
        let mut breaches = Breaches(Vec::new());
        check_fpdu(fpdu, crc, &mut breaches);
        breaches.0.extend(self.sizes.follow(&fpdu.ulpdu));
        if self.terminated {
            breaches.add(
                Rule::SilentAfterTerminate,
                format!("{} came after it", many(fpdu.wire.len(), "byte")),
            );
        }
        match Segment::parse(&fpdu.ulpdu) {
            None => breaches.add(
                Rule::DdpHeader,
                format!("a ULPDU has only {}", many(fpdu.ulpdu.len(), "byte")),
            ),
            Some(segment) => {
                check_control(&segment, &mut breaches);
                self.follow_segment(&segment, &mut breaches);
            }
        }
        breaches.0
    }

    /// Returns true if all messages so far are complete and the target sent no Terminate.
    pub(crate) fn is_between_messages(&self) -> bool {
        let is_under_way = |queue: &Option<Open>| queue.is_some();
        !self.terminated && self.tagged.is_none() && !self.untagged.iter().any(is_under_way)
    }

    fn follow_segment(&mut self, segment: &Segment, breaches: &mut Breaches) {
        let len = segment.payload.len() as u64;
        match segment.address {
            Address::Tagged { stag, to } => {
                let open = self.tagged.take();
                if let Some(open) = open {
                    check_same(segment, &open, 0, breaches);
                    if open.stag != stag {
                        let (was, is) = (open.stag, stag);
                        breaches.add(Rule::SameStag, format!("{was:#010x}, then {is:#010x}"));
                    }
                    if open.next != to {
                        let due = open.next;
                        breaches.add(Rule::To, format!("expected TO {due:#x}, received {to:#x}"));
                    }
                }
                self.tagged = (!segment.last()).then(|| Open {
                    rdmap: segment.rdmap,
                    invalidate: 0,
                    stag,
                    next: to.wrapping_add(len),
                });
            }
            Address::Untagged {
                invalidate,
                qn,
                msn,
                mo,
            } => {
                let Some(queue) = self.untagged.get_mut(qn as usize) else {
                    return;
                };
                let due = self.msns[qn as usize].wrapping_add(1);
                if msn != due {
                    let detail = format!("expected MSN {due} on QN {qn}, received {msn}");
                    breaches.add(Rule::Msn, detail);
                }
                let open = queue.take();
                let place = open.map_or(0, |open| open.next);
                if u64::from(mo) != place {
                    breaches.add(Rule::Mo, format!("expected MO {place}, received {mo}"));
                }
                if let Some(open) = open {
                    check_same(segment, &open, invalidate, breaches);
                }
                if segment.last() {
                    self.msns[qn as usize] = msn;
                } else {
                    *queue = Some(Open {
                        rdmap: segment.rdmap,
                        invalidate,
                        stag: 0,
                        next: u64::from(mo) + len,
                    });
                }
                if segment.opcode() == opcode::TERMINATE {
                    self.terminated = true;
                    check_terminate(&segment.payload, breaches);
                }
            }
        }
    }
}

fn check_same(segment: &Segment, open: &Open, invalidate: u32, breaches: &mut Breaches) {
    if (segment.rdmap, invalidate) != (open.rdmap, open.invalidate) {
        let (was, is) = (open.rdmap, segment.rdmap);
        breaches.add(
            Rule::SameRsvdUlp,
            format!("RDMAP Control {was:#04x}, then {is:#04x}"),
        );
    }
}

fn check_fpdu(fpdu: &OpenedFpdu, crc: bool, breaches: &mut Breaches) {
    if fpdu.pad.iter().any(|byte| *byte != 0) {
        breaches.add(Rule::PadZero, format!("PAD is {:02x?}", fpdu.pad));
    }
    if crc && fpdu.crc != fpdu.right_crc {
        let (is, right) = (fpdu.crc, fpdu.right_crc);
        breaches.add(
            Rule::Crc,
            format!("received {is:02x?}, expected {right:02x?}"),
        );
    }
    if fpdu.ulpdu.len() > 64768 {
        breaches.add(Rule::UlpduLength, format!("it is {}", fpdu.ulpdu.len()));
    }
    for marker in &fpdu.markers {
        let [a, b, c, d] = marker.word;
        let (reserved, pointer) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        if reserved != 0 {
            breaches.add(Rule::MarkerReserved, format!("they are {reserved:#06x}"));
        }
        if pointer & 3 != 0 {
            breaches.add(Rule::MarkerLowBits, format!("FPDUPTR is {pointer:#06x}"));
        }
        if usize::from(pointer & !3) != marker.right {
            let right = marker.right;
            breaches.add(
                Rule::MarkerPointer,
                format!("FPDUPTR is {pointer:#06x}, expected {right:#06x}"),
            );
        }
    }
}

fn check_control(segment: &Segment, breaches: &mut Breaches) {
    let (ddp, rdmap) = (segment.ddp, segment.rdmap);
    let ddp_control = || format!("DDP Control is {ddp:#04x}");
    let rdmap_control = || format!("RDMAP Control is {rdmap:#04x}");
    if ddp & 3 != 1 {
        breaches.add(Rule::DdpVersion, ddp_control());
    }
    if ddp & 0x3c != 0 {
        breaches.add(Rule::DdpReserved, ddp_control());
    }
    if rdmap >> 6 != 1 {
        breaches.add(Rule::RdmapVersion, rdmap_control());
    }
    if rdmap & 0x30 != 0 {
        breaches.add(Rule::RdmapReserved, rdmap_control());
    }
    let code = segment.opcode();
    let Some(queue) = opcode::queue(code) else {
        breaches.add(Rule::Opcode, format!("it is {code}"));
        return;
    };
    match (segment.address, queue) {
        (Address::Tagged { .. }, Some(_)) | (Address::Untagged { .. }, None) => {
            let name = opcode::name(code);
            let detail = format!("{name} has DDP Control {ddp:#04x}");
            breaches.add(Rule::TaggedFlag, detail);
        }
        (Address::Untagged { qn, .. }, Some(right)) if qn != right => {
            let name = opcode::name(code);
            breaches.add(Rule::QueueNumber, format!("{name} came on QN {qn}"));
        }
        _ => {}
    }
    if let Address::Untagged { invalidate, .. } = segment.address
        && invalidate != 0
        && !matches!(code, opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE)
    {
        let name = opcode::name(code);
        let detail = format!("in {name} it is {invalidate:#010x}");
        breaches.add(Rule::InvalidateZero, detail);
    }
    check_length(segment, breaches);
    if code == opcode::ATOMIC_REQUEST {
        check_atomic(&segment.payload, breaches);
    }
}

/// Checks the payload length of messages that consist of one segment with a fixed length.
fn check_length(segment: &Segment, breaches: &mut Breaches) {
    let code = segment.opcode();
    let right = match code {
        opcode::READ_REQUEST => 28,
        // The length of a Terminate depends on the headers that it contains; `check_terminate`
        // checks it.
        opcode::TERMINATE => segment.payload.len(),
        opcode::IMMEDIATE | opcode::IMMEDIATE_SE => 8,
        opcode::ATOMIC_REQUEST => 52,
        opcode::ATOMIC_RESPONSE => 12,
        _ => return,
    };
    if segment.payload.len() != right || !segment.last() {
        let (name, is) = (opcode::name(code), segment.payload.len());
        let detail = format!(
            "{name} has {is} after the DDP Header, expected {right}",
            is = many(is, "byte")
        );
        breaches.add(Rule::HeaderLength, detail);
    }
}

fn check_terminate(payload: &[u8], breaches: &mut Breaches) {
    let Some(terminate) = Terminate::parse(payload) else {
        let detail = format!("it has {}", many(payload.len(), "byte"));
        breaches.add(Rule::TerminateHeaders, detail);
        return;
    };
    if !is_registered(terminate.layer, terminate.etype, terminate.code) {
        breaches.add(Rule::TerminateCode, terminate.to_string());
    }
    if terminate.reserved != 0 {
        let detail = format!("they are {:#06x}", terminate.reserved);
        breaches.add(Rule::TerminateReserved, detail);
    }
    let bit = |bit: u8, len: usize| if terminate.hdrct & bit != 0 { len } else { 0 };
    let named = terminate.headers();
    let tagged = named.first().is_some_and(|control| control & 0x80 != 0);
    let due = 4
        + bit(terminate::M | terminate::D, 2)
        + bit(terminate::D, if tagged { 14 } else { 18 })
        + bit(terminate::R, 28);
    // A field that is not announced is absent or zero (RFC 5040 sections 4.8 and 7.1).
    let rest = payload.get(due..);
    if rest.is_none_or(|rest| rest.iter().any(|byte| *byte != 0)) {
        let is = payload.len();
        let detail = format!(
            "{terminate}: {is}, but M, D and R announce {due}",
            is = many(is, "byte")
        );
        breaches.add(Rule::TerminateHeaders, detail);
    }
}

/// Checks the reserved bits of an Atomic Request, and the compare fields that a FetchAdd does not
/// use (RFC 7306 section 5.2.1).
fn check_atomic(header: &[u8], breaches: &mut Breaches) {
    let (Some(first), Some(compare)) = (header.first_chunk::<4>(), header.get(36..52)) else {
        return;
    };
    let word = u32::from_be_bytes(*first);
    if word >> 4 != 0 {
        breaches.add(
            Rule::AtomicReserved,
            format!("its first word is {word:#010x}"),
        );
    }
    let (data, mask) = compare.split_at(8);
    if word & 15 == 0 && (data != [0; 8] || mask != [0xff; 8]) {
        let detail = format!("Compare Data is {data:02x?}, Compare Mask {mask:02x?}");
        breaches.add(Rule::FetchAddCompare, detail);
    }
}

struct Breaches(Vec<Breach>);

impl Breaches {
    fn add(&mut self, rule: Rule, detail: String) {
        self.0.push(Breach { rule, detail });
    }
}

#[cfg(test)]
mod tests;
