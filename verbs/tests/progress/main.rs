//! Progress of connections, whichever thread drives them, and without calls of the program.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

#[path = "../common/mod.rs"]
mod common;
mod idle;
mod threads;

use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use common::{
    CqHandle, LIMIT, Setup, Side, Wire, beside_idle_peer, beside_raw_peer, both_ways, content,
    join, pair, pattern, peers, raw_peer, raw_settings, same, slice, until,
};
use uwarp_verbs::{
    Completion, MemoryRegion, Notify, OnNoReceive, Qp, QpCaps, QpState, RecvWr, RemoteBuffer,
    Revision, SendWr, Status,
};

/// Lock that lets the tests which measure CPU time run alone.
static QUIET: RwLock<()> = RwLock::new(());

fn busy() -> RwLockReadGuard<'static, ()> {
    QUIET.read().unwrap_or_else(PoisonError::into_inner)
}

/// The program behaves like ib_write_lat: it polls once for each message, and makes no call while
/// it waits for the answer in memory.
#[test]
fn what_comes_to_a_program_that_polls_now_and_then_does_not_wait_for_the_takeover() {
    let _busy = busy();
    let mut setup = Setup::new(Wire::Kernel);
    for settings in &mut setup.settings {
        settings.takeover = Duration::from_secs(3600);
    }
    let (a, b) = setup.connected();
    let (target, source) = (b.blank(8), a.filled(1, 8));
    let to = target.remote();
    for round in 1..=10 {
        source.write_at(0, &[round; 8]).unwrap();
        let sges = [source.sge(0, 8)];
        b.recv_cq.assert_empty();
        a.qp.post_send(&SendWr::write(
            round.into(),
            &sges,
            RemoteBuffer::at(to.addr, to.rkey),
        ))
        .unwrap();
        a.send_cq.success(round.into());
        until("it is there", || content(&target) == [round; 8]);
    }
}

#[test]
fn one_sided_operations_complete_while_the_target_calls_nothing() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (target, lent) = (b.blank(1 << 20), b.filled(2, 1 << 20));
        // From here on, no thread of the target calls the library until all operations are
        // complete.
        let (to, from) = (target.remote(), lent.remote());
        let (source, sink) = (a.filled(1, 1 << 20), a.blank(1 << 20));
        for i in 0..10 {
            a.qp.post_send(&SendWr::write(
                2 * i,
                &[source.sge(0, 1 << 20)],
                RemoteBuffer::at(to.addr, to.rkey),
            ))
            .unwrap();
            a.qp.post_send(&SendWr::read(
                2 * i + 1,
                &[sink.sge(0, 1 << 20)],
                RemoteBuffer::at(from.addr, from.rkey),
            ))
            .unwrap();
        }
        a.send_cq.successes(0..20);
        same(&content(&sink), &pattern(2, 1 << 20), "read");
        // The Reads were answered after the Writes had been placed.
        same(&content(&target), &pattern(1, 1 << 20), "written");
    }
}

#[test]
fn the_initiator_may_sleep_too_once_it_has_posted() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (lent, sink) = (b.filled(1, 4 << 20), a.blank(4 << 20));
        let from = lent.remote();
        a.qp.post_send(&SendWr::read(
            1,
            &[sink.sge(0, 4 << 20)],
            RemoteBuffer::at(from.addr, from.rkey),
        ))
        .unwrap();
        // Only the memory is read, and no CQ is polled. The last bytes of the pattern differ from
        // FILL.
        let last = pattern(1, 4 << 20)[(4 << 20) - 8..].to_vec();
        until("the end of the Response", || {
            slice(&sink, (4 << 20) - 8, 8) == last
        });
        same(&content(&sink), &content(&lent), "read");
        a.send_cq.success(1);
    }
}

#[test]
fn a_program_may_poll_the_last_byte_of_what_the_peer_writes() {
    let _busy = busy();
    for wire in Wire::BOTH {
        for len in [1, 64, 1450, 70_000] {
            let (a, b) = pair(wire);
            let target = b.blank(len);
            let to = target.remote();
            let mut data = pattern(3, len);
            for round in 0..20_u8 {
                data.fill(round);
                let source =
                    a.pd.register(data.clone(), uwarp_verbs::Access::NONE)
                        .unwrap();
                a.qp.post_send(&SendWr::write(
                    1,
                    &[source.sge(0, len as u32)],
                    RemoteBuffer::at(to.addr, to.rkey),
                ))
                .unwrap();
                until("the last byte", || slice(&target, len - 1, 1) == [round]);
                // The last byte is placed last, so everything before it must be in memory.
                same(
                    &content(&target),
                    &data,
                    &format!("{wire:?}, {len} bytes, round {round}"),
                );
                a.send_cq.success(1);
            }
        }
    }
}

/// Both programs behave like ib_write_lat: they post, poll once, and then watch the buffer without
/// any call.
#[test]
fn two_programs_play_ping_pong_by_writes_alone() {
    let _busy = busy();
    const ROUNDS: u8 = 200;
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        let (mine, theirs) = (a.blank(1), b.blank(1));
        let play = |side: &Side, own: &MemoryRegion, to: RemoteBuffer, first: bool| {
            for round in 1..=ROUNDS {
                if !first || round > 1 {
                    let awaited = if first { round - 1 } else { round };
                    until("the ball", || slice(own, 0, 1) == [awaited]);
                }
                let wr_id = u64::from(round);
                side.qp
                    .post_send(&SendWr::write_inline(
                        wr_id,
                        &[round],
                        RemoteBuffer::at(to.addr, to.rkey),
                    ))
                    .unwrap();
                let _ = side.send_cq.poll(&mut [Completion::default(); 4]);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(&a, &mine, theirs.remote(), true));
            scope.spawn(|| play(&b, &theirs, mine.remote(), false));
        });
        until("the last ball", || content(&mine) == [ROUNDS]);
    }
}
