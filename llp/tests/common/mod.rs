//! Test scenarios for every `Network`, and helpers that wait only on `fd()` and `deadline()`.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod carried;
pub(crate) mod seen;
pub(crate) mod skipping;

use std::cell::Cell;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_llp::{Llp, LlpError, LlpListener, Network, Piece, Recv, SendHints};
pub(crate) use uwarp_testkit::Random;

/// Time without progress after which a test counts as hanging. No test comes near it.
const STALLED: Duration = Duration::from_secs(300);

/// A test counts as hanging after this number of deadlines in a row without a ready descriptor.
const MAX_TIMERS: u32 = 2_000;

/// Conditions to wait for: a descriptor, whether "writable" counts, and a deadline.
pub(crate) struct Wait<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) write: bool,
    pub(crate) deadline: Option<Instant>,
}

impl<'a> Wait<'a> {
    pub(crate) fn connection(llp: &'a dyn Llp, write: bool) -> Self {
        let write = write && llp.wants_write_event();
        Self {
            fd: llp.fd(),
            write,
            deadline: llp.deadline(),
        }
    }

    pub(crate) fn listener(listener: &'a dyn LlpListener) -> Self {
        Self {
            fd: listener.fd(),
            write: false,
            deadline: listener.deadline(),
        }
    }
}

