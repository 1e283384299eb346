//! Converts the symbolic values of a case to numbers and bytes.

use super::connection::SentSegment;
use super::player::{Player, Stop};
use crate::script::{Addressing, Data, Msn, OutSegment, Stag, To};
use crate::wire::pattern::pattern;
use crate::wire::segment::opcode;

impl Player<'_> {
    /// Returns the seed for a pattern of a case. It depends on the seed of the run.
    pub(super) fn seed(&self, of_case: u64) -> u64 {
        of_case.wrapping_add(self.config.seed << 32)
    }

    pub(super) fn stag(&mut self, stag: Stag) -> Result<u32, Stop> {
        Ok(match stag {
            Stag::Is(stag) => stag,
            Stag::Of(name) => self.named(name)?.rkey,
            Stag::Near(name, bits) => self.named(name)?.rkey ^ bits,
            Stag::Sink(read) => self.seen_read(read)?.sink_stag,
        })
    }

    pub(super) fn to(&mut self, to: To) -> Result<u64, Stop> {
        Ok(match to {
            To::Is(to) => to,
            To::In(name, offset) => self.named(name)?.addr.wrapping_add_signed(offset),
            To::End(name, offset) => {
                let region = self.named(name)?;
                let end = region.addr.wrapping_add(region.len as u64);
                end.wrapping_add_signed(offset)
            }
            To::Sink(read, offset) => self.seen_read(read)?.sink_to.wrapping_add(offset),
        })
    }

    fn seen_read(&mut self, read: usize) -> Result<super::connection::SeenRead, Stop> {
        let connection = self.connection()?;
        connection.reads.get(read).copied().ok_or_else(|| {
            Stop::Infrastructure(format!("no Read Request {read} came in this case"))
        })
    }

    pub(super) fn bytes(&mut self, data: &Data) -> Result<Vec<u8>, Stop> {
        Ok(match data {
            Data::Bytes(bytes) => bytes.clone(),
            Data::Pattern(seed, at, len) => pattern(self.seed(*seed), *at, *len),
            Data::ReadRequest {
                sink_stag,
                sink_to,
                size,
                src_stag,
                src_to,
            } => {
                let mut bytes = self.stag(*sink_stag)?.to_be_bytes().to_vec();
                bytes.extend_from_slice(&self.to(*sink_to)?.to_be_bytes());
                bytes.extend_from_slice(&size.to_be_bytes());
                bytes.extend_from_slice(&self.stag(*src_stag)?.to_be_bytes());
                bytes.extend_from_slice(&self.to(*src_to)?.to_be_bytes());
                bytes
            }
            Data::Atomic {
                opcode,
                id,
                stag,
                to,
                data,
                mask,
                compare,
                compare_mask,
            } => {
                let mut bytes = opcode.to_be_bytes().to_vec();
                bytes.extend_from_slice(&id.to_be_bytes());
                bytes.extend_from_slice(&self.stag(*stag)?.to_be_bytes());
                bytes.extend_from_slice(&self.to(*to)?.to_be_bytes());
                for word in [data, mask, compare, compare_mask] {
                    bytes.extend_from_slice(&word.to_be_bytes());
                }
                bytes
            }
            Data::AtomicResponse {
                request,
                flip,
                value,
            } => {
                let id = self.connection()?.atomics.get(*request).copied();
                let id = id.ok_or_else(|| {
                    Stop::Infrastructure(format!("no Atomic Request {request} came"))
                })?;
                let mut bytes = (id ^ flip).to_be_bytes().to_vec();
                bytes.extend_from_slice(&value.to_be_bytes());
                bytes
            }
            Data::Word(value) => match self.big_endian {
                Some(true) => value.to_be_bytes().to_vec(),
                Some(false) => value.to_le_bytes().to_vec(),
                None => {
                    let what = "the case has not learned the target's byte order";
                    return Err(Stop::Infrastructure(what.into()));
                }
            },
        })
    }

    /// Builds the ULPDU of a segment and records its headers. A last segment with [`Msn::Next`]
    /// advances the MSN of its queue.
    pub(super) fn ulpdu(&mut self, segment: &OutSegment) -> Result<Vec<u8>, Stop> {
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let ddp = bit(segment.t, 0x80)
            | bit(segment.last, 0x40)
            | (segment.ddp_reserved & 15) << 2
            | segment.ddp_version & 3;
        let rdmap =
            segment.rdmap_version << 6 | (segment.rdmap_reserved & 3) << 4 | segment.opcode & 15;
        let mut ulpdu = vec![ddp, rdmap];
        match &segment.addressing {
            Addressing::Tagged { stag, to } => {
                ulpdu.extend_from_slice(&self.stag(*stag)?.to_be_bytes());
                ulpdu.extend_from_slice(&self.to(*to)?.to_be_bytes());
            }
            Addressing::Untagged {
                invalidate,
                qn,
                msn,
                mo,
            } => {
                ulpdu.extend_from_slice(&self.stag(*invalidate)?.to_be_bytes());
                ulpdu.extend_from_slice(&qn.to_be_bytes());
                let due = self.connection()?.msn(*qn);
                let msn = match msn {
                    Msn::Next => {
                        if segment.last {
                            self.connection()?.use_msn(*qn);
                        }
                        due
                    }
                    Msn::Off(off) => due.wrapping_add_signed(*off),
                    Msn::Is(msn) => *msn,
                };
                ulpdu.extend_from_slice(&msn.to_be_bytes());
                ulpdu.extend_from_slice(&mo.to_be_bytes());
            }
        }
        let header = ulpdu.clone();
        ulpdu.extend_from_slice(&self.bytes(&segment.data)?);
        ulpdu.resize(ulpdu.len() + segment.extra, 0);
        if let Some(len) = segment.cut {
            ulpdu.truncate(len);
        }
        let rdma = match segment.opcode {
            opcode::READ_REQUEST => ulpdu.get(18..46).unwrap_or_default().to_vec(),
            _ => Vec::new(),
        };
        self.connection()?.sent.push(SentSegment {
            length: u16::try_from(ulpdu.len()).unwrap_or(u16::MAX),
            header,
            rdma,
        });
        Ok(ulpdu)
    }
}
