//! Figures of many connections and regions, and their targets.

use super::pair::{Carrier, Shape};
use crate::targets::Bound;

/// A figure, and the pair of processes that it needs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    pub(super) shape: Shape,
    /// Command line for the client of the pair.
    pub(super) ask: String,
    /// Name of the figure with which this figure is compared: the first figure of the group.
    pub(super) base: Option<String>,
    /// Target for the ratio to the base.
    pub(super) bound: Option<Bound>,
}

/// Numbers of connections and regions to measure, and the time of a measurement.
#[derive(Clone, Debug)]
pub(super) struct Numbers {
    pub(super) conns: Vec<usize>,
    pub(super) regions: Vec<usize>,
    pub(super) seconds: f64,
}

/// A group of figures. All are compared with the first figure.
struct Group<'a> {
    kind: &'a str,
    unit: &'static str,
    /// Target of the last figure in the group.
    bound: Option<Bound>,
}

impl Group<'_> {
    fn add(&self, all: &mut Vec<Figure>, asks: Vec<(String, Shape, String)>) {
        let (mut base, count) = (None, asks.len());
        for (at, (name, shape, ask)) in asks.into_iter().enumerate() {
            let name = format!("{}, {name}", self.kind);
            all.push(Figure {
                name: name.clone(),
                unit: self.unit,
                shape,
                ask,
                base: base.clone(),
                bound: self.bound.filter(|_| at > 0 && at + 1 == count),
            });
            base.get_or_insert(name);
        }
    }
}

/// Returns all figures over a carrier.
pub(super) fn all(carrier: Carrier, numbers: &Numbers) -> Vec<Figure> {
    let mut all = Vec::new();
    one_active(&mut all, carrier, numbers);
    many_active(&mut all, carrier, numbers);
    if carrier == Carrier::Kernel {
        regions(&mut all, numbers);
    }
    all
}

fn one_active(all: &mut Vec<Figure>, carrier: Carrier, numbers: &Numbers) {
    let Numbers { conns, seconds, .. } = numbers;
    let within = match carrier {
        Carrier::Kernel => 1.2,
        Carrier::Smol => 3.0,
    };
    for (kind, unit, ask, bound) in [
        (
            "8 B Send latency",
            "us",
            "latency",
            Some(Bound::AtMost(within)),
        ),
        (
            "8 B Send latency, blocking",
            "us",
            "sleepy",
            Some(Bound::AtMost(within)),
        ),
        (
            "64 KiB Write",
            "GB/s",
            "bandwidth",
            Some(Bound::AtLeast(1.0 / within)),
        ),
    ] {
        let of = |&conns: &usize| {
            let name = format!("1 of {conns} active");
            (name, Shape::of_conns(conns), format!("{ask} {seconds}"))
        };
        let group = Group { kind, unit, bound };
        group.add(all, conns.iter().map(of).collect());
    }
}

/// Adds figures with 16 active connections of a thousand and with all of them active. They are
/// measured for uwarp and, with kernel TCP, also for raw TCP.
fn many_active(all: &mut Vec<Figure>, carrier: Carrier, numbers: &Numbers) {
    let Numbers { conns, seconds, .. } = numbers;
    let Some(conns) = conns.iter().copied().filter(|conns| *conns >= 1000).min() else {
        return;
    };
    for (list, how, raw_how) in [
        (16, "lists of 16", "16 FPDUs of 64 B a write"),
        (1, "one a post", "1 FPDU of 64 B a write"),
    ] {
        let of = |shape: Shape| {
            move |active| {
                let ask = format!("rate {active} {list} {seconds}");
                (format!("{active} of {conns} active"), shape, ask)
            }
        };
        let group = Group {
            kind: &format!("64 B Write rate, {how}"),
            unit: "M/s",
            bound: Some(Bound::AtLeast(0.7)),
        };
        group.add(all, [16, conns].map(of(Shape::of_conns(conns))).into());
        if carrier == Carrier::Kernel {
            let group = Group {
                kind: &format!("raw TCP, {raw_how}"),
                unit: "M/s",
                bound: Some(Bound::Reported),
            };
            group.add(all, [16, conns].map(of(Shape::of_raw(conns))).into());
        }
    }
}

/// Adds figures with many regions. They include the cache misses of the written memory, so they
/// have no target. Validation, which has a target, is measured separately.
fn regions(all: &mut Vec<Figure>, numbers: &Numbers) {
    let Numbers {
        regions, seconds, ..
    } = numbers;
    for (kind, unit, ask) in [
        ("8 B Read latency (both ways)", "us", "region-latency"),
        ("64 B Write rate, lists of 64", "M/s", "region-rate"),
    ] {
        let of = |&regions: &usize| {
            let name = format!("{regions} regions");
            (name, Shape::of_regions(regions), format!("{ask} {seconds}"))
        };
        let group = Group {
            kind,
            unit,
            bound: None,
        };
        group.add(all, regions.iter().map(of).collect());
    }
    let largest = regions.iter().copied().max().unwrap_or(1);
    let of = |(name, ask): (&str, &str)| {
        let name = format!("memory of {largest}, {name}");
        (name, Shape::of_regions(largest), format!("{ask} {seconds}"))
    };
    let asks = [
        ("one region", "spread-rate"),
        ("its own regions", "region-rate"),
    ];
    let group = Group {
        kind: "64 B Write rate, same addresses",
        unit: "M/s",
        bound: None,
    };
    group.add(all, asks.map(of).into());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Numbers {
        Numbers {
            conns: vec![1, 100, 1_000, 10_000],
            regions: vec![1, 1_000, 1_000_000],
            seconds: 0.5,
        }
    }

    #[test]
    fn the_largest_number_is_judged_beside_the_smallest() {
        for (carrier, most) in [(Carrier::Kernel, 1.2), (Carrier::Smol, 3.0)] {
            let all = all(carrier, &numbers());
            let judged: Vec<_> = all.iter().filter(|figure| figure.bound.is_some()).collect();
            assert_eq!(judged[0].name, "8 B Send latency, 1 of 10000 active");
            let base = judged[0].base.as_deref();
            assert_eq!(base, Some("8 B Send latency, 1 of 1 active"));
            assert_eq!(judged[0].bound, Some(Bound::AtMost(most)));
            assert_eq!(
                judged[1].name,
                "8 B Send latency, blocking, 1 of 10000 active"
            );
            assert_eq!(judged[1].bound, Some(Bound::AtMost(most)));
            assert_eq!(judged[2].bound, Some(Bound::AtLeast(1.0 / most)));
            assert_eq!(
                judged[3].name,
                "64 B Write rate, lists of 16, 1000 of 1000 active"
            );
            let raw = judged.iter().filter(|figure| figure.shape.raw);
            assert!(
                raw.clone()
                    .all(|figure| figure.bound == Some(Bound::Reported))
            );
            match carrier {
                Carrier::Kernel => assert_eq!((judged.len(), raw.count()), (7, 2)),
                Carrier::Smol => assert_eq!((judged.len(), raw.count()), (5, 0)),
            }
        }
    }

    #[test]
    fn every_base_is_measured_and_no_name_is_there_twice() {
        for carrier in Carrier::ALL {
            let all = all(carrier, &numbers());
            for (at, figure) in all.iter().enumerate() {
                let named = |name: &str| all.iter().position(|other| other.name == name);
                assert_eq!(named(&figure.name), Some(at));
                if let Some(base) = &figure.base {
                    assert!(named(base).unwrap() < at);
                }
            }
        }
    }
}