/// Waits until one of the descriptors is ready or the first deadline is reached.
pub(crate) fn wait(what: &[Wait<'_>]) {
    let mut fds: Vec<_> = what
        .iter()
        .map(|wait| {
            let flags = if wait.write {
                PollFlags::IN | PollFlags::OUT
            } else {
                PollFlags::IN
            };
            PollFd::from_borrowed_fd(wait.fd, flags)
        })
        .collect();
    let deadline = what.iter().filter_map(|wait| wait.deadline).min();
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    // The time is rounded up, because `poll` must not return before the deadline.
    let limit = left.map_or(STALLED, |left| {
        (left + Duration::from_millis(1)).min(STALLED)
    });
    let timeout = Timespec::try_from(limit).unwrap();
    let ready = rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
    assert!(
        ready > 0 || limit < STALLED,
        "nothing happened for {STALLED:?}: a wake-up was lost"
    );
    thread_local!(static TIMERS: Cell<u32> = const { Cell::new(0) });
    let timers = if ready > 0 { 0 } else { TIMERS.get() + 1 };
    TIMERS.set(timers);
    assert!(
        timers < MAX_TIMERS,
        "only timers fire: a packet or a wake-up was lost"
    );
}

/// Makes a connection between two networks. Returns the client's end and the server's end.
pub(crate) fn connected(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) -> (Box<dyn Llp>, Box<dyn Llp>) {
    let mut listener = server.listen(at, 8).unwrap();
    let mut connecting = client.connect(None, listener.local_addr()).unwrap();
    let accepted = accept_and_connect(&mut *listener, &mut *connecting);
    assert_eq!(connecting.local_addr(), accepted.peer_addr());
    assert_eq!(connecting.peer_addr(), accepted.local_addr());
    (connecting, accepted)
}

pub(crate) fn accept_and_connect(
    listener: &mut dyn LlpListener,
    client: &mut dyn Llp,
) -> Box<dyn Llp> {
    let mut server = None;
    loop {
        client.clear_readiness();
        client.drive();
        listener.clear_readiness();
        let stands = client.connect_progress().unwrap();
        if server.is_none() {
            server = listener.try_accept().unwrap();
        }
        match server {
            Some(server) if stands => return server,
            _ => wait(&[Wait::connection(client, !stands), Wait::listener(listener)]),
        }
    }
}

type Connections = Vec<Box<dyn Llp>>;

/// Opens this many connections at the same time through one listener. Returns the clients and the
/// servers.
pub(crate) fn connected_at_once(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
    count: u32,
) -> (Connections, Connections) {
    let mut listener = server.listen(at, count).unwrap();
    let to = listener.local_addr();
    let mut clients: Vec<_> = (0..count)
        .map(|_| client.connect(None, to).unwrap())
        .collect();
    let mut servers = Vec::new();
    loop {
        listener.clear_readiness();
        while let Some(server) = listener.try_accept().unwrap() {
            servers.push(server);
        }
        let mut standing = 0;
        for client in &mut clients {
            client.clear_readiness();
            client.drive();
            standing += u32::from(client.connect_progress().unwrap());
        }
        if standing == count && servers.len() == count as usize {
            return (clients, servers);
        }
        let mut all = vec![Wait::listener(&*listener)];
        all.extend(
            clients
                .iter()
                .map(|client| Wait::connection(&**client, true)),
        );
        wait(&all);
    }
}

/// Waits for the failure of a connection attempt. Returns its error.
pub(crate) fn failed_attempt(llp: &mut dyn Llp) -> LlpError {
    loop {
        llp.clear_readiness();
        llp.drive();
        match llp.connect_progress() {
            Ok(true) => panic!("connected without a listener"),
            Ok(false) => wait(&[Wait::connection(llp, true)]),
            Err(error) => return error,
        }
    }
}

/// One end of a transfer, with the bytes to send and the bytes received.
pub(crate) struct End {
    pub(crate) llp: Box<dyn Llp>,
    pub(crate) to_send: Vec<u8>,
    pub(crate) sent: usize,
    pub(crate) got: Vec<u8>,
    /// True if a FIN follows the last byte.
    pub(crate) finish: bool,
    finished: bool,
    pub(crate) peer_closed: bool,
    random: Random,
    buffer: Vec<u8>,
    largest: usize,
    /// Ends of the FPDUs in the sent stream, if it has any.
    pub(crate) ends: Vec<u64>,
    whole_fpdus: bool,
}

impl End {
    pub(crate) fn new(llp: Box<dyn Llp>, to_send: Vec<u8>, seed: u64) -> Self {
        Self {
            llp,
            to_send,
            sent: 0,
            got: Vec::new(),
            finish: true,
            finished: false,
            peer_closed: false,
            random: Random(seed | 1),
            buffer: vec![0; 256 << 10],
            largest: 20_000,
            ends: Vec::new(),
            whole_fpdus: false,
        }
    }

    /// Divides the stream into FPDUs of up to `longest` bytes.
    pub(crate) fn with_fpdus(mut self, longest: usize) -> Self {
        let mut at = 0;
        while at < self.to_send.len() {
            at = self.to_send.len().min(at + 1 + self.random.below(longest));
            self.ends.push(at as u64);
        }
        self
    }

    /// Sends and receives in large runs.
    pub(crate) fn bulk(mut self) -> Self {
        self.largest = 1 << 20;
        self
    }

    /// Makes every call offer at least one complete FPDU. A call that ends within its first FPDU
    /// would send a part of it.
    pub(crate) fn whole_fpdus(mut self) -> Self {
        self.whole_fpdus = true;
        self
    }

    /// Minimum number of bytes that the next call offers.
    fn least(&self) -> usize {
        let next = self.ends.partition_point(|end| *end <= self.sent as u64);
        match self.ends.get(next) {
            Some(end) if self.whole_fpdus => *end as usize - self.sent,
            _ => 0,
        }
    }

    /// Offers some of the remaining bytes, in pieces of random sizes. Returns true if any were
    /// accepted.
    fn send_some(&mut self) -> Result<bool, LlpError> {
        let rest = &self.to_send[self.sent..];
        let offered = rest.len().min(1 + self.random.below(self.largest));
        let offered = offered.max(self.least());
        let mut pieces = Vec::new();
        let mut at = 0;
        while at < offered {
            let len = (self.random.below(self.largest / 8 + 1)).min(offered - at);
            pieces.push(Piece::from(&rest[at..at + len]));
            at += len;
        }
        let hints = SendHints::new(self.sent as u64, &self.ends);
        let taken = self.llp.try_send(&pieces, hints)?;
        assert!(taken <= offered);
        self.sent += taken;
        Ok(taken > 0)
    }

    fn receive_some(&mut self) -> Result<bool, LlpError> {
        let room = 1 + self.random.below(self.largest.min(self.buffer.len()));
        match self.llp.try_recv(&mut self.buffer[..room])? {
            Recv::Data(count) => {
                assert!((1..=room).contains(&count));
                self.got.extend_from_slice(&self.buffer[..count]);
                Ok(true)
            }
            Recv::WouldBlock => Ok(false),
            Recv::Closed => {
                self.peer_closed = true;
                Ok(false)
            }
        }
    }

    /// Sends and receives until neither is possible without waiting.
    pub(crate) fn step(&mut self) -> Result<(), LlpError> {
        self.llp.clear_readiness();
        self.llp.drive();
        loop {
            let mut progress = false;
            if self.sent < self.to_send.len() {
                progress |= self.send_some()?;
            }
            if self.sent == self.to_send.len() && self.finish && !self.finished {
                self.llp.shutdown()?;
                self.finished = true;
            }
            if !self.peer_closed {
                progress |= self.receive_some()?;
            }
            if !progress {
                return Ok(());
            }
        }
    }

    pub(crate) fn done(&mut self) -> bool {
        self.sent == self.to_send.len() && self.peer_closed && self.llp.flushed()
    }

    pub(crate) fn waiting(&self) -> Wait<'_> {
        Wait::connection(&*self.llp, self.sent < self.to_send.len())
    }

    /// Drives this end until `enough` returns true.
    pub(crate) fn run_until(&mut self, enough: impl Fn(&Self) -> bool) {
        loop {
            self.step().unwrap();
            if enough(self) {
                return;
            }
            wait(&[self.waiting()]);
        }
    }

    /// Drives only this end until it is done, while another thread drives the other end. Returns
    /// the received bytes. The connection is then dropped. If the acknowledgement of the peer's FIN
    /// was lost, the stack has to answer the repeated FIN.
    pub(crate) fn run_to_the_end(mut self) -> Vec<u8> {
        loop {
            self.step().unwrap();
            if self.done() {
                return self.got;
            }
            // A kernel socket does not signal the acknowledgement of its last byte.
            if self.peer_closed && self.sent == self.to_send.len() && self.llp.wants_write_event() {
                std::thread::yield_now();
            } else {
                wait(&[self.waiting()]);
            }
        }
    }
}

