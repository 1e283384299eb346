//! Socket filter of a raw wire, which drops frames for other hosts so that no thread wakes up for
//! them.

use std::net::IpAddr;

use super::HEADER;
use super::sys::Instruction;

/// Codes of classic BPF (`linux/filter.h`).
mod code {
    /// A = the 32 bits at k.
    pub(super) const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    /// A = the 16 bits at k.
    pub(super) const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    /// A = the byte at k.
    pub(super) const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    /// Skip `jt` instructions if A == k, else `jf`.
    pub(super) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    /// Skip k instructions.
    pub(super) const SKIP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
    /// Accept the first k bytes of the frame; 0 drops the frame.
    pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
}

const IPV4: u32 = 0x0800;
const ARP: u32 = 0x0806;
const IPV6: u32 = 0x86dd;

const IPV4_SOURCE: usize = HEADER + 12;
const IPV4_DESTINATION: usize = HEADER + 16;
const IPV6_SOURCE: usize = HEADER + 8;
const IPV6_DESTINATION: usize = HEADER + 24;

/// Maximum number of addresses in a filter. Checking more addresses would cost more than it saves,
/// so all IP packets are then accepted.
const MOST_ADDRESSES: usize = 64;

/// Returns a filter that accepts ARP, IP packets from or to one of `addresses`, and IPv6 multicast
/// (for NDP). Packets *from* these addresses show that the kernel uses them. Frames with a VLAN tag
/// are dropped, because the kernel removes the tag and they would look untagged. Frames to other
/// stations are dropped, too.
pub(super) fn program(addresses: &[IpAddr]) -> Vec<Instruction> {
    let mut program = Program(Vec::new());
    program.load(code::LOAD_WORD, ancillary(libc::SKF_AD_VLAN_TAG_PRESENT));
    program.only_if(0);
    program.load(code::LOAD_WORD, ancillary(libc::SKF_AD_PKTTYPE));
    program.drop_if(u32::from(libc::PACKET_OTHERHOST));
    program.load(code::LOAD_HALF, 12);
    program.take_if(ARP);
    if addresses.len() > MOST_ADDRESSES {
        program.take_if(IPV4);
        program.take_if(IPV6);
    } else {
        program.when(IPV4, &ipv4(addresses));
        program.when(IPV6, &ipv6(addresses));
    }
    program.end(0);
    program.0
}

fn ipv4(addresses: &[IpAddr]) -> Program {
    let mut program = Program(Vec::new());
    for at in [IPV4_DESTINATION, IPV4_SOURCE] {
        program.load(code::LOAD_WORD, offset(at));
        for addr in addresses {
            if let IpAddr::V4(addr) = addr {
                program.take_if(addr.to_bits());
            }
        }
    }
    program.end(0);
    program
}

fn ipv6(addresses: &[IpAddr]) -> Program {
    let mut program = Program(Vec::new());
    program.load(code::LOAD_BYTE, offset(IPV6_DESTINATION));
    program.take_if(0xff);
    for at in [IPV6_DESTINATION, IPV6_SOURCE] {
        for addr in addresses {
            let IpAddr::V6(addr) = addr else { continue };
            let bytes = addr.octets();
            for (index, word) in bytes.as_chunks::<4>().0.iter().enumerate() {
                program.load(code::LOAD_WORD, offset(at + 4 * index));
                // If the word differs, jumps to the instruction after this address's RETURN. Each
                // further word has two instructions.
                let behind = u8::try_from(2 * (3 - index) + 1).unwrap_or(0);
                program.push(code::IF_EQUAL, 0, behind, u32::from_be_bytes(*word));
            }
            program.end(TAKE);
        }
    }
    program.end(0);
    program
}

/// Return value of the filter that accepts the whole frame.
const TAKE: u32 = u32::MAX;

/// Returns the load offset for data that the kernel provides in addition to the frame.
fn ancillary(what: i32) -> u32 {
    (libc::SKF_AD_OFF + what).cast_unsigned()
}

fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

struct Program(Vec<Instruction>);

impl Program {
    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) {
        self.0.push(Instruction { code, jt, jf, k });
    }

    fn load(&mut self, code: u16, at: u32) {
        self.push(code, 0, 0, at);
    }

    fn end(&mut self, bytes: u32) {
        self.push(code::RETURN, 0, 0, bytes);
    }

    fn take_if(&mut self, value: u32) {
        self.push(code::IF_EQUAL, 0, 1, value);
        self.end(TAKE);
    }

    fn drop_if(&mut self, value: u32) {
        self.push(code::IF_EQUAL, 0, 1, value);
        self.end(0);
    }

    /// Drops the frame unless A has this value.
    fn only_if(&mut self, value: u32) {
        self.push(code::IF_EQUAL, 1, 0, value);
        self.end(0);
    }

    /// Executes `block`, which ends with a RETURN, if A has this value.
    fn when(&mut self, value: u32, block: &Program) {
        self.push(code::IF_EQUAL, 1, 0, value);
        self.push(code::SKIP, 0, 0, offset(block.0.len()));
        self.0.extend(block.0.iter().copied());
    }
}
