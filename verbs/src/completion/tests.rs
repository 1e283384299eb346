//! Rules of completion queues and channels, one test each.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_engine::completion::CqOverflow;

use super::*;

fn completion(wr_id: u64) -> Completion {
    let mut completion = Completion::default();
    completion.wr_id = wr_id;
    completion
}

fn solicited(wr_id: u64) -> Completion {
    let mut completion = completion(wr_id);
    completion.opcode = WcOpcode::Recv;
    completion.solicited = true;
    completion
}

fn failed(wr_id: u64) -> Completion {
    let mut completion = completion(wr_id);
    completion.status = Status::WrFlush;
    completion
}

fn make(
    num: u32,
    context: u64,
    capacity: usize,
    channel: Option<&CompletionChannel>,
) -> Arc<CqInner> {
    CqInner::new(num, context, capacity, channel.cloned()).unwrap()
}

fn pair() -> (CompletionChannel, Arc<CqInner>) {
    let channel = CompletionChannel::new().unwrap();
    let cq = make(3, 0xc0ffee, 8, Some(&channel));
    (channel, cq)
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap()
        == 1
}

#[test]
fn completions_come_out_in_order() {
    let (_, cq) = pair();
    for wr_id in 0..5 {
        cq.push(completion(wr_id)).unwrap();
    }
    let mut out = [Completion::default(); 3];
    assert_eq!(cq.poll(&mut out), 3);
    assert_eq!(out.map(|completion| completion.wr_id), [0, 1, 2]);
    assert_eq!(cq.poll_one().map(|completion| completion.wr_id), Some(3));
    assert_eq!(cq.poll(&mut out), 1);
    assert_eq!(out[0].wr_id, 4);
    assert_eq!(cq.poll(&mut out), 0);
    assert_eq!(cq.poll_one(), None);
}

#[test]
fn a_full_queue_loses_the_new_completion_and_all_after_it_and_says_so_once() {
    let cq = make(9, 0, 2, None);
    cq.push(completion(1)).unwrap();
    cq.push(completion(2)).unwrap();
    let overflow = cq.push(completion(3)).unwrap_err();
    assert_eq!(
        overflow,
        CqOverflow {
            cq_num: 9,
            capacity: 2,
            wr_id: 3,
            first: true
        }
    );
    assert!(!cq.push(completion(4)).unwrap_err().first);
    assert_eq!(cq.poll_one().map(|completion| completion.wr_id), Some(1));
    // There is room, but the polled completions must have no gap.
    assert!(cq.has_overflowed());
    assert!(!cq.push(completion(5)).unwrap_err().first);
    assert_eq!(cq.poll_one().map(|completion| completion.wr_id), Some(2));
    assert_eq!(cq.poll_one(), None);
    assert_eq!(
        cq.resize(8, 100),
        Err(ResizeCqError::Overflowed { cq_num: 9 })
    );
}

#[test]
fn a_resized_queue_keeps_its_completions_in_order_and_its_arming() {
    let (channel, cq) = pair();
    for wr_id in 0..4 {
        cq.push(completion(wr_id)).unwrap();
    }
    cq.arm(Notify::Any);
    // Starts in the middle of the ring, so that it wraps.
    assert_eq!(cq.poll_one().map(|completion| completion.wr_id), Some(0));
    cq.resize(3, 100).unwrap();
    assert_eq!((cq.len(), cq.capacity(), cq.is_armed()), (3, 3, true));
    cq.resize(5, 100).unwrap();
    cq.push(completion(4)).unwrap();
    assert!(channel.try_get_event().is_some());
    assert!(!cq.is_armed());
    let order: Vec<u64> = std::iter::from_fn(|| cq.poll_one().map(|c| c.wr_id)).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert_eq!(cq.capacity(), 5);
}

#[test]
fn a_queue_is_not_made_smaller_than_what_is_in_it() {
    let cq = make(9, 0, 4, None);
    for wr_id in 0..3 {
        cq.push(completion(wr_id)).unwrap();
    }
    let error = cq.resize(2, 100).unwrap_err();
    assert_eq!(
        error,
        ResizeCqError::TooSmall {
            cq_num: 9,
            entries: 3,
            depth: 2
        }
    );
    assert!(error.to_string().contains("queue 9 has 3 completions"));
    for (got, max) in [(0, 100), (101, 100)] {
        let cq_num = 9;
        let error = ResizeCqError::Size { cq_num, got, max };
        assert_eq!(cq.resize(got, max), Err(error));
    }
    assert_eq!((cq.len(), cq.capacity()), (3, 4));
}

