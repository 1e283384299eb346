//! Measures every figure once in each round.

use std::io;

use crate::Options;
use crate::distance::Processors;
use crate::figures::{self, Base, Figure, Of, Section};
use crate::namespace;
use crate::ours;
use crate::process::Pinning;
use crate::progress;
use crate::raw;
use crate::sample::Sample;
use crate::stats::{Ratios, neighbour};

/// Results of all rounds.
pub(crate) struct Measured {
    /// Each figure, with a sample for each round.
    pub(crate) figures: Vec<(Figure, Vec<Sample>)>,
}

impl Measured {
    pub(crate) fn find(&self, section: Section, name: &str) -> Option<&(Figure, Vec<Sample>)> {
        self.figures
            .iter()
            .find(|(figure, _)| figure.section == section && figure.name == name)
    }

    fn raw(&self, name: &str) -> Option<&[Sample]> {
        let is = |(figure, _): &&(Figure, Vec<Sample>)| figure.is_raw() && figure.name == name;
        self.figures
            .iter()
            .find(is)
            .map(|(_, samples)| samples.as_slice())
    }

    /// Returns a function that finds the divisor of a figure. Its arguments are the round and the
    /// sample to divide.
    pub(crate) fn base(&self, base: Base) -> Option<impl Fn(usize, &Sample) -> f64> {
        let all: Option<Vec<_>> = base
            .names()
            .into_iter()
            .map(|name| self.raw(name))
            .collect();
        let all = all?;
        Some(move |round: usize, sample: &Sample| {
            let of = all.iter().map(|raw| neighbour(raw, round, sample));
            of.fold(f64::NAN, f64::max)
        })
    }

    /// Returns the ratios of these processor times to those of a raw figure.
    pub(crate) fn cpu_ratios(&self, samples: &[Sample], raw: &str) -> Option<Ratios> {
        Some(Ratios::of(&cpu(samples), &cpu(self.raw(raw)?)))
    }
}

pub(crate) fn values(samples: &[Sample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.value).collect()
}

/// Returns the processor times of these samples as samples.
pub(crate) fn cpu(samples: &[Sample]) -> Vec<Sample> {
    let of = |sample: &Sample| Sample {
        value: sample.cpu.unwrap_or(f64::NAN),
        ..*sample
    };
    samples.iter().map(of).collect()
}

/// Servers that run during all rounds.
struct Servers {
    raw: raw::Server,
    crc: ours::Server,
    no_crc: ours::Server,
    /// Another raw server and another uwarp server with CRC. Both may run on any processor.
    free: (raw::Server, ours::Server),
}

impl Servers {
    fn measure(&self, figure: &Figure, options: &Options) -> io::Result<Sample> {
        let time = figure.time(options.time()?);
        let (raw, crc) = match figure.pinned {
            true => (&self.raw, &self.crc),
            false => (&self.free.0, &self.free.1),
        };
        match &figure.of {
            Of::Writes(size) => raw.measure(raw::Kind::Stream, *size, time),
            Of::SpinningWrites(size) => raw.measure(raw::Kind::SpinningStream, *size, time),
            Of::Working(kind, size) => raw.measure(*kind, *size, time),
            Of::WriteRate(size) => {
                let sample = raw.measure(raw::Kind::Stream, *size, time)?;
                let value = sample.value / *size as f64;
                Ok(Sample::of(value))
            }
            Of::PingPong(kind, size) => raw.measure(*kind, *size, time),
            Of::RoundTrip(kind, size) => {
                let sample = raw.measure(*kind, *size, time)?;
                let value = 2.0 * sample.value;
                Ok(Sample { value, ..sample })
            }
            Of::Ours {
                args,
                metric,
                crc: with_crc,
            } => {
                let server = if *with_crc { crc } else { &self.no_crc };
                server.measure(args, *metric, time)
            }
            Of::UnderBbr { args, metric } => {
                let _system = namespace::Control::set(namespace::BBR)?;
                let uwarp = ours::Uwarp {
                    congestion: None,
                    ..options.ours()
                };
                ours::Server::start(&uwarp, true)?.measure(args, *metric, time)
            }
        }
    }
}

