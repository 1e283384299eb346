//! Commands that post work requests, singly or in batches.

use uwarp_verbs::{PostError, RecvWr, RemoteBuffer, SendWr, Sge};

use crate::json::{Fields, Line, shortened, unhex};
use crate::refusal::{Refusal, by};
use crate::session::Session;
use crate::srq::srq_number;

/// Maximum number of work requests in a command.
const MAX_BATCH: u64 = 4096;

/// Parameters of a batch that are common to receives and sends.
struct Batch {
    wr_id: u64,
    /// Scatter/gather elements of each request in the batch.
    lists: Vec<Vec<Sge>>,
}

impl Batch {
    fn parse(session: &Session, fields: &Fields) -> Result<Batch, Refusal> {
        let first = session.sges(fields.text("sge", "")?)?;
        let (count, stride) = (fields.number("count", 1)?, fields.number("stride", 0)?);
        if !(1..=MAX_BATCH).contains(&count) {
            return Err(Refusal::agent(format!(
                "count: 1 to {MAX_BATCH} was expected"
            )));
        }
        let list = |index: u64| {
            let further = index.wrapping_mul(stride);
            let elements = first.iter().map(|sge| Sge {
                addr: sge.addr.wrapping_add(further),
                ..*sge
            });
            elements.collect()
        };
        Ok(Batch {
            wr_id: fields.number("wr_id", 0)?,
            lists: (0..count).map(list).collect(),
        })
    }

    /// Returns the index, the `wr_id` and the elements of each request.
    fn requests(&self) -> impl Iterator<Item = (u64, u64, &[Sge])> {
        let lists = (0..).zip(&self.lists);
        lists.map(|(index, sges)| (index, self.wr_id.wrapping_add(index), &sges[..]))
    }

    /// Adds the number of posted requests to the answer, or returns why a request was refused.
    fn posted(
        &self,
        what: &'static str,
        result: Result<(), PostError>,
        answer: &mut Line,
    ) -> Result<(), Refusal> {
        match result {
            Ok(()) => {
                answer.number("posted", self.lists.len() as u64);
                Ok(())
            }
            Err(error) => Err(Refusal::Posted {
                posted: error.index as u64,
                why: Box::new(by(what)(error.kind)),
            }),
        }
    }
}

/// Operation of the send requests in a batch.
struct Operation<'a> {
    name: &'a str,
    raddr: u64,
    rkey: u32,
    inv: u32,
    imm: [u8; 8],
    compare: u64,
    swap: u64,
    compare_mask: u64,
    swap_mask: u64,
    mask: u64,
}

impl<'a> Operation<'a> {
    fn parse(fields: &'a Fields) -> Result<Operation<'a>, Refusal> {
        Ok(Operation {
            name: fields.text("op", "")?,
            raddr: fields.number("raddr", 0)?,
            rkey: fields.number_as("rkey", 0)?,
            inv: fields.number_as("inv", 0)?,
            imm: parse_imm(fields)?,
            compare: fields.number("compare", 0)?,
            swap: fields.number("swap", 0)?,
            compare_mask: fields.number("compare_mask", u64::MAX)?,
            swap_mask: fields.number("swap_mask", u64::MAX)?,
            mask: fields.number("mask", 0)?,
        })
    }

    /// Builds a request. `inline` data replaces the elements if it is given.
    fn request<'b>(
        &self,
        wr_id: u64,
        raddr: u64,
        sges: &'b [Sge],
        inline: Option<&'b [u8]>,
    ) -> Result<SendWr<'b>, Refusal> {
        let (rkey, imm) = (self.rkey, self.imm);
        let send = || match inline {
            Some(bytes) => SendWr::send_inline(wr_id, bytes),
            None => SendWr::send(wr_id, sges),
        };
        let write = || match inline {
            Some(bytes) => SendWr::write_inline(wr_id, bytes, RemoteBuffer::at(raddr, rkey)),
            None => SendWr::write(wr_id, sges, RemoteBuffer::at(raddr, rkey)),
        };
        Ok(match self.name {
            "send" => send(),
            "send_inv" => send().invalidate(self.inv),
            "send_imm" => send().with_immediate(imm),
            "write" => write(),
            "write_imm" => write().with_immediate(imm),
            "imm" => SendWr::immediate(wr_id, imm),
            "read" => SendWr::read(wr_id, sges, RemoteBuffer::at(raddr, rkey)),
            "read_inv" => {
                SendWr::read(wr_id, sges, RemoteBuffer::at(raddr, rkey)).invalidate_sink()
            }
            "cas" => SendWr::compare_swap(
                wr_id,
                sges,
                RemoteBuffer::at(raddr, rkey),
                self.compare,
                self.swap,
            )
            .compare_mask(self.compare_mask)
            .swap_mask(self.swap_mask),
            "fadd" => SendWr::fetch_add(wr_id, sges, RemoteBuffer::at(raddr, rkey), self.compare)
                .mask(self.mask),
            other => {
                let other = shortened(other);
                return Err(Refusal::agent(format!(
                    "op: send send_inv send_imm write write_imm imm read read_inv cas or fadd was expected, got '{other}'"
                )));
            }
        })
    }
}

