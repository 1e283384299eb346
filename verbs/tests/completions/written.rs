//! `Settings::event_on_write`: a Write of the peer wakes a program that waits without outstanding
//! requests.

use super::*;

/// A connection whose responder waits for events of its send CQ, with memory that the peer may
/// write.
struct Sleeper {
    a: Side,
    qp: Qp,
    send_cq: CqHandle,
    recv_cq: CqHandle,
    channel: CompletionChannel,
    memory: MemoryRegion,
}

/// Connects a [`Sleeper`]. `one_cq`: its receives and its requests complete to the same CQ.
fn sleeper(wire: Wire, event_on_write: bool, one_cq: bool) -> Sleeper {
    let mut setup = Setup::new(wire);
    setup.settings[1].event_on_write = event_on_write;
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let channel = b.device.create_channel().unwrap();
    let send_cq = b.device.create_cq_on(64, &channel, 7).unwrap();
    let recv_cq = match one_cq {
        true => send_cq.clone(),
        false => b.device.create_cq_on(64, &channel, 8).unwrap(),
    };
    let qp =
        b.pd.create_qp(&send_cq, &recv_cq, QpCaps::default())
            .unwrap();
    let memory = b.blank(64);
    join(&listener, &a.qp, &qp, &setup.connect, &setup.accept);
    let s = Sleeper {
        a,
        qp,
        send_cq: CqHandle(send_cq),
        recv_cq: CqHandle(recv_cq),
        channel,
        memory,
    };
    // The client sends first. The QP then posts a request, because a QP without any posts gets no
    // such events.
    s.write(u64::MAX);
    s.qp.post_send(&SendWr::write_inline(9, &[], RemoteBuffer::at(0, 0)))
        .unwrap();
    s.send_cq.success(9);
    s
}

impl Sleeper {
    /// Writes a word as the peer, and returns when the word is in memory.
    fn write(&self, word: u64) {
        let (addr, rkey) = (self.memory.addr(), self.memory.rkey());
        let bytes = word.to_be_bytes();
        let wr = SendWr::write_inline(1, &bytes, RemoteBuffer::at(addr, rkey));
        self.a.qp.post_send(&wr).unwrap();
        self.a.send_cq.success(1);
        until("the Write is placed", || {
            let mut bytes = [0; 8];
            self.memory.read_at(0, &mut bytes).unwrap();
            u64::from_be_bytes(bytes) == word
        });
    }

    /// Reads from this side as the peer. The response shows that this side has processed all
    /// earlier Writes and raised their events.
    fn round_trip(&self) {
        let sink = self.a.blank(8);
        let sges = [sink.sge(0, 8)];
        let read = SendWr::read(
            2,
            &sges,
            RemoteBuffer::at(self.memory.addr(), self.memory.rkey()),
        );
        self.a.qp.post_send(&read).unwrap();
        self.a.send_cq.success(2);
    }

    #[track_caller]
    fn event(&self) {
        let event = self.channel.get_event(Some(LIMIT)).unwrap();
        assert_eq!(event.context(), 7);
    }

    #[track_caller]
    fn no_event(&self) {
        self.round_trip();
        assert_eq!(self.channel.waiting(), 0);
    }
}

#[test]
fn a_write_is_an_event_for_a_program_that_waits_with_nothing_outstanding() {
    for wire in Wire::BOTH {
        for one_cq in [true, false] {
            let s = sleeper(wire, true, one_cq);
            s.write(1);
            s.no_event();
            for word in 2..20 {
                assert!(!s.send_cq.req_notify(Notify::Any));
                s.write(word);
                s.event();
                assert_eq!(s.send_cq.poll_one(), None);
                // The CQ must be armed again before the next event.
                s.write(100 + word);
                s.no_event();
            }
        }
    }
}

#[test]
fn a_write_is_no_event_unless_the_device_is_told_so() {
    let s = sleeper(Wire::Kernel, false, true);
    s.send_cq.req_notify(Notify::Any);
    s.write(1);
    s.no_event();
}

