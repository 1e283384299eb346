//! A connection in a process that has no memory left. The limit applies to the whole process, and
//! the allocator must find small pieces in the main thread's arena, so this binary has its own
//! `main`.

mod common;

use std::hint::black_box;
use std::time::Duration;

use common::{Wire, bell, peers};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uwarp_verbs::{SendWr, Status, headroom};

/// Maximum number of larger pieces, which are all taken.
const HOARD: usize = 4096;
/// Maximum number of attempts to find the pool of the receiver empty.
const ROUNDS: u64 = 100;
/// Number of small allocations that are possible without more memory.
const SMALL: usize = 1000;

fn limit(current: u64) {
    let maximum = getrlimit(Resource::Data).maximum;
    let current = Some(current);
    setrlimit(Resource::Data, Rlimit { current, maximum }).unwrap();
}

/// A message waits until there is a buffer for it. Until then the connection lives.
fn a_connection_without_memory_for_a_receive_buffer_waits_for_it() {
    const PLENTY: u64 = 1 << 40;
    // Linux does not apply a limit of 0 to mappings.
    const NOTHING: u64 = 4096;
    limit(PLENTY);
    headroom::share_arena();
    let (a, b) = peers(Wire::Kernel);
    // Pieces between others, which the allocator keeps and which are too small for a buffer.
    let mut pieces: Vec<_> = (0..2 * SMALL)
        .map(|_| Vec::<u8>::with_capacity(1024))
        .collect();
    for piece in pieces.iter_mut().step_by(2) {
        *black_box(piece) = Vec::new();
    }
    let large = || {
        let mut piece = Vec::<u8>::new();
        piece.try_reserve_exact(16 << 10).ok().map(|()| piece)
    };
    let has_waited = (0..ROUNDS).any(|round| {
        b.post_empty(round);
        let mut hoard = Vec::with_capacity(HOARD);
        limit(NOTHING);
        // Empties the pool of each device. A thread of the device may just be using a buffer.
        for side in [&a, &b] {
            assert!(side.device.check_memory(1 << 30, "").is_err());
        }
        hoard.extend(std::iter::from_fn(large).take(HOARD));
        a.qp.post_send(&SendWr::send(round, &[])).unwrap();
        let early = b.recv_cq.wait(Some(Duration::from_millis(200)));
        drop(hoard);
        limit(PLENTY);
        match early {
            None => b.recv_cq.success(round),
            Some(early) => {
                assert_eq!((early.wr_id, early.status), (round, Status::Success));
                early
            }
        };
        a.send_cq.success(round);
        early.is_none()
    });
    assert!(has_waited, "no message had to wait for a buffer");
    bell(&a, &b);
    black_box(&pieces);
}

fn main() {
    if cfg!(target_env = "gnu") && std::env::var_os("QEMU_LD_PREFIX").is_none() {
        a_connection_without_memory_for_a_receive_buffer_waits_for_it();
    } else {
        eprintln!("SKIPPED: needs the allocator of glibc and limits of memory");
    }
}
