//! Commands for registered memory, for memory windows, and for the content of memory.

use uwarp_verbs::{
    Access, Buffer, MemoryRegion, MemoryWindow, OutOfRange, SendWr, Sge, WindowKind, inc_rkey,
};

use crate::budget::Charge;
use crate::json::{Fields, Line, shortened};
use crate::pattern::pattern;
use crate::refusal::{Refusal, by};
use crate::session::Session;

const PAGE: usize = 4096;
/// Maximum size in bytes of all regions of one controller together.
const MAX_MEMORY: usize = 1 << 30;
/// Maximum number of elements of one work request.
const MAX_SGE: usize = 32;
/// Number of bytes that are filled or compared at a time.
const CHUNK: usize = 1 << 16;
/// Maximum number of bytes that `peek` returns.
const MAX_PEEK: usize = 4096;
/// Maximum number of bytes that `poke` accepts. They fit into a line of 65,535 bytes.
const MAX_POKE: usize = 16_384;
/// Maximum number of bytes of inline data. No device allows more.
const MAX_INLINE: usize = 4096;

/// A memory region of a controller.
pub(crate) struct Region {
    mr: MemoryRegion,
    /// Dropped after the region.
    charge: Charge,
}

/// A memory window of a controller.
pub(crate) struct Window {
    mw: MemoryWindow,
}

/// A range of bytes that lies within its region.
struct Part<'a> {
    mr: &'a MemoryRegion,
    off: usize,
    len: usize,
}

impl Session {
    pub(crate) fn reg(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let len = usize::try_from(fields.number("len", 0)?).unwrap_or(usize::MAX);
        let skew = usize::try_from(fields.number("skew", 0)?).unwrap_or(usize::MAX);
        let access = parse_access(fields.text("access", "lw")?)?;
        let used: usize = self.regions.iter().map(|(_, region)| region.mr.len()).sum();
        if len == 0 || skew >= PAGE {
            return Err(Refusal::agent(format!(
                "len: 1 and more, skew: below a page ({PAGE})"
            )));
        }
        if len > MAX_MEMORY - used.min(MAX_MEMORY) {
            let limit = "all regions of a controller have at most 1 GiB";
            return Err(Refusal::agent(format!("{limit}, and {used} are in use")));
        }
        let number = self.regions.free()?;
        let scoped = fields.has("conn");
        let pd = match scoped && !fields.has("pd") {
            true => self.qp(fields)?.pd().clone(),
            false => self.pd(fields.number("pd", 0)?)?,
        };
        let mut builder = pd.region();
        if scoped {
            builder = builder.for_qp(self.qp(fields)?);
        }
        if fields.flag("zero_based", false)? {
            builder = builder.zero_based();
        } else if self.common.device.settings().seed.is_some() {
            builder = builder.iova(self.place(skew, len));
        }
        let charge = self.common.memory.charge((len + skew) as u64)?;
        let buffer = Buffer::zeroed(len + skew)
            .map_err(|error| Refusal::library("mmap", rustix::io::Errno::NOMEM, &error))?;
        let mr = builder
            .access(access)
            .part(buffer, skew..skew + len)
            .map_err(by("ibv_reg_mr"))?;
        answer.number("mr", number);
        answer.number("addr", mr.addr());
        answer.number("lkey", mr.lkey());
        answer.number("rkey", mr.rkey());
        self.regions.put(number, Region { mr, charge });
        Ok(())
    }

    /// Chooses the address of a new region if the device has a seed, because addresses must then be
    /// the same in every run. Each region has pages of its own.
    fn place(&mut self, skew: usize, len: usize) -> u64 {
        let at = self.next_page;
        self.next_page += (skew + len).next_multiple_of(PAGE) as u64;
        at + skew as u64
    }

    pub(crate) fn dereg(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let number = fields.number("mr", 0)?;
        let Region { mr, charge } = self.regions.take(number)?;
        mr.deregister().map_err(|(mr, error)| {
            self.regions.put(number, Region { mr, charge });
            by("ibv_dereg_mr")(error)
        })
    }

    pub(crate) fn fill(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let part = self.part(fields)?;
        let mut bytes = content(fields)?;
        part.pieces(|off, len| {
            let piece: Vec<u8> = bytes.by_ref().take(len).collect();
            part.mr.write_at(off, &piece).map(|()| true)
        })
    }

