//! Many connections whose events are in one channel, served by one thread that sleeps in poll(2).

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::*;

const MANY: u64 = 100;

#[test]
fn a_hundred_connections_are_made_and_ended_by_one_thread_that_polls_one_channel() {
    for (a, b, at) in hosts() {
        // The ids of both hosts use the channel of the first host.
        let channel = &a.channel;
        let fd = channel.as_fd();
        fcntl_setfl(fd, fcntl_getfl(fd).unwrap() | OFlags::NONBLOCK).unwrap();
        let listener = channel.create_id(&b.side.device, LISTENER);
        listener.bind_addr(at).unwrap();
        listener.listen(0).unwrap();
        let to = listener.local_addr().unwrap();

        let mut ids = Vec::new();
        let mut qps: Vec<Qp> = Vec::new();
        for context in 0..MANY {
            let id = a.id(context);
            id.resolve_addr(None, to).unwrap();
            qps.push(a.side.another_qp());
            ids.push(id);
        }
        let (mut established, mut ended) = (0, 0);
        while ended < 2 * MANY {
            let mut fds = [PollFd::new(channel, PollFlags::IN)];
            let limit = Timespec {
                tv_sec: 10,
                tv_nsec: 0,
            };
            assert_eq!(
                poll(&mut fds, Some(&limit)).unwrap(),
                1,
                "{established} {ended}"
            );
            let event = channel.get_event(None).unwrap();
            let id = event.id();
            match event.kind() {
                CmEventKind::AddrResolved => id.resolve_route().unwrap(),
                CmEventKind::RouteResolved => {
                    let qp = &qps[id.context() as usize];
                    id.connect(qp, &ConnectOptions::default()).unwrap();
                }
                CmEventKind::ConnectRequest => {
                    let qp = b.side.another_qp();
                    id.accept(&qp, &AcceptOptions::default()).unwrap();
                    qps.push(qp);
                    ids.push(id.clone());
                }
                CmEventKind::Established => {
                    established += 1;
                    if established == 2 * MANY {
                        ids.iter().for_each(|id| id.disconnect().unwrap());
                    }
                }
                CmEventKind::Disconnected => ended += 1,
                other => panic!("{other:?} {event:?}"),
            }
        }
        assert_eq!(channel.waiting(), 0);
    }
}

/// Ids of many threads share one channel. No event is lost, and none is delivered twice.
#[test]
fn many_threads_connect_while_one_takes_the_events() {
    let (a, b, at) = hosts().swap_remove(0);
    let listener = b.listening(at, 0);
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..MANY {
                b.next(CmEventKind::ConnectRequest)
                    .id()
                    .reject(&RejectOptions::default())
                    .unwrap();
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                let own = EventChannel::new().unwrap();
                let qp = a.side.another_qp();
                for context in 0..MANY / 4 {
                    let id = own.create_id(&a.side.device, context);
                    id.resolve_addr(None, to).unwrap();
                    drop(next(&own, CmEventKind::AddrResolved));
                    id.resolve_route().unwrap();
                    drop(next(&own, CmEventKind::RouteResolved));
                    id.connect(&qp, &ConnectOptions::default()).unwrap();
                    drop(next(&own, CmEventKind::Rejected));
                    id.destroy(None).unwrap();
                    assert!(qp.reset());
                }
            });
        }
    });
    b.nothing_waits();
}