#[test]
fn nothing_is_lost_or_reordered_while_a_queue_is_resized() {
    let total = 20_000;
    let cq = make(1, 0, 64, None);
    thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..total {
                // The queue never holds more entries than its smallest size.
                while cq.len() >= 64 {
                    thread::yield_now();
                }
                cq.push(completion(wr_id)).unwrap();
            }
        });
        scope.spawn(|| {
            for round in 0..2000 {
                cq.resize(64 + round % 7 * 50, 1000).unwrap();
                thread::yield_now();
            }
        });
        let mut next = 0;
        while next < total {
            match cq.poll_one() {
                Some(completion) => {
                    assert_eq!(completion.wr_id, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
    });
}

/// Next step of the model below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Producer,
    Consumer,
}

/// Runs a consumer against a producer of `total` completions, in the order that `choose` gives. The
/// consumer polls until the queue is empty, arms it, and sleeps unless the arming reports
/// completions. Returns the number of polled completions when neither can continue.
fn armed_consumer(total: u64, mut choose: impl FnMut() -> Step) -> u64 {
    let channel = CompletionChannel::new().unwrap();
    let cq = make(1, 0, 16, Some(&channel));
    let (mut pushed, mut polled, mut sleeping) = (0, 0, false);
    loop {
        let can_wake = !sleeping || channel.waiting() > 0;
        let step = match (pushed < total, can_wake) {
            (false, false) => return polled,
            (true, false) => Step::Producer,
            (false, true) => Step::Consumer,
            (true, true) => choose(),
        };
        match step {
            Step::Producer => {
                cq.push(completion(pushed)).unwrap();
                pushed += 1;
            }
            Step::Consumer if sleeping => {
                drop(channel.try_get_event().unwrap());
                sleeping = false;
            }
            Step::Consumer if cq.poll_one().is_some() => polled += 1,
            // The producer may have its step between this poll and the arming.
            Step::Consumer => {
                if pushed < total && choose() == Step::Producer {
                    cq.push(completion(pushed)).unwrap();
                    pushed += 1;
                }
                sleeping = !cq.arm(Notify::Any);
            }
        }
    }
}

#[test]
fn in_no_order_of_steps_does_a_completion_fall_between_the_last_poll_and_the_arming() {
    // Every order of up to 14 choices.
    for order in 0u32..1 << 14 {
        let mut left = order;
        let polled = armed_consumer(4, || {
            let step = if left & 1 == 1 {
                Step::Producer
            } else {
                Step::Consumer
            };
            left >>= 1;
            // After the last choice the producer runs to its end.
            if left == 0 { Step::Producer } else { step }
        });
        assert_eq!(polled, 4, "slept on a completion in order {order:#b}");
    }
}

#[test]
fn the_ring_never_grows_beyond_its_capacity() {
    let cq = make(9, 0, 4, None);
    for wr_id in 0..20 {
        let _ = cq.push(completion(wr_id));
    }
    assert_eq!((cq.len(), cq.capacity()), (4, 4));
}

#[test]
fn without_arming_there_is_no_event() {
    let (channel, cq) = pair();
    cq.push(completion(1)).unwrap();
    cq.push(failed(1)).unwrap();
    assert!(channel.try_get_event().is_none());
    assert!(!is_readable(&channel));
}

