//! Dynamic symbols of an ELF file (64 bits, little endian) with their versions: exports of a
//! library, or imports of a program.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

/// An entry of the table of dynamic symbols.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Symbol {
    /// Name with version: `name@@VERSION` for the default version, which programs linked today get,
    /// and `name@VERSION` otherwise.
    pub(crate) name: String,
    /// True if the symbol is defined in this file, and false if it is imported.
    pub(crate) defined: bool,
    /// True if the symbol is data, and not a function.
    pub(crate) object: bool,
}

impl Symbol {
    /// Returns true if the version is one of libibverbs or librdmacm.
    pub(crate) fn of_rdma_core(&self) -> bool {
        self.name.contains("@IBVERBS_") || self.name.contains("@RDMACM_")
    }
}

/// First bytes of an ELF file of 64 bits, little endian.
const MAGIC: &[u8; 6] = b"\x7FELF\x02\x01";
const DYNSYM: u32 = 11;
const VERSYM: u32 = 0x6FFF_FFFF;
const VERDEF: u32 = 0x6FFF_FFFD;
const VERNEED: u32 = 0x6FFF_FFFE;
/// Section index of an absolute symbol (`SHN_ABS`).
const ABSOLUTE: usize = 0xFFF1;

struct File(Vec<u8>);

impl File {
    fn number(&self, at: usize, bytes: usize) -> Option<usize> {
        let field = self.0.get(at..at.checked_add(bytes)?)?;
        let value = field
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    }

    fn text(&self, at: usize) -> Option<String> {
        let from = self.0.get(at..)?;
        let len = from.iter().position(|byte| *byte == 0)?;
        String::from_utf8(from[..len].to_vec()).ok()
    }

    /// Finds the first section of this type. Returns its offset, its length, and the offset of its
    /// string table.
    fn section(&self, kind: u32) -> Option<(usize, usize, usize)> {
        let (table, size) = (self.number(0x28, 8)?, self.number(0x3A, 2)?);
        let header = |index: usize| table + index * size;
        let number = self.number(0x3C, 2)?;
        let found = (0..number)
            .map(header)
            .find(|at| self.number(at + 4, 4) == Some(kind as usize))?;
        let strings = header(self.number(found + 0x28, 4)?);
        Some((
            self.number(found + 0x18, 8)?,
            self.number(found + 0x20, 8)?,
            self.number(strings + 0x18, 8)?,
        ))
    }

    /// Returns the names of the versions that the file defines or imports. The keys are the numbers
    /// of the versions.
    fn versions(&self) -> Option<BTreeMap<usize, String>> {
        let mut names = BTreeMap::new();
        if let Some((mut at, _, strings)) = self.section(VERDEF) {
            loop {
                let name = self.number(at + self.number(at + 12, 4)?, 4)?;
                names.insert(self.number(at + 4, 2)?, self.text(strings + name)?);
                match self.number(at + 16, 4)? {
                    0 => break,
                    next => at += next,
                }
            }
        }
        if let Some((mut at, _, strings)) = self.section(VERNEED) {
            loop {
                let mut one = at + self.number(at + 8, 4)?;
                loop {
                    let name = self.number(one + 8, 4)?;
                    names.insert(self.number(one + 6, 2)?, self.text(strings + name)?);
                    match self.number(one + 12, 4)? {
                        0 => break,
                        next => one += next,
                    }
                }
                match self.number(at + 12, 4)? {
                    0 => break,
                    next => at += next,
                }
            }
        }
        Some(names)
    }

    fn symbols(&self) -> Option<Vec<Symbol>> {
        let Some((numbers, ..)) = self.section(VERSYM) else {
            // A module may import nothing that has a version.
            return Some(Vec::new());
        };
        let versions = self.versions()?;
        let (table, len, strings) = self.section(DYNSYM)?;
        let mut all = Vec::new();
        for index in 0..len / 24 {
            let at = table + index * 24;
            let name = self.text(strings + self.number(at, 4)?)?;
            let defined = self.number(at + 6, 2)? != 0;
            let version = self.number(numbers + index * 2, 2)?;
            let Some(text) = versions.get(&(version & 0x7FFF)) else {
                continue;
            };
            let hidden = version & 0x8000 != 0 || !defined;
            let kind = self.number(at + 4, 1)? & 15;
            // The version nodes themselves are absolute symbols.
            if self.number(at + 6, 2)? == ABSOLUTE {
                continue;
            }
            all.push(Symbol {
                name: format!("{name}{}{text}", if hidden { "@" } else { "@@" }),
                defined,
                object: kind == 1,
            });
        }
        Some(all)
    }
}

/// Returns true if the file is an ELF file of this kind, without reading the rest of it.
///
/// # Errors
/// Returns a message if the file cannot be read.
pub(crate) fn is_elf(path: &Path) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = fs::File::open(path).map_err(failed)?;
    let mut begin = Vec::new();
    let limit = MAGIC.len() as u64;
    file.take(limit).read_to_end(&mut begin).map_err(failed)?;
    Ok(begin == MAGIC)
}

/// Returns the dynamic symbols that have a version.
///
/// # Errors
/// Returns a message if the file cannot be read, or is not an ELF file of this kind.
pub(crate) fn symbols(path: &Path) -> Result<Vec<Symbol>, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    if !bytes.starts_with(MAGIC) {
        return Err(format!("{} is not an ELF file of 64 bits", path.display()));
    }
    let symbols = File(bytes).symbols();
    symbols.ok_or_else(|| format!("the dynamic symbols of {} cannot be parsed", path.display()))
}
