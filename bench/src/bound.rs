//! Upper bounds of the bandwidth: raw TCP with only the work that iWARP requires, which is the CRC
//! and copies.
//!
//! The bounds are not targets. They show which targets this machine permits. uwarp may be faster
//! than a single row, because it gathers many messages in one write. So the bound is the best of
//! all rows.

use crate::figures::{Base, Figure, Of, RAW_1M, RAW_64K, Section, figure};
use crate::raw::{Kind, Work};
use crate::targets::{Bound, Measure, Target, target};

/// A raw TCP measurement with work on its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    size: usize,
    spins: bool,
}

const fn row(name: &'static str, size: usize, spins: bool) -> Row {
    Row { name, size, spins }
}

/// Creates the rows of one kind: messages of three sizes, spinning and blocking.
macro_rules! rows {
    ($what:literal) => {
        [
            row(concat!($what, ", 64 KiB, both spin"), 64 << 10, true),
            row(concat!($what, ", 256 KiB, both spin"), 256 << 10, true),
            row(concat!($what, ", 1 MiB, both spin"), 1 << 20, true),
            row(concat!($what, ", 64 KiB"), 64 << 10, false),
            row(concat!($what, ", 256 KiB"), 256 << 10, false),
            row(concat!($what, ", 1 MiB"), 1 << 20, false),
        ]
    };
}

const PLACED: [Row; 6] = rows!("raw TCP with CRC and placement");
const STAGED: [Row; 6] = rows!("raw TCP with CRC, staging and placement");
const PLACED_ALONE: [Row; 6] = rows!("raw TCP with placement");
const STAGED_ALONE: [Row; 6] = rows!("raw TCP with staging and placement");

/// Returns the rows for this work. Work without the CRC has only spinning rows, because no blocking
/// figure is compared with it.
pub(crate) fn rows(work: Work) -> &'static [Row] {
    match (work.staged, work.crc) {
        (false, true) => &PLACED,
        (true, true) => &STAGED,
        (false, false) => &PLACED_ALONE[..3],
        (true, false) => &STAGED_ALONE[..3],
    }
}

/// Returns the name of the best row in tables.
pub(crate) fn best_of(work: Work) -> &'static str {
    match (work.staged, work.crc) {
        (false, true) => "the best raw TCP with CRC and placement",
        (true, true) => "the best raw TCP with CRC, staging and placement",
        (false, false) => "the best raw TCP with placement",
        (true, false) => "the best raw TCP with staging and placement",
    }
}

/// Returns the figures of all rows. They are divided by the same raw figures as uwarp's.
pub(crate) fn figures() -> Vec<Figure> {
    let of = |work| {
        rows(work).iter().map(move |row| {
            let base = match row.size {
                0x10_0000.. => Base::BestWrites,
                _ => Base::Of(RAW_64K),
            };
            let of = Of::Working(Kind::working(work, row.spins), row.size);
            figure(Section::Bandwidth, row.name, Some(base), of)
        })
    };
    Work::ALL.into_iter().flat_map(of).collect()
}

/// Describes how to repeat a measurement with work.
pub(crate) fn how(kind: Kind, size: usize) -> String {
    let Kind::Working { work, spins } = kind else {
        return String::new();
    };
    let waits = match spins {
        true => "writes and reads that spin",
        false => "blocking writes",
    };
    let before = match (work.staged, work.crc) {
        (true, true) => "; before each write a copy into staging with the CRC",
        (true, false) => "; before each write a copy into staging",
        (false, true) => "; before each write the CRC",
        (false, false) => "",
    };
    let crc = if work.crc { "the CRC, and then " } else { "" };
    format!("{waits}, of {size} B{before}; behind each read {crc}a copy into place")
}

/// Returns the targets that compare uwarp with the best row, and those that compare the rows with
/// raw TCP.
pub(crate) fn targets() -> Vec<Target> {
    let mut all = Vec::new();
    for (section, crc) in [(Section::Bandwidth, true), (Section::CrcOff, false)] {
        for (name, staged) in [
            ("64 KiB Write", false),
            ("64 KiB Send", false),
            ("64 KiB Read", true),
            ("1 MiB Write", false),
            ("1 MiB Send", false),
            ("1 MiB Read", true),
        ] {
            let measure = Measure::Raw(Base::BestWith(Work::of(staged, crc)));
            all.push(target(section, name, measure, Bound::Reported));
        }
    }
    let mut reported = |name, measure| {
        all.push(target(Section::Bandwidth, name, measure, Bound::Reported));
    };
    for work in Work::ALL {
        for row in rows(work) {
            match (row.spins, row.size) {
                (false, 0x1_0000) => reported(row.name, Measure::Cpu(RAW_64K)),
                (false, 0x10_0000) => reported(row.name, Measure::Cpu(RAW_1M)),
                (false, _) => {}
                (true, 0x1_0000) => reported(row.name, Measure::Raw(Base::Of(RAW_64K))),
                // This row is also compared with the best writes, because a program may write 1 MiB
                // in parts.
                (true, 0x4_0000) => {
                    reported(row.name, Measure::Raw(Base::Of(RAW_64K)));
                    reported(row.name, Measure::Raw(Base::BestWrites));
                }
                (true, _) => reported(row.name, Measure::Raw(Base::BestWrites)),
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_of_its_size_and_waits_as_its_name_says() {
        for work in Work::ALL {
            for row in rows(work) {
                assert_eq!(row.name.ends_with("both spin"), row.spins);
                assert_eq!(row.name.contains("staging"), work.staged);
                assert_eq!(row.name.contains("CRC"), work.crc);
                let size = match row.size >> 10 {
                    1024 => "1 MiB".to_owned(),
                    kib => format!("{kib} KiB"),
                };
                assert!(row.name.contains(&format!(", {size}")), "{}", row.name);
            }
        }
    }

    #[test]
    fn a_bound_is_measured_by_what_its_name_says() {
        for figure in figures() {
            let how = figure.command();
            assert_eq!(figure.name.contains("spin"), how.contains("spin"), "{how}");
            assert_eq!(figure.name.contains("staging"), how.contains("staging"));
            assert_eq!(figure.name.contains("CRC"), how.contains("CRC"));
            assert!(figure.is_raw());
        }
    }

    #[test]
    fn nothing_that_bounds_is_a_target() {
        assert!(
            targets()
                .iter()
                .all(|target| target.bound == Bound::Reported)
        );
    }
}