/// Parses the 8 bytes of Immediate Data. They are given as 16 hexadecimal digits, or as a 32-bit
/// number, which fills the first four bytes.
fn parse_imm(fields: &Fields) -> Result<[u8; 8], Refusal> {
    if let Ok(text) = fields.text("imm", "")
        && text.len() == 16
        && let Some(bytes) = unhex(text)
        && let Ok(bytes) = bytes.try_into()
    {
        return Ok(bytes);
    }
    let number = fields.number_as::<u32>("imm", 0).map_err(|_| {
        Refusal::agent("imm: a number of 32 bits or 16 hexadecimal digits were expected")
    })?;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    Ok(bytes)
}

/// Parses which requests of a batch are signaled. The argument of the returned function is true for
/// the last request.
fn parse_signal(fields: &Fields) -> Result<impl Fn(bool) -> bool, Refusal> {
    let (last, others) = match fields.text("signal", "all")? {
        "all" => (true, true),
        "last" => (true, false),
        "none" => (false, false),
        _ => return Err(Refusal::agent("signal: all, last or none was expected")),
    };
    Ok(move |is_last| if is_last { last } else { others })
}

impl Session {
    pub(crate) fn recv(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let qp = self.qp(fields)?;
        let batch = Batch::parse(self, fields)?;
        let wrs: Vec<_> = batch
            .requests()
            .map(|(_, wr_id, sges)| RecvWr::new(wr_id, sges))
            .collect();
        batch.posted("ibv_post_recv", qp.post_recv_list(&wrs), answer)
    }

    pub(crate) fn srq_recv(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let srq = &self.srqs.get(srq_number(fields)?)?.srq;
        let batch = Batch::parse(self, fields)?;
        let result = batch.requests().try_for_each(|(index, wr_id, sges)| {
            let posted = srq.post_recv(&RecvWr::new(wr_id, sges));
            posted.map_err(|error| PostError {
                index: usize::try_from(index).unwrap_or_default(),
                ..error
            })
        });
        batch.posted("ibv_post_srq_recv", result, answer)
    }

    pub(crate) fn post(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let qp = self.qp(fields)?;
        let operation = Operation::parse(fields)?;
        let rstride = fields.number("rstride", 0)?;
        let (solicited, fence) = (fields.flag("se", false)?, fields.flag("fence", false)?);
        let is_signaled = parse_signal(fields)?;
        let batch = Batch::parse(self, fields)?;
        let inline: Vec<Vec<u8>> = match fields.flag("inline", false)? {
            true => batch
                .lists
                .iter()
                .map(|sges| self.bytes(sges))
                .collect::<Result<_, _>>()?,
            false => Vec::new(),
        };
        let last = batch.lists.len() as u64 - 1;
        let wrs: Vec<_> = batch
            .requests()
            .zip(
                inline
                    .iter()
                    .map(|bytes| Some(&bytes[..]))
                    .chain(std::iter::repeat(None)),
            )
            .map(|((index, wr_id, sges), inline)| {
                let raddr = operation.raddr.wrapping_add(index.wrapping_mul(rstride));
                let mut wr = operation.request(wr_id, raddr, sges, inline)?;
                if solicited {
                    wr = wr.solicited();
                }
                if fence {
                    wr = wr.fence();
                }
                if !is_signaled(index == last) {
                    wr = wr.unsignaled();
                }
                Ok(wr)
            })
            .collect::<Result<_, Refusal>>()?;
        batch.posted("ibv_post_send", qp.post_send_list(&wrs), answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_is_a_number_or_its_bytes() {
        let imm = |value: &str| {
            let line = format!("{{\"imm\":{value}}}");
            parse_imm(&Fields::parse(line.as_bytes()).unwrap()).ok()
        };
        assert_eq!(imm("16909060"), Some([1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!(imm("\"0x01020304\""), Some([1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!(imm("\"0102030405060708\""), Some([1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(imm("4294967296"), None);
        assert_eq!(imm("\"0x0102030405060708\""), None);
        assert_eq!(imm("\"010203040506070\""), None);
        assert_eq!(imm("true"), None);
    }
}
