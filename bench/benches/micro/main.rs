//! Single steps of the data path, measured by criterion: `cargo bench -p uwarp-bench`.
//!
//! The verbs are measured with two devices in one thread, over kernel TCP on 127.0.0.1. A list of
//! 16 Writes is posted, sent, received, checked, placed and completed. The figures include a few
//! system calls per list. `steps.rs` measures the steps one by one, without system calls.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "criterion's functions; a bench that fails has to stop"
)]

mod line;
#[path = "../../examples/traffic/pair.rs"]
mod pair;
mod steps;

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pair::{Pair, What};
use uwarp_ddp::{Header, MAX_HEADER, STag, TaggedHeader, TaggedOffset};
use uwarp_mpa::{Deframer, Framer, Step, crc32c};

/// Message sizes: two small ones, the payload of an Ethernet segment, a page, and nearly the
/// longest FPDU.
const SIZES: [usize; 5] = [8, 64, 1440, 4096, 64_000];
/// Header of a Write.
const HEADER: [u8; 14] = [0x5a; 14];

fn crc(c: &mut Criterion) {
    let mut group = c.benchmark_group("crc32c");
    for size in SIZES {
        let bytes = vec![0x5a_u8; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &bytes, |b, bytes| {
            b.iter(|| crc32c(black_box(bytes)));
        });
    }
    group.finish();
}

/// Measures a copy of the payload, which is the upper bound for any transfer on this machine.
fn copy(c: &mut Criterion) {
    let mut group = c.benchmark_group("memcpy");
    for size in SIZES {
        let bytes = vec![0x5a_u8; size];
        let mut to = vec![0; size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &bytes, |b, bytes| {
            b.iter(|| black_box(&mut to[..]).copy_from_slice(black_box(bytes)));
        });
    }
    group.finish();
}

fn framing(c: &mut Criterion) {
    for (name, crc) in [("frame_into/crc", true), ("frame_into/no_crc", false)] {
        let mut group = c.benchmark_group(name);
        for size in SIZES {
            let payload = vec![0x5a_u8; size];
            let mut framer = Framer::new(crc, false);
            let mut out = vec![0; size + 64];
            group.throughput(Throughput::Bytes(size as u64));
            group.bench_with_input(BenchmarkId::from_parameter(size), &payload, |b, payload| {
                b.iter(|| {
                    let payload = black_box(payload.as_slice());
                    framer.frame_into(&HEADER, payload, 0, payload.len(), &mut out)
                });
            });
        }
        group.finish();
    }
}

fn deframing(c: &mut Criterion) {
    let mut group = c.benchmark_group("deframe");
    for size in SIZES {
        let mut fpdu = Vec::new();
        let payload = vec![0x5a_u8; size];
        let mut framer = Framer::new(true, false);
        framer
            .frame(&HEADER, payload.as_slice(), 0, size, &mut fpdu)
            .unwrap();
        let mut deframer = Deframer::new(true, false);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_with_input(BenchmarkId::from_parameter(size), &fpdu, |b, fpdu| {
            b.iter(|| match deframer.next(black_box(fpdu)) {
                Ok(Step::Fpdu(ulpdu)) => ulpdu.wire_len(),
                other => panic!("{other:?}"),
            });
        });
    }
    group.finish();
}

fn headers(c: &mut Criterion) {
    let header = Header::Tagged(TaggedHeader {
        last: true,
        ulp: 0x40,
        stag: STag(0x1234_5678),
        to: TaggedOffset(0x1000),
    });
    let mut bytes = [0; MAX_HEADER];
    let len = header.emit(&mut bytes);
    c.bench_function("ddp_header/emit", |b| {
        b.iter(|| black_box(&header).emit(&mut bytes));
    });
    c.bench_function("ddp_header/parse", |b| {
        b.iter(|| Header::parse(black_box(&bytes[..len])));
    });
}

/// Measures messages from the post to the completion and the placement on the other side.
fn messages(c: &mut Criterion) {
    for (name, what) in [
        ("write", What::Write),
        ("send", What::Send),
        ("read", What::Read),
    ] {
        let mut group = c.benchmark_group(format!("post_to_place/{name}"));
        for size in [8, 64, 4096, 65_536] {
            let mut pair = Pair::new(what, size, 16).unwrap();
            pair.warm(1024).unwrap();
            group.throughput(Throughput::Elements(1));
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                b.iter_custom(|count| timed(&mut pair, count));
            });
        }
        group.finish();
    }
}

/// Measures Writes that address many regions in turn. They show the cost of the STag lookup among
/// many STags.
fn stags(c: &mut Criterion) {
    let mut group = c.benchmark_group("post_to_place/write_8_to_regions");
    for regions in [1, 1_000, 100_000] {
        let mut pair = Pair::new(What::Write, 8, 16).unwrap();
        pair.spread(regions).unwrap();
        pair.warm(1024).unwrap();
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::from_parameter(regions), |b| {
            b.iter_custom(|count| timed(&mut pair, count));
        });
    }
    group.finish();
}

/// Runs `count` messages, rounded up to whole lists. Returns the time for `count` of them.
fn timed(pair: &mut Pair, count: u64) -> Duration {
    let rounded = count.next_multiple_of(16);
    let began = std::time::Instant::now();
    pair.warm(rounded).unwrap();
    began.elapsed().mul_f64(count as f64 / rounded as f64)
}

/// Measures an empty poll of a CQ with an idle connection.
fn empty_poll(c: &mut Criterion) {
    let mut pair = Pair::new(What::Write, 8, 16).unwrap();
    pair.warm(1024).unwrap();
    c.bench_function("poll/empty", |b| b.iter(|| pair.poll().unwrap()));
}

fn short() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
}

criterion_group! {
    name = benches;
    config = short();
    targets = crc, copy, framing, deframing, headers, messages, stags, empty_poll, steps::post, steps::poll, steps::stag,
        steps::placement
}
criterion_main!(benches);