    pub(crate) fn check(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let part = self.part(fields)?;
        let mut wanted = content(fields)?;
        let (mut buffer, mut differs) = (vec![0; CHUNK], None);
        part.pieces(|off, len| {
            let piece = &mut buffer[..len];
            part.mr.read_at(off, piece)?;
            let pairs = piece.iter().zip(wanted.by_ref().take(len)).enumerate();
            differs = pairs
                .map(|(at, (got, want))| (off - part.off + at, want, *got))
                .find(|(_, want, got)| want != got);
            Ok(differs.is_none())
        })?;
        answer.flag("match", differs.is_none());
        if let Some((off, want, got)) = differs {
            answer.number("off", off as u64);
            answer.number("want", want);
            answer.number("got", got);
        }
        Ok(())
    }

    pub(crate) fn hash(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let part = self.part(fields)?;
        let (mut buffer, mut hash) = (vec![0; CHUNK], 0xcbf2_9ce4_8422_2325_u64);
        part.pieces(|off, len| {
            part.mr.read_at(off, &mut buffer[..len])?;
            hash = buffer[..len].iter().fold(hash, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
            });
            Ok(true)
        })?;
        answer.number("fnv1a", hash);
        Ok(())
    }

    pub(crate) fn peek(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let part = self.part(fields)?;
        if part.len > MAX_PEEK {
            return Err(Refusal::agent(format!("len: at most {MAX_PEEK}")));
        }
        let mut bytes = vec![0; part.len];
        part.mr.read_at(part.off, &mut bytes).map_err(outside)?;
        answer.hex("data", &bytes);
        Ok(())
    }

    pub(crate) fn poke(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let data = fields.hex("data", MAX_POKE)?;
        let part = self.part(fields)?;
        part.mr.write_at(part.off, &data).map_err(outside)
    }

    pub(crate) fn bind(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let access = parse_access(fields.text("access", "")?)?;
        let wr_id = fields.number("wr_id", 0)?;
        let qp = self.qp(fields)?;
        let part = self.part(fields)?;
        let mut bind = part.mr.window(part.off as u64, part.len as u64, access);
        let mut addr = bind.addr;
        if fields.flag("zero_based", false)? {
            (bind, addr) = (bind.zero_based(), 0);
        }
        let (number, fresh) = if fields.has("mw") {
            (fields.number("mw", 0)?, None)
        } else {
            let made = qp.pd().alloc_window(WindowKind::Type2B);
            (
                self.windows.free()?,
                Some(made.map_err(by("ibv_alloc_mw"))?),
            )
        };
        let window = match &fresh {
            Some(window) => window,
            None => &self.windows.get(number)?.mw,
        };
        let rkey = inc_rkey(window.rkey());
        qp.post_send(&SendWr::bind_window(wr_id, rkey, &bind))
            .map_err(|error| by("ibv_post_send")(error.kind))?;
        if let Some(mw) = fresh {
            self.windows.put(number, Window { mw });
        }
        answer.number("mw", number);
        answer.number("rkey", rkey);
        answer.number("addr", addr);
        Ok(())
    }

    pub(crate) fn unbind(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        // Dropping a window unbinds it.
        self.windows.take(fields.number("mw", 0)?).map(drop)
    }

    pub(crate) fn inval(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let (wr_id, rkey) = (fields.number("wr_id", 0)?, fields.number_as("rkey", 0)?);
        let posted = self
            .qp(fields)?
            .post_send(&SendWr::local_invalidate(wr_id, rkey));
        posted.map_err(|error| by("ibv_post_send")(error.kind))
    }

    /// Returns the range that a command names. The default is the whole region.
    fn part(&self, fields: &Fields) -> Result<Part<'_>, Refusal> {
        let mr = &self.regions.get(fields.number("mr", 0)?)?.mr;
        let size = mr.len() as u64;
        let off = fields.number("off", 0)?;
        let rest = size.checked_sub(off);
        let len = fields.number("len", rest.unwrap_or_default())?;
        if rest.is_none_or(|rest| len > rest) {
            return Err(Refusal::agent(format!(
                "off, off + len: the region has {size} bytes"
            )));
        }
        // Both values are at most the length of the region, which is a `usize`.
        let (off, len) = (usize::try_from(off), usize::try_from(len));
        Ok(Part {
            mr,
            off: off.unwrap_or_default(),
            len: len.unwrap_or_default(),
        })
    }

    /// Parses a list "REGION:OFFSET+LENGTH,...". It does not check that a range is inside its
    /// region, because the device under test has to do that.
    pub(crate) fn sges(&self, text: &str) -> Result<Vec<Sge>, Refusal> {
        let elements = text.split(',').filter(|_| !text.is_empty());
        let sges: Vec<Sge> = elements
            .map(|element| self.sge(element))
            .collect::<Result<_, _>>()?;
        if sges.len() > MAX_SGE {
            return Err(Refusal::agent(format!("sge: at most {MAX_SGE} elements")));
        }
        Ok(sges)
    }

    fn sge(&self, element: &str) -> Result<Sge, Refusal> {
        let parts = element.split_once(':').and_then(|(region, rest)| {
            let (off, len) = rest.split_once('+')?;
            let number = |text: &str| {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u64>().ok().filter(|_| digits)
            };
            let len = u32::try_from(number(len)?).ok()?;
            Some((number(region)?, number(off)?, len))
        });
        let Some((region, off, len)) = parts else {
            let what = "sge: 'REGION:OFFSET+LENGTH,...' was expected, each below 4 GiB";
            let got = shortened(element);
            return Err(Refusal::agent(format!("{what}; got '{got}'")));
        };
        Ok(self.regions.get(region)?.mr.sge(off, len))
    }

    /// Reads the bytes of these elements from memory, because for inline data the agent has to
    /// provide the bytes. Refuses more than `MAX_INLINE` bytes.
    pub(crate) fn bytes(&self, sges: &[Sge]) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        for sge in sges {
            let begin = bytes.len();
            let len = sge.len as usize;
            if begin + len > MAX_INLINE {
                let why = format!("sge: at most {MAX_INLINE} bytes of inline data");
                return Err(Refusal::agent(why));
            }
            let mut regions = self.regions.iter().map(|(_, region)| &region.mr);
            if let Some(mr) = regions.find(|mr| mr.lkey() == sge.lkey) {
                bytes.resize(begin + len, 0);
                let off = usize::try_from(sge.addr.wrapping_sub(mr.addr())).unwrap_or(usize::MAX);
                mr.read_at(off, &mut bytes[begin..]).map_err(outside)?;
            }
        }
        Ok(bytes)
    }
}