/// Drives both ends from one thread until both are done.
pub(crate) fn run_both(one: &mut End, other: &mut End) {
    loop {
        one.step().unwrap();
        other.step().unwrap();
        if one.done() && other.done() {
            return;
        }
        let all_sent = [&*one, &*other]
            .iter()
            .all(|end| end.sent == end.to_send.len() && end.peer_closed);
        if !(all_sent && one.llp.wants_write_event()) {
            wait(&[one.waiting(), other.waiting()]);
        }
    }
}

pub(crate) fn random_data_crosses_in_random_pieces(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
    bytes: usize,
) {
    for seed in 1..4 {
        let (a, b) = connected(client, server, at);
        let mut random = Random(0x9e37_79b9 * seed);
        let (from_a, from_b) = (random.bytes(bytes), random.bytes(bytes / 2));
        let mut a = End::new(a, from_a, seed);
        let mut b = End::new(b, from_b, seed + 77);
        run_both(&mut a, &mut b);
        assert!(a.got == b.to_send, "seed {seed}");
        assert!(b.got == a.to_send, "seed {seed}");
    }
}

pub(crate) fn nobody_listens_is_refused(client: &dyn Network, to: SocketAddr) {
    let error = match client.connect(None, to) {
        Ok(mut llp) => {
            let error = failed_attempt(&mut *llp);
            assert_eq!(llp.connect_progress(), Err(error), "an error stays");
            error
        }
        Err(error) => error,
    };
    assert_eq!(error, LlpError::Refused { addr: to });
}

pub(crate) fn an_abort_is_a_reset_at_the_peer(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    let (mut a, mut b) = connected(client, server, at);
    assert_eq!(
        a.try_send(&[Piece::from(b"unread")], SendHints::NONE),
        Ok(6)
    );
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&a.fd());
    a.abort();
    assert_eq!(std::os::fd::AsRawFd::as_raw_fd(&a.fd()), descriptor);
    let broken = LlpError::Broken {
        addr: a.peer_addr(),
    };
    assert_eq!(a.try_recv(&mut [0; 9]), Err(broken));
    assert_eq!(
        a.try_send(&[Piece::from(b"x")], SendHints::NONE),
        Err(broken)
    );
    let error = loop {
        b.clear_readiness();
        b.drive();
        match b.try_recv(&mut [0; 9]) {
            Ok(Recv::WouldBlock) => wait(&[Wait::connection(&*b, false)]),
            Ok(Recv::Data(_)) => {}
            Ok(Recv::Closed) => panic!("a FIN instead of a reset"),
            Err(error) => break error,
        }
    };
    assert_eq!(
        error,
        LlpError::Reset {
            addr: b.peer_addr()
        }
    );
    assert!(b.try_send(&[Piece::from(b"x")], SendHints::NONE).is_err());
    assert!(!b.flushed());
}

