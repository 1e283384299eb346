//! The steps of the verbs for a message, measured one by one: the post, the poll that finds a
//! completion, the STag check, and the placement. Two devices in one thread use an in-memory
//! stream, without a system call.
//!
//! The benchmark checks that a timed step includes no other step. For example, it fails if a post
//! has framed a message.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use uwarp_verbs::{Access, Buffer, Completion, Device, QpCaps, RecvWr, RemoteBuffer, SendWr};

use super::SIZES;
use super::line::Line;
use super::pair::{DEPTH, Pair, What};

/// Maximum number of messages in a turn, which is one timed group of steps.
const TURN: usize = DEPTH as usize;
/// Maximum number of bytes in a turn. A turn has fewer messages if they are large.
const MOST: usize = 1 << 20;

/// Two devices that are connected by an in-memory stream.
struct Rig {
    line: Line,
    pair: Pair,
    size: usize,
    out: [Completion; TURN],
}

impl Rig {
    fn new(size: usize) -> Rig {
        let (line, ends) = Line::new().unwrap();
        let pair = Pair::on(ends, (What::Write, size as u32, 1)).unwrap();
        let out = [Completion::default(); TURN];
        Rig {
            line,
            pair,
            size,
            out,
        }
    }

    /// Posts `count` Writes, `list` at a time. Returns the time that the posts took.
    fn post(&self, count: usize, list: usize) -> Duration {
        let to = self.pair.server.region.remote();
        let sges = [self.pair.client.region.sge(0, self.size as u32)];
        let wrs = [SendWr::write(1, &sges, to); TURN];
        let qp = &self.pair.client.qp;
        let began = Instant::now();
        for posted in wrs[..count].chunks(list) {
            match posted {
                [one] => qp.post_send(black_box(one)).unwrap(),
                all => qp.post_send_list(black_box(all)).unwrap(),
            }
        }
        began.elapsed()
    }

    /// Polls until `count` requests have completed and the server has placed all of them.
    fn drain(&mut self, mut count: usize) {
        while count > 0 {
            let found = self.pair.client.cq.poll(&mut self.out);
            for done in &self.out[..found] {
                done.ok().unwrap();
            }
            count -= found;
        }
        self.serve();
    }

    /// Lets the server receive, check and place all bytes. Returns the time that its polls took.
    fn serve(&mut self) -> Duration {
        let began = Instant::now();
        while self.line.waiting() > 0 {
            assert_eq!(self.pair.server.cq.poll(&mut self.out), 0);
        }
        began.elapsed()
    }

    fn frames(&self) -> u64 {
        self.pair.client.qp.flight_record().seen()
    }
}

/// Repeats a turn of `of` steps until at least `count` steps were executed. Returns the time for
/// `count` steps.
fn turns(count: u64, of: usize, mut turn: impl FnMut() -> Duration) -> Duration {
    let turns = count.div_ceil(of as u64);
    let took: Duration = (0..turns).map(|_| turn()).sum();
    took.mul_f64(count as f64 / (turns * of as u64) as f64)
}

/// Measures a post while TCP accepts no bytes: the checks, the region of the SGE, and the slot in
/// the queue. Framing happens later and is not included.
pub(crate) fn post(c: &mut Criterion) {
    let mut group = c.benchmark_group("post/write_8");
    group.throughput(Throughput::Elements(1));
    for list in [1, TURN] {
        let mut rig = Rig::new(8);
        group.bench_function(BenchmarkId::from_parameter(list), |b| {
            b.iter_custom(|count| {
                turns(count, TURN, || {
                    rig.line.set_full(true);
                    // This Write is framed at once. Later posts are queued after it.
                    rig.post(1, 1);
                    let frames = rig.frames();
                    let took = rig.post(TURN, list);
                    assert_eq!(rig.frames(), frames, "a post has framed");
                    rig.line.set_full(false);
                    rig.drain(TURN + 1);
                    took
                })
            });
        });
    }
    group.finish();
    receives(c);
}