#[test]
fn what_was_there_before_arming_sends_no_event() {
    let (channel, cq) = pair();
    assert!(!cq.arm(Notify::Solicited));
    cq.push(completion(1)).unwrap();
    assert!(
        cq.arm(Notify::Any),
        "the program is told that it has to poll"
    );
    assert_eq!(channel.waiting(), 0);
    cq.push(completion(2)).unwrap();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn one_arming_is_one_event() {
    let (channel, cq) = pair();
    cq.arm(Notify::Any);
    cq.arm(Notify::Any);
    cq.push(completion(1)).unwrap();
    cq.push(completion(2)).unwrap();
    assert_eq!(channel.waiting(), 1);
    cq.arm(Notify::Any);
    cq.push(completion(3)).unwrap();
    assert_eq!(channel.waiting(), 2);
}

#[test]
fn a_solicited_arming_waits_for_a_solicited_completion() {
    let (channel, cq) = pair();
    cq.arm(Notify::Solicited);
    cq.push(completion(1)).unwrap();
    assert_eq!(channel.waiting(), 0);
    cq.push(solicited(2)).unwrap();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn an_error_fires_a_solicited_arming_too() {
    let (channel, cq) = pair();
    cq.arm(Notify::Solicited);
    cq.push(failed(1)).unwrap();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn arming_for_any_is_not_taken_back_by_arming_for_solicited() {
    let (channel, cq) = pair();
    cq.arm(Notify::Any);
    cq.arm(Notify::Solicited);
    cq.push(completion(1)).unwrap();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn arming_for_any_widens_an_arming_for_solicited() {
    let (channel, cq) = pair();
    cq.arm(Notify::Solicited);
    cq.arm(Notify::Any);
    cq.push(completion(1)).unwrap();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn a_lost_completion_wakes_the_program_too() {
    let channel = CompletionChannel::new().unwrap();
    let cq = make(1, 0, 1, Some(&channel));
    cq.push(completion(1)).unwrap();
    cq.arm(Notify::Any);
    cq.push(completion(2)).unwrap_err();
    assert_eq!(channel.waiting(), 1);
}

#[test]
fn the_descriptor_is_readable_exactly_while_events_wait() {
    let (channel, cq) = pair();
    for wr_id in 0..2 {
        cq.arm(Notify::Any);
        cq.push(completion(wr_id)).unwrap();
    }
    assert!(is_readable(&channel));
    let event = channel.get_event(None).unwrap();
    assert_eq!((event.cq_num(), event.context()), (3, 0xc0ffee));
    assert!(is_readable(&channel));
    drop(channel.try_get_event().unwrap());
    assert!(!is_readable(&channel));
}

#[test]
fn waiting_for_an_event_ends_in_time_or_with_the_event() {
    let (channel, cq) = pair();
    let wait = Duration::from_millis(20);
    let start = Instant::now();
    assert!(matches!(
        channel.get_event(Some(wait)),
        Err(ChannelError::TimedOut(_))
    ));
    assert!(start.elapsed() >= wait);
    cq.arm(Notify::Any);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(wait);
            cq.push(completion(1)).unwrap();
        });
        assert!(channel.get_event(Some(Duration::from_secs(10))).is_ok());
    });
}

#[test]
fn a_descriptor_made_non_blocking_is_honoured() {
    let (channel, _cq) = pair();
    rustix::fs::fcntl_setfl(&channel, rustix::fs::OFlags::NONBLOCK).unwrap();
    assert!(matches!(
        channel.get_event(None),
        Err(ChannelError::WouldBlock)
    ));
}

#[test]
fn dropping_a_queue_takes_its_undelivered_events_back() {
    let (channel, cq) = pair();
    let other = make(4, 44, 8, Some(&channel));
    assert_eq!(channel.cq_count(), 2);
    for cq in [&cq, &other, &cq] {
        cq.arm(Notify::Any);
        cq.push(completion(1)).unwrap();
    }
    assert_eq!(channel.waiting(), 3);
    drop(cq);
    assert_eq!((channel.waiting(), channel.cq_count()), (1, 1));
    assert_eq!(channel.get_event(None).unwrap().context(), 44);
    assert!(!is_readable(&channel));
}

#[test]
fn destroying_waits_for_the_ack_of_a_delivered_event() {
    let (channel, cq) = pair();
    cq.arm(Notify::Any);
    cq.push(completion(1)).unwrap();
    let event = channel.get_event(None).unwrap();
    assert_eq!(cq.unacked(), 1);
    assert!(!cq.end_events(Some(Duration::from_millis(5))));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(10));
            drop(event);
        });
        assert!(cq.end_events(None));
    });
}

#[test]
fn the_end_of_events_takes_undelivered_ones_back() {
    let (channel, cq) = pair();
    for _ in 0..2 {
        cq.arm(Notify::Any);
        cq.push(completion(1)).unwrap();
    }
    cq.arm(Notify::Any);
    assert!(cq.end_events(Some(Duration::ZERO)));
    cq.push(completion(2)).unwrap();
    assert_eq!((channel.waiting(), channel.cq_count()), (0, 1));
    assert!(!is_readable(&channel));
    drop(cq);
    assert_eq!(channel.cq_count(), 0);
}

#[test]
fn events_may_be_acknowledged_later_and_too_often() {
    let (channel, cq) = pair();
    cq.arm(Notify::Any);
    cq.push(completion(1)).unwrap();
    channel.get_event(None).unwrap().ack_later();
    assert_eq!(cq.unacked(), 1);
    cq.ack_events(50);
    assert_eq!(cq.unacked(), 0);
    assert!(cq.end_events(Some(Duration::ZERO)));
}