impl Part<'_> {
    /// Calls `each` for each piece of the range, with its offset in the region and its length.
    /// Stops when `each` returns false.
    fn pieces(
        &self,
        mut each: impl FnMut(usize, usize) -> Result<bool, OutOfRange>,
    ) -> Result<(), Refusal> {
        let mut done = 0;
        while done < self.len {
            let len = CHUNK.min(self.len - done);
            if !each(self.off + done, len).map_err(outside)? {
                break;
            }
            done += len;
        }
        Ok(())
    }
}

/// Returns the bytes that `fill` writes and `check` expects.
fn content(fields: &Fields) -> Result<impl Iterator<Item = u8>, Refusal> {
    let (seed, at) = (fields.number("seed", 0)?, fields.number("at", 0)?);
    let mask = if fields.flag("zero", false)? { 0 } else { 0xFF };
    Ok(pattern(seed, at).map(move |byte| byte & mask))
}

fn outside(error: OutOfRange) -> Refusal {
    Refusal::agent(error.to_string())
}

/// Parses a list of access rights by their short names.
pub(crate) fn parse_access(text: &str) -> Result<Access, Refusal> {
    let mut access = Access::NONE;
    for name in text.split(',').filter(|_| !text.is_empty()) {
        access |= match name {
            "lw" => Access::LOCAL_WRITE,
            "rw" => Access::REMOTE_WRITE,
            "rr" => Access::REMOTE_READ,
            "ra" => Access::REMOTE_ATOMIC,
            "mw" => Access::WINDOW_BIND,
            other => {
                let other = shortened(other);
                let why = format!("access: '{other}' is none of lw rw rr ra mw");
                return Err(Refusal::agent(why));
            }
        };
    }
    Ok(access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_have_two_letters() {
        let all = parse_access("lw,rw,rr,ra,mw").unwrap();
        assert_eq!(all, Access::ALL);
        assert_eq!(parse_access("").unwrap(), Access::NONE);
        for wrong in ["lw,", "x", "lw rw", ","] {
            assert!(parse_access(wrong).is_err(), "{wrong}");
        }
    }
}