/// Measures posts of receives to a QP that is not connected.
fn receives(c: &mut Criterion) {
    let device = Device::tcp().unwrap();
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(2 * TURN as u32).unwrap();
    let caps = QpCaps::default().max_recv_wr(TURN as u32);
    let region = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
    let sges = [region.sge(0, 64)];
    let wrs = [RecvWr::new(1, &sges); TURN];
    let mut group = c.benchmark_group("post/receive");
    group.throughput(Throughput::Elements(1));
    for list in [1, TURN] {
        group.bench_function(BenchmarkId::from_parameter(list), |b| {
            b.iter_custom(|count| {
                turns(count, TURN, || {
                    let qp = pd.create_qp(&cq, &cq, caps).unwrap();
                    let began = Instant::now();
                    for posted in wrs.chunks(list) {
                        match posted {
                            [one] => qp.post_recv(black_box(one)).unwrap(),
                            all => qp.post_recv_list(black_box(all)).unwrap(),
                        }
                    }
                    began.elapsed()
                })
            });
        });
    }
    group.finish();
}

/// Measures polls that find completions, one or all at a time. The result is per completion.
pub(crate) fn poll(c: &mut Criterion) {
    let mut group = c.benchmark_group("poll/found");
    group.throughput(Throughput::Elements(1));
    for room in [1, TURN] {
        let mut rig = Rig::new(8);
        group.bench_function(BenchmarkId::from_parameter(room), |b| {
            b.iter_custom(|count| {
                turns(count, TURN, || {
                    rig.post(TURN, TURN);
                    let looks = rig.line.looks();
                    let cq = &rig.pair.client.cq;
                    let began = Instant::now();
                    for out in rig.out.chunks_mut(room) {
                        assert_eq!(cq.poll(black_box(out)), room);
                    }
                    let took = began.elapsed();
                    assert_eq!(rig.line.looks(), looks, "a poll has received");
                    rig.serve();
                    took
                })
            });
        });
    }
    group.finish();
}

/// Measures all checks of a Write's STag. The cases are one STag that is the only one, one STag
/// among a million, and random STags among a million.
pub(crate) fn stag(c: &mut Criterion) {
    /// Length of a region in bytes.
    const REGION: usize = 64;
    /// Number of random STags. It is a power of two. The table entries of the STags exceed the
    /// caches.
    const LOOKS: usize = 1 << 20;
    let mut group = c.benchmark_group("stag_check");
    group.throughput(Throughput::Elements(1));
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
        let held: Vec<_> = (0..count).map(region).collect();
        let mut random = fastrand::Rng::with_seed(1);
        let any: Vec<RemoteBuffer> = (0..LOOKS)
            .map(|_| held[random.usize(..count)].remote())
            .collect();
        let one = held[count / 2].remote();
        group.bench_function(BenchmarkId::new("one_of", count), |b| {
            b.iter(|| assert!(pd.would_place(black_box(&one))));
        });
        if count > 1 {
            let mut at = 0;
            group.bench_function(BenchmarkId::new("any_of", count), |b| {
                b.iter(|| {
                    at = (at + 1) % LOOKS;
                    assert!(pd.would_place(black_box(&any[at])));
                });
            });
        }
    }
    group.finish();
}

/// Measures the copy into a registered region by the function that places data. Then measures all
/// work of a Write's target for the bytes of the stream: a copy from the line, deframing, the CRC,
/// the headers, the STag, and the placement.
pub(crate) fn placement(c: &mut Criterion) {
    let mut group = c.benchmark_group("place/into_region");
    for size in SIZES {
        let rig = Rig::new(size);
        let bytes = vec![0x5a_u8; size];
        let region = &rig.pair.server.region;
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter(|| region.write_at(0, black_box(&bytes)).unwrap());
        });
    }
    group.finish();
    let mut group = c.benchmark_group("place/receive_write");
    for size in SIZES {
        let mut rig = Rig::new(size);
        let messages = (MOST / size).min(TURN);
        rig.pair.server.region.write_at(0, &vec![0; size]).unwrap();
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |b| {
            b.iter_custom(|count| {
                turns(count, messages, || {
                    rig.post(messages, messages);
                    let mut sent = 0;
                    while sent < messages {
                        sent += rig.pair.client.cq.poll(&mut rig.out);
                    }
                    rig.serve()
                })
            });
        });
        let mut placed = vec![0; size];
        rig.pair.server.region.read_at(0, &mut placed).unwrap();
        assert!(placed.iter().all(|byte| *byte == 0x5a), "not placed");
    }
    group.finish();
}
