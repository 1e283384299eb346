//! Single steps of the data path, measured by criterion: `cargo bench -p uwarp-bench`.
//!
//! `post_to_place` measures the verbs with two devices in one thread, over kernel TCP on 127.0.0.1,
//! by lists of 16 messages. The figures include a few system calls per list.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "criterion's functions; a bench that fails has to stop"
)]

#[path = "../../examples/traffic/pair.rs"]
mod pair;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pair::{Pair, What};
use uwarp_mpa::{Deframer, Framer, Step, crc32c};
use uwarp_verbs::{Access, Buffer, Device};

/// Sizes: small, the payload of an Ethernet segment, a page, and nearly the longest FPDU.
const SIZES: [usize; 4] = [64, 1440, 4096, 64_000];
const HEADER: [u8; 14] = [0x5a; 14];

/// Measures a step for payloads of all sizes. `prepare` creates the step for a payload.
fn sized<T, S: FnMut() -> T>(c: &mut Criterion, name: &str, prepare: impl Fn(Vec<u8>) -> S) {
    let mut group = c.benchmark_group(name);
    for size in SIZES {
        let mut step = prepare(vec![0x5a; size]);
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| b.iter(&mut step));
    }
    group.finish();
}

/// Measures the steps over the bytes of a message.
fn bytes(c: &mut Criterion) {
    sized(c, "crc32c", |payload| move || crc32c(black_box(&payload)));
    sized(c, "frame_into", |payload| {
        let mut framer = Framer::new(true, false);
        let mut out = vec![0; payload.len() + 64];
        move || {
            let payload = black_box(payload.as_slice());
            framer.frame_into(&HEADER, payload, 0, payload.len(), &mut out)
        }
    });
    sized(c, "deframe", |payload| {
        let mut fpdu = Vec::new();
        let mut framer = Framer::new(true, false);
        framer
            .frame(&HEADER, payload.as_slice(), 0, payload.len(), &mut fpdu)
            .unwrap();
        let mut deframer = Deframer::new(true, false);
        move || match deframer.next(black_box(&fpdu)) {
            Ok(Step::Fpdu(ulpdu)) => ulpdu.wire_len(),
            other => panic!("{other:?}"),
        }
    });
}

/// Measures all checks of a Write's STag, for the only STag and for random STags among a million.
fn stag(c: &mut Criterion) {
    /// Length of a region in bytes.
    const REGION: usize = 64;
    let mut group = c.benchmark_group("stag_check");
    for count in [1, 1_000_000] {
        let device = Device::tcp().unwrap();
        let pd = device.alloc_pd().unwrap();
        let buffer = Arc::new(Buffer::from(vec![0; count * REGION]));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = |at: usize| {
            let range = at * REGION..(at + 1) * REGION;
            let part = pd.region().access(access);
            part.part(Arc::clone(&buffer), range).unwrap()
        };
        let mut held: Vec<_> = (0..count).map(region).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut held);
        let mut next = held.iter().cycle();
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            b.iter(|| pd.would_place(black_box(&next.next().unwrap().remote())));
        });
    }
    group.finish();
}

/// Measures messages from post to completion and placement, and an empty poll.
fn messages(c: &mut Criterion) {
    for (name, what) in [
        ("write", What::Write),
        ("send", What::Send),
        ("read", What::Read),
    ] {
        let mut group = c.benchmark_group(format!("post_to_place/{name}"));
        for size in [8, 4096, 65_536] {
            let mut pair = Pair::new(what, size, 16).unwrap();
            pair.warm(1024).unwrap();
            group.throughput(Throughput::Elements(1));
            group.bench_function(BenchmarkId::from_parameter(size), |b| {
                // Messages are sent in whole lists.
                b.iter_custom(|count| {
                    let rounded = count.next_multiple_of(16);
                    let began = Instant::now();
                    pair.warm(rounded).unwrap();
                    began.elapsed().mul_f64(count as f64 / rounded as f64)
                });
            });
        }
        group.finish();
    }
    let mut pair = Pair::new(What::Write, 8, 16).unwrap();
    pair.warm(1024).unwrap();
    c.bench_function("poll/empty", |b| b.iter(|| pair.poll().unwrap()));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(20);
    targets = bytes, stag, messages
}
criterion_main!(benches);
