//! Targets for figures, and the check whether they are met.

use crate::figures::{
    Base, MEMORY_ALONE, MEMORY_ALONE_PINNED, RAW_64K, RAW_BLOCK, RAW_BLOCK_BOTH_WAYS, RAW_RATE_8,
    RAW_RATE_64, RAW_SLEEPING, RAW_SPIN, RAW_SPIN_BOTH_WAYS, RAW_SPIN_FREE, RAW_SPINNING,
    READ_BOTH_SLEEP, Section, WRITE_BOTH_SLEEP,
};
use crate::stats::Spread;

/// A target for a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    /// Table and name of the figure.
    pub(crate) section: Section,
    pub(crate) name: &'static str,
    pub(crate) measure: Measure,
    pub(crate) bound: Bound,
}

/// Value that is compared with the bound.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// Ratio to a raw figure of the same round.
    Raw(Base),
    /// Ratio to another figure of uwarp.
    Ours(Section, &'static str),
    /// Ratio of processor time per 10^9 bytes to that of a raw figure.
    Cpu(&'static str),
    /// The value itself, in the unit of its table.
    Value,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// No bound; the value is only reported.
    Reported,
}

impl Bound {
    /// Returns true if the median meets the bound.
    pub(crate) fn is_met(self, spread: &Spread) -> bool {
        match self {
            Bound::AtLeast(bound) => spread.median >= bound,
            Bound::AtMost(bound) => spread.median <= bound,
            Bound::Reported => true,
        }
    }

    pub(crate) fn told(self) -> String {
        match self {
            Bound::AtLeast(bound) => format!("at least {}", short(bound)),
            Bound::AtMost(bound) => format!("at most {}", short(bound)),
            Bound::Reported => "reported".to_owned(),
        }
    }
}

/// Formats at most two decimals, without trailing zeros.
fn short(bound: f64) -> String {
    let text = format!("{bound:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns all targets in the order of the report.
pub(crate) fn all() -> Vec<Target> {
    let mut all = Vec::new();
    bandwidth(&mut all);
    all.extend(crate::bound::targets());
    latency(&mut all);
    rate(&mut all);
    sleeping(&mut all);
    cpu(&mut all);
    all
}

pub(crate) fn target(
    section: Section,
    name: &'static str,
    measure: Measure,
    bound: Bound,
) -> Target {
    Target {
        section,
        name,
        measure,
        bound,
    }
}

fn bandwidth(all: &mut Vec<Target>) {
    let writes = Measure::Raw(Base::Of(RAW_64K));
    let best = Measure::Raw(Base::BestWrites);
    let sizes: [([&'static str; 3], Measure, f64, Option<f64>); 3] = [
        (
            ["64 KiB Write", "64 KiB Read", "64 KiB Send"],
            writes,
            1.2,
            Some(1.4),
        ),
        (
            ["1 MiB Write", "1 MiB Read", "1 MiB Send"],
            best,
            0.9,
            Some(0.97),
        ),
        (
            ["4 KiB Write", "4 KiB Read", "4 KiB Send"],
            writes,
            0.8,
            None,
        ),
    ];
    for (names, measure, on, off) in sizes {
        for name in names {
            all.push(target(
                Section::Bandwidth,
                name,
                measure,
                Bound::AtLeast(on),
            ));
        }
        // The same figures are also compared with raw TCP that polls.
        if matches!(measure, Measure::Raw(Base::Of(RAW_64K))) {
            let (spinning, _) = RAW_SPINNING[0];
            let measure = Measure::Raw(Base::Of(spinning));
            for name in names {
                all.push(target(Section::Bandwidth, name, measure, Bound::Reported));
            }
        }
        for name in names {
            if let Some(off) = off {
                all.push(target(Section::CrcOff, name, measure, Bound::AtLeast(off)));
            }
        }
    }
}

fn latency(all: &mut Vec<Target>) {
    let mut most = |name, base, bound| {
        let measure = Measure::Raw(Base::Of(base));
        all.push(target(Section::Latency, name, measure, bound));
    };
    most("8 B Write, both poll", RAW_SPIN, Bound::AtMost(1.1));
    most("8 B Send, both poll", RAW_SPIN, Bound::AtMost(1.1));
    most(
        "8 B Read, both poll (both ways)",
        RAW_SPIN_BOTH_WAYS,
        Bound::AtMost(1.1),
    );
    most(
        "8 B Send, both in the wait call",
        RAW_BLOCK,
        Bound::AtMost(1.15),
    );
    for name in [READ_BOTH_SLEEP, WRITE_BOTH_SLEEP] {
        most(name, RAW_BLOCK_BOTH_WAYS, Bound::AtMost(1.15));
    }
    most(
        "8 B Send, both in poll(2) on the channel",
        RAW_BLOCK,
        Bound::Reported,
    );
    most(MEMORY_ALONE, RAW_SPIN_FREE, Bound::AtMost(2.3));
    most(MEMORY_ALONE_PINNED, RAW_SPIN, Bound::Reported);
}

fn rate(all: &mut Vec<Target>) {
    for name in ["8 B Write, lists of 64", "64 B Write, lists of 64"] {
        all.push(target(
            Section::Rate,
            name,
            Measure::Value,
            Bound::AtLeast(10.0),
        ));
    }
    for (name, base) in [
        ("8 B Write, one a post, 64 outstanding", RAW_RATE_8),
        ("64 B Write, one a post, 64 outstanding", RAW_RATE_64),
    ] {
        let measure = Measure::Raw(Base::Of(base));
        all.push(target(Section::Rate, name, measure, Bound::AtLeast(10.0)));
    }
}

fn sleeping(all: &mut Vec<Target>) {
    for (name, polling) in [
        ("64 KiB Write, the target alone sleeps", "64 KiB Write"),
        ("64 KiB Read, the target alone sleeps", "64 KiB Read"),
        ("1 MiB Write, the target alone sleeps", "1 MiB Write"),
        ("1 MiB Read, the target alone sleeps", "1 MiB Read"),
    ] {
        let measure = Measure::Ours(Section::Bandwidth, polling);
        all.push(target(
            Section::Sleeping,
            name,
            measure,
            Bound::AtLeast(0.9),
        ));
    }
    for name in [
        "8 B Read, the target sleeps (both ways)",
        "8 B Write until placed, the target sleeps (both ways)",
    ] {
        let measure = Measure::Raw(Base::Of(RAW_SLEEPING));
        all.push(target(Section::Latency, name, measure, Bound::AtMost(1.2)));
    }
}

/// Adds the targets for processor time. In these figures raw TCP blocks, so uwarp blocks as well.
fn cpu(all: &mut Vec<Target>) {
    for (name, raw) in [
        ("64 KiB Write", RAW_64K),
        ("64 KiB Read", RAW_64K),
        ("64 KiB Send", RAW_64K),
        ("1 MiB Write", crate::figures::RAW_1M),
        ("1 MiB Read", crate::figures::RAW_1M),
        ("1 MiB Send", crate::figures::RAW_1M),
    ] {
        all.push(target(
            Section::Sleeping,
            name,
            Measure::Cpu(raw),
            Bound::AtMost(1.3),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_of_something_that_is_measured() {
        let figures = crate::figures::all();
        let known = |section, name| {
            figures
                .iter()
                .any(|figure| figure.section == section && figure.name == name)
        };
        let raw = |name| {
            figures
                .iter()
                .any(|figure| figure.is_raw() && figure.name == name)
        };
        for target in all() {
            assert!(known(target.section, target.name), "{target:?}");
            match target.measure {
                Measure::Raw(base) => {
                    for name in base.names() {
                        assert!(raw(name), "{target:?}");
                    }
                }
                Measure::Cpu(name) => assert!(raw(name), "{target:?}"),
                Measure::Ours(section, name) => assert!(known(section, name), "{target:?}"),
                Measure::Value => {}
            }
        }
    }

    #[test]
    fn a_bound_is_told_by_the_digits_that_it_needs() {
        let told = [1.2, 0.97, 10.0, 1.0 / 3.0].map(|bound| Bound::AtLeast(bound).told());
        let due = [
            "at least 1.2",
            "at least 0.97",
            "at least 10",
            "at least 0.33",
        ];
        assert_eq!(told, due);
    }

    #[test]
    fn a_bound_is_kept_by_the_median() {
        let spread = Spread {
            least: 0.8,
            median: 1.2,
            most: 1.3,
        };
        assert!(Bound::AtLeast(1.2).is_met(&spread));
        assert!(!Bound::AtLeast(1.25).is_met(&spread));
        assert!(Bound::AtMost(1.25).is_met(&spread));
        assert!(!Bound::AtMost(1.1).is_met(&spread));
    }
}
