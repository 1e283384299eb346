//! How far bandwidth could go: raw TCP that does what iWARP with the CRC cannot do without, and nothing else.
//!
//! No target is of it: it says which targets this machine allows. Ours may be ahead of a single row, as it gathers many messages in one
//! write: what bounds it is the best of all rows.

use crate::figures::{Base, Figure, Of, RAW_1M, RAW_64K, Section, figure};
use crate::raw::{Kind, Work};
use crate::targets::{Bound, Measure, Target, target};

/// Raw TCP with work on its octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    size: usize,
    spins: bool,
}

const fn row(name: &'static str, size: usize, spins: bool) -> Row {
    Row { name, size, spins }
}

const PLACED: [Row; 6] = [
    row("raw TCP with CRC and placement, 64 KiB", 64 << 10, false),
    row("raw TCP with CRC and placement, 256 KiB", 256 << 10, false),
    row("raw TCP with CRC and placement, 1 MiB", 1 << 20, false),
    row(
        "raw TCP with CRC and placement, 64 KiB, both spin",
        64 << 10,
        true,
    ),
    row(
        "raw TCP with CRC and placement, 256 KiB, both spin",
        256 << 10,
        true,
    ),
    row(
        "raw TCP with CRC and placement, 1 MiB, both spin",
        1 << 20,
        true,
    ),
];

const STAGED: [Row; 6] = [
    row(
        "raw TCP with CRC, staging and placement, 64 KiB",
        64 << 10,
        false,
    ),
    row(
        "raw TCP with CRC, staging and placement, 256 KiB",
        256 << 10,
        false,
    ),
    row(
        "raw TCP with CRC, staging and placement, 1 MiB",
        1 << 20,
        false,
    ),
    row(
        "raw TCP with CRC, staging and placement, 64 KiB, both spin",
        64 << 10,
        true,
    ),
    row(
        "raw TCP with CRC, staging and placement, 256 KiB, both spin",
        256 << 10,
        true,
    ),
    row(
        "raw TCP with CRC, staging and placement, 1 MiB, both spin",
        1 << 20,
        true,
    ),
];

const ALL: [Work; 2] = [Work::Placed, Work::Staged];

/// By messages of three sizes, blocking and spinning.
pub(crate) fn rows(work: Work) -> [Row; 6] {
    match work {
        Work::Placed => PLACED,
        Work::Staged => STAGED,
    }
}

/// What they are divided by is what a target of ours is divided by.
pub(crate) fn figures() -> Vec<Figure> {
    let of = |work| {
        rows(work).map(|row| {
            let base = match row.size {
                0x10_0000.. => Base::BestWrites,
                _ => Base::Of(RAW_64K),
            };
            let of = Of::Working(Kind::of_work(work, row.spins), row.size);
            figure(Section::Bandwidth, row.name, Some(base), of)
        })
    };
    ALL.into_iter().flat_map(of).collect()
}

/// How somebody measures it again.
pub(crate) fn how(kind: Kind, size: usize) -> String {
    let waits = match kind {
        Kind::SpinningPlaced | Kind::SpinningStaged => "writes and reads that spin",
        _ => "blocking writes",
    };
    let staged = match kind {
        Kind::Staged | Kind::SpinningStaged => ", a copy into staging with the CRC",
        _ => ", the CRC",
    };
    format!("{waits}, of {size} B{staged}; behind each read the CRC, and then a copy into place")
}

/// Ours beside the best of them; and they beside raw TCP, as the targets are.
pub(crate) fn targets() -> Vec<Target> {
    let reported = |name, measure| target(Section::Bandwidth, name, measure, Bound::Reported);
    let mut all = Vec::new();
    for (name, work) in [
        ("64 KiB Write", Work::Placed),
        ("64 KiB Send", Work::Placed),
        ("64 KiB Read", Work::Staged),
        ("1 MiB Write", Work::Placed),
        ("1 MiB Send", Work::Placed),
        ("1 MiB Read", Work::Staged),
    ] {
        all.push(reported(name, Measure::Raw(Base::BestWith(work))));
    }
    for work in ALL {
        let [blocking, _, large_blocking, spinning, gathered, large] = rows(work);
        for row in [spinning, gathered] {
            all.push(reported(row.name, Measure::Raw(Base::Of(RAW_64K))));
        }
        // A message of 1 MiB may be written in parts.
        for row in [gathered, large] {
            all.push(reported(row.name, Measure::Raw(Base::BestWrites)));
        }
        all.push(reported(blocking.name, Measure::Cpu(RAW_64K)));
        all.push(reported(large_blocking.name, Measure::Cpu(RAW_1M)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_of_its_size_and_waits_as_its_name_says() {
        for work in ALL {
            for row in rows(work) {
                assert_eq!(row.name.ends_with("both spin"), row.spins);
                assert_eq!(row.name.contains("staging"), work == Work::Staged);
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