#[test]
fn the_total_of_acknowledgements_counts() {
    let (channel, cq) = pair();
    let take_one = || {
        cq.arm(Notify::Any);
        cq.push(completion(1)).unwrap();
        channel.get_event(None).unwrap().ack_later();
        cq.poll(&mut [Completion::default(); 1]);
    };
    take_one();
    cq.ack_events(2);
    take_one();
    assert_eq!(cq.unacked(), 0);
    assert!(cq.end_events(Some(Duration::ZERO)));
    take_one();
    assert_eq!(cq.unacked(), 1);
    assert!(!cq.end_events(Some(Duration::ZERO)));
}

#[test]
fn a_delivered_event_stays_good_when_the_queue_is_dropped() {
    let (channel, cq) = pair();
    cq.arm(Notify::Any);
    cq.push(completion(1)).unwrap();
    let event = channel.get_event(None).unwrap();
    let weak = Arc::downgrade(&cq);
    drop(cq);
    assert_eq!(event.cq_num(), 3);
    event.ack_later();
    assert!(weak.upgrade().is_none());
    assert_eq!(channel.cq_count(), 0);
}

#[test]
fn a_waiting_thread_is_woken_by_what_is_pushed_while_it_waits() {
    let (_, cq) = pair();
    cq.push(completion(0)).unwrap();
    let guard = cq.wait_guard().unwrap();
    assert!(!is_readable(guard.fd()), "nobody waited when that came");
    for wr_id in 1..4 {
        cq.push(completion(wr_id)).unwrap();
    }
    assert!(is_readable(guard.fd()));
    guard.clear();
    assert!(!is_readable(guard.fd()));
    cq.wake_waiters();
    assert!(is_readable(guard.fd()));
    guard.clear();
    drop(guard);
    cq.push(completion(4)).unwrap();
    assert!(!is_readable(cq.wait_guard().unwrap().fd()));
}

#[test]
fn a_thread_that_stops_waiting_passes_the_wake_up_on() {
    let (_, cq) = pair();
    let (one, two) = (cq.wait_guard().unwrap(), cq.wait_guard().unwrap());
    cq.push(completion(1)).unwrap();
    cq.push(completion(2)).unwrap();
    one.clear();
    assert!(cq.poll_one().is_some());
    assert!(!is_readable(two.fd()));
    drop(one);
    assert!(is_readable(two.fd()));
}

/// Sleeps as the library's own wait does, but with one guard for many sleeps.
fn wait_for_completions(cq: &CqInner, count: u64) -> u64 {
    let guard = cq.wait_guard().unwrap();
    let (mut sum, mut left) = (0, count);
    while left > 0 {
        if let Some(completion) = cq.poll_one() {
            sum += completion.wr_id;
            left -= 1;
            continue;
        }
        let fd = guard.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(
            poll(&mut fds, Some(&limit)).unwrap(),
            1,
            "the wake-up was lost"
        );
        guard.clear();
    }
    sum
}

#[test]
fn no_wake_up_is_lost_between_waiting_threads() {
    for threads in 1..4 {
        let cq = make(1, 0, 64, None);
        let rounds = 3000;
        let total = rounds * threads;
        let deadline = Instant::now() + Duration::from_secs(60);
        thread::scope(|scope| {
            let wait = || wait_for_completions(&cq, rounds);
            let waiters: Vec<_> = (0..threads).map(|_| scope.spawn(wait)).collect();
            for wr_id in 0..total {
                while cq.len() == cq.capacity() {
                    assert!(Instant::now() < deadline, "nobody takes the completions");
                    thread::yield_now();
                }
                cq.push(completion(wr_id)).unwrap();
            }
            let sum: u64 = waiters
                .into_iter()
                .map(|waiter| waiter.join().unwrap())
                .sum();
            assert_eq!(sum, (0..total).sum());
        });
    }
}

#[test]
fn an_armed_program_never_sleeps_on_a_completion() {
    let channel = CompletionChannel::new().unwrap();
    let cq = make(1, 0, 4096, Some(&channel));
    let total = 3000;
    let sleeping = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for wr_id in 0..total {
                cq.push(completion(wr_id)).unwrap();
                if sleeping.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < total {
            cq.arm(Notify::Any);
            // Completions before the arming are polled; those after it send the event.
            let mut polled = 0;
            while let Some(completion) = cq.poll_one() {
                assert_eq!(completion.wr_id, next);
                next += 1;
                polled += 1;
            }
            if polled == 0 && next < total {
                sleeping.store(true, Ordering::Relaxed);
                drop(channel.get_event(Some(Duration::from_secs(20))).unwrap());
                sleeping.store(false, Ordering::Relaxed);
            }
        }
    });
}

#[test]
fn a_queue_for_more_than_there_is_memory_is_an_error() {
    assert!(CqInner::new(1, 0, usize::MAX, None).is_err());
}