pub(crate) fn a_fin_comes_after_all_bytes_and_leaves_the_other_direction_open(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    let (a, b) = connected(client, server, at);
    let data = Random(5).bytes(3_000_000);
    let mut a = End::new(a, data, 3).bulk();
    let mut b = End::new(b, Vec::new(), 4);
    b.finish = false;
    while !b.peer_closed {
        a.step().unwrap();
        b.step().unwrap();
        if !b.peer_closed {
            wait(&[a.waiting(), b.waiting()]);
        }
    }
    assert!(b.got == a.to_send);
    assert_eq!(
        b.llp.try_recv(&mut [0; 4]),
        Ok(Recv::Closed),
        "it stays closed"
    );
    assert_eq!(
        a.llp.try_send(&[Piece::from(b"late")], SendHints::NONE),
        Err(LlpError::Broken {
            addr: a.llp.peer_addr()
        })
    );
    assert_eq!(a.llp.shutdown(), Ok(()), "a second one does nothing");
    b.to_send = b"the other direction".to_vec();
    b.finish = true;
    run_both(&mut a, &mut b);
    assert_eq!(a.got, b"the other direction");
}

/// The client closes first, so that its port is in TIME-WAIT.
pub(crate) fn the_port_of_a_client_that_has_closed_can_be_listened_at(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    let mut listener = server.listen(at, 8).unwrap();
    let to = listener.local_addr();
    let any_port = SocketAddr::new(client.source_for(to).unwrap(), 0);
    for connect in [
        client.connect(None, to),
        client.connect(Some(any_port), to),
        client.reserve(any_port).unwrap().connect(to),
    ] {
        let mut connecting = connect.unwrap();
        let accepted = accept_and_connect(&mut *listener, &mut *connecting);
        let local = connecting.local_addr();
        let (mut a, mut b) = (
            End::new(connecting, Vec::new(), 1),
            End::new(accepted, Vec::new(), 2),
        );
        b.finish = false;
        while !b.peer_closed {
            a.step().unwrap();
            b.step().unwrap();
            if !b.peer_closed {
                wait(&[a.waiting(), b.waiting()]);
            }
        }
        b.finish = true;
        run_both(&mut a, &mut b);
        drop((a, b));
        drop(client.listen(local, 1).unwrap());
        client.reserve(local).unwrap().listen(1).unwrap();
    }
}

pub(crate) fn flushed_waits_for_the_peers_acknowledgement(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    let (mut a, b) = connected(client, server, at);
    assert!(a.flushed(), "nothing was sent");
    // The loop sends until the send buffer and the peer's receive buffer are full. The peer does
    // not read.
    let data = vec![7; 1 << 20];
    let mut taken = 0;
    loop {
        match a.try_send(&[Piece::from(&data)], SendHints::NONE).unwrap() {
            0 if taken > 0 => break,
            count => taken += count,
        }
    }
    assert!(!a.flushed());
    let mut b = End::new(b, Vec::new(), 1).bulk();
    b.finish = false;
    while b.got.len() < taken {
        a.clear_readiness();
        a.drive();
        b.step().unwrap();
        if b.got.len() < taken {
            wait(&[Wait::connection(&*a, false), b.waiting()]);
        }
    }
    while !a.flushed() {
        a.drive();
        b.llp.drive();
        std::thread::yield_now();
    }
}