/// Measures all selected figures.
pub(crate) fn run(options: &Options, processors: &Processors) -> io::Result<Measured> {
    let (uwarp, pinning) = (options.ours(), options.pinning());
    let anywhere = ours::Uwarp {
        pinning: Pinning { processors: None },
        ..uwarp.clone()
    };
    let servers = Servers {
        free: (
            raw::Server::start(Some(&options.congestion), &anywhere.pinning)?,
            ours::Server::start(&anywhere, true)?,
        ),
        raw: raw::Server::start(Some(&options.congestion), &pinning)?,
        crc: ours::Server::start(&uwarp, true)?,
        no_crc: ours::Server::start(&uwarp, false)?,
    };
    let wanted = |figure: &Figure| {
        let named = |part: &String| figure.name.contains(part.as_str());
        options.only.is_empty() || figure.is_raw() || options.only.iter().any(named)
    };
    let bbr = namespace::Control::set(namespace::BBR).map(drop);
    if let Err(error) = &bbr {
        progress::tell(format_args!("SKIPPED, what is measured under BBR: {error}"));
    }
    let possible = |figure: &Figure| bbr.is_ok() || !matches!(figure.of, Of::UnderBbr { .. });
    let mut figures: Vec<(Figure, Vec<Sample>)> = figures::all()
        .into_iter()
        .filter(|figure| wanted(figure) && possible(figure))
        .map(|figure| (figure, Vec::new()))
        .collect();
    for round in 1..=options.rounds {
        let count = figures.len();
        for (at, (figure, samples)) in figures.iter_mut().enumerate() {
            progress::now(format_args!(
                "round {round} of {}: {} of {count}, {}",
                options.rounds,
                at + 1,
                figure.name
            ));
            let sample = processors.sample(|| servers.measure(figure, options));
            samples.push(sample.unwrap_or_else(|error| {
                progress::tell(format_args!("{}: {error}", figure.name));
                Sample::NONE
            }));
        }
    }
    progress::over();
    Ok(Measured { figures })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::Work;

    fn samples(values: &[f64]) -> Vec<Sample> {
        let of = |&value| Sample {
            cpu: Some(value / 10.0),
            ..Sample::of(value)
        };
        values.iter().map(of).collect()
    }

    /// Creates results of two rounds: raw writes, blocking and spinning, raw TCP with work on its
    /// bytes, and uwarp's first figure.
    fn measured() -> Measured {
        let raw = [
            [6.0, 3.0],
            [9.0, 4.0],
            [8.0, 5.0],
            [7.0, 2.0],
            [7.0, 5.5],
            [7.0, 2.0],
        ];
        let working = (0..18).map(|row| [f64::from(row), f64::from(20 - row)]);
        let values = raw.into_iter().chain(working).chain([[12.0, 6.0]]);
        let figures = figures::all().into_iter().zip(values);
        Measured {
            figures: figures
                .map(|(figure, values)| (figure, samples(&values)))
                .collect(),
        }
    }

    fn base(measured: &Measured, base: Base) -> [f64; 2] {
        let best = measured.base(base).unwrap();
        [0, 1].map(|round| best(round, &Sample::of(1.0)))
    }

    #[test]
    fn the_best_writes_are_chosen_in_each_round() {
        assert_eq!(base(&measured(), Base::BestWrites), [9.0, 5.5]);
    }

    #[test]
    fn the_best_with_some_work_are_those_with_this_work() {
        let measured = measured();
        let placed = base(&measured, Base::BestWith(Work::of(false, true)));
        assert_eq!(placed, [5.0, 20.0]);
        let staged = base(&measured, Base::BestWith(Work::of(true, true)));
        assert_eq!(staged, [11.0, 14.0]);
        let without_crc = base(&measured, Base::BestWith(Work::of(false, false)));
        assert_eq!(without_crc, [14.0, 8.0]);
    }

    #[test]
    fn ratios_are_of_values_and_of_processor_time() {
        let measured = measured();
        let (_, ours) = measured.find(Section::Bandwidth, "64 KiB Write").unwrap();
        let raw = measured.base(Base::Of(figures::RAW_64K)).unwrap();
        let ratio = Ratios::to(ours, raw).spread().unwrap();
        assert!((ratio.median - 2.0).abs() < 1e-9);
        let ratios = measured.cpu_ratios(ours, figures::RAW_64K).unwrap();
        assert!((ratios.spread().unwrap().median - 2.0).abs() < 1e-9);
        assert!(measured.cpu_ratios(ours, figures::RAW_SPIN).is_none());
    }
}