#[test]
fn a_write_is_no_event_for_who_waits_for_a_receive() {
    let s = sleeper(Wire::Kernel, true, true);
    s.qp.post_recv(&RecvWr::new(3, &[])).unwrap();
    s.send_cq.req_notify(Notify::Any);
    s.write(1);
    s.no_event();
    s.a.qp.post_send(&SendWr::send(4, &[])).unwrap();
    s.event();
    s.send_cq.success(3);
}

#[test]
fn a_write_is_no_event_of_the_cq_of_receives() {
    let s = sleeper(Wire::Kernel, true, false);
    s.recv_cq.req_notify(Notify::Any);
    s.write(1);
    s.no_event();
}

#[test]
fn a_write_is_no_event_for_who_waits_for_solicited_completions() {
    let s = sleeper(Wire::Kernel, true, true);
    s.send_cq.req_notify(Notify::Solicited);
    s.write(1);
    s.no_event();
}

#[test]
fn a_write_of_no_bytes_is_no_event() {
    let s = sleeper(Wire::Kernel, true, true);
    s.send_cq.req_notify(Notify::Any);
    let wr = SendWr::write_inline(1, &[], RemoteBuffer::at(0, 0));
    s.a.qp.post_send(&wr).unwrap();
    s.a.send_cq.success(1);
    s.no_event();
}

/// The CQ has so many QPs that it drives them as a group.
#[test]
fn a_write_is_an_event_also_of_a_cq_with_many_queue_pairs() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[1].event_on_write = true;
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let channel = b.device.create_channel().unwrap();
    let cq = b.device.create_cq_on(64, &channel, 7).unwrap();
    let memory = b.blank(64);
    let pairs: Vec<_> = (0..9)
        .map(|_| {
            let (client, qp) = (
                a.another_qp(),
                b.pd.create_qp(&cq, &cq, QpCaps::default()).unwrap(),
            );
            join(&listener, &client, &qp, &setup.connect, &setup.accept);
            (client, qp)
        })
        .collect();
    for (client, qp) in &pairs {
        client
            .post_send(&SendWr::write_inline(9, &[], RemoteBuffer::at(0, 0)))
            .unwrap();
        a.send_cq.success(9);
        qp.post_send(&SendWr::write_inline(9, &[], RemoteBuffer::at(0, 0)))
            .unwrap();
        assert_eq!(cq.wait(Some(LIMIT)).unwrap().wr_id, 9);
    }
    for word in 0..200_u64 {
        cq.req_notify(Notify::Any);
        let (client, _) = &pairs[word as usize % pairs.len()];
        let bytes = word.to_be_bytes();
        let wr = SendWr::write_inline(word, &bytes, RemoteBuffer::at(memory.addr(), memory.rkey()));
        client.post_send(&wr).unwrap();
        a.send_cq.success(word);
        let event = channel.get_event(Some(LIMIT)).unwrap();
        assert_eq!((event.context(), cq.poll_one()), (7, None));
        drop(event);
        assert_eq!(channel.waiting(), 0);
    }
}

/// A thread that arms the CQ and then reads the memory either finds the Write there or gets its
/// event, whatever the timing. (On x86 the locks order the two in any case.)
#[test]
fn a_write_beside_the_arming_is_in_memory_or_sends_the_event() {
    for wire in Wire::BOTH {
        let s = sleeper(wire, true, true);
        std::thread::scope(|scope| {
            let (next, asked) = std::sync::mpsc::channel::<u64>();
            let from = &s;
            scope.spawn(move || {
                for word in asked {
                    let (addr, rkey) = (from.memory.addr(), from.memory.rkey());
                    let bytes = word.to_be_bytes();
                    let wr = SendWr::write_inline(1, &bytes, RemoteBuffer::at(addr, rkey));
                    from.a.qp.post_send(&wr).unwrap();
                    from.a.send_cq.success(1);
                }
            });
            let seen = || {
                let mut bytes = [0; 8];
                s.memory.read_at(0, &mut bytes).unwrap();
                u64::from_be_bytes(bytes)
            };
            for word in 1..3000 {
                next.send(word).unwrap();
                s.send_cq.req_notify(Notify::Any);
                while seen() != word {
                    s.event();
                    s.send_cq.req_notify(Notify::Any);
                }
            }
            drop(next);
        });
    }
}