/// The count falls as the peer acknowledges bytes, does not include the FIN, and remains after a
/// reset.
pub(crate) fn unacknowledged_counts_what_the_peer_has_not_taken(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    for resets in [false, true] {
        let (mut a, b) = connected(client, server, at);
        assert_eq!(a.unacknowledged(), 0, "nothing was sent");
        // The loop sends until the send buffer and the peer's receive buffer are full. The peer
        // does not read.
        let data = vec![7; 16 << 20];
        let mut sent = 0;
        loop {
            match a.try_send(&[Piece::from(&data)], SendHints::NONE).unwrap() {
                0 if sent > 0 => break,
                count => sent += count,
            }
        }
        a.shutdown().unwrap();
        // The peer's TCP acknowledges only the bytes for which it has room.
        let mut left = a.unacknowledged();
        assert!((1..=sent).contains(&left), "{left} of {sent}");
        let mut b = End::new(b, Vec::new(), 1).bulk();
        b.finish = false;
        if resets {
            b.llp.abort();
            while a.lost().is_none() {
                a.clear_readiness();
                a.drive();
                b.llp.drive();
            }
            assert!((1..=left).contains(&a.unacknowledged()));
            continue;
        }
        while !b.peer_closed {
            a.clear_readiness();
            a.drive();
            b.step().unwrap();
            let now = a.unacknowledged();
            assert!(now <= left, "{now} after {left}");
            left = now;
            if !b.peer_closed {
                wait(&[Wait::connection(&*a, false), b.waiting()]);
            }
        }
        assert_eq!(b.got.len(), sent);
        while !a.flushed() {
            a.drive();
            b.llp.drive();
            std::thread::yield_now();
        }
        assert_eq!(a.unacknowledged(), 0);
    }
}

pub(crate) fn both_directions_at_once_from_two_threads(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
    bytes: usize,
) {
    let (a, b) = connected(client, server, at);
    let mut random = Random(bytes as u64);
    let a = End::new(a, random.bytes(bytes), 8).bulk();
    let b = End::new(b, random.bytes(bytes), 9).bulk();
    let (of_a, of_b) = (a.to_send.clone(), b.to_send.clone());
    std::thread::scope(|scope| {
        let a = scope.spawn(|| a.run_to_the_end());
        assert!(b.run_to_the_end() == of_a);
        assert!(a.join().unwrap() == of_b);
    });
}

/// Sends messages of eight bytes back and forth. If one of them stalls, the test hangs.
pub(crate) fn small_messages_go_there_and_back(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
    count: usize,
) {
    let (mut a, mut b) = connected(client, server, at);
    let exchange = |llp: &mut dyn Llp, first: bool| {
        let mut bytes = [0; 8];
        for number in 0..count as u64 {
            if first {
                assert_eq!(
                    llp.try_send(&[Piece::from(&number.to_be_bytes())], SendHints::NONE),
                    Ok(8)
                );
            }
            let mut have = 0;
            while have < 8 {
                llp.clear_readiness();
                llp.drive();
                match llp.try_recv(&mut bytes[have..]).unwrap() {
                    Recv::Data(got) => have += got,
                    Recv::WouldBlock => wait(&[Wait::connection(llp, false)]),
                    Recv::Closed => panic!("closed without a close"),
                }
            }
            assert_eq!(u64::from_be_bytes(bytes), number);
            if !first {
                assert_eq!(llp.try_send(&[Piece::from(&bytes)], SendHints::NONE), Ok(8));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&mut *b, false));
        exchange(&mut *a, true);
    });
}

pub(crate) fn a_reset_and_a_fin_are_told_apart_without_reading(
    client: &dyn Network,
    server: &dyn Network,
    at: SocketAddr,
) {
    let (mut a, mut b) = connected(client, server, at);
    assert_eq!(b.lost(), None);
    let bytes = [Piece::from(b"not read")];
    assert_eq!(a.try_send(&bytes, SendHints::NONE), Ok(8));
    for _ in 0..100 {
        a.drive();
        assert!(!b.peer_closed());
    }
    a.shutdown().unwrap();
    let began = Instant::now();
    while !b.peer_closed() {
        a.drive();
        assert!(began.elapsed() < STALLED, "the FIN is not reported");
    }
    for _ in 0..100 {
        a.drive();
        assert_eq!(b.lost(), None, "the bytes and the FIN wait to be read");
    }
    let (mut a, mut b) = connected(client, server, at);
    assert_eq!(a.try_send(&bytes, SendHints::NONE), Ok(8));
    a.abort();
    let addr = b.peer_addr();
    let error = loop {
        a.drive();
        match b.lost() {
            Some(error) => break error,
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(error, LlpError::Reset { addr });
    assert!(b.lost().is_some(), "it stays lost");
}
