//! Order of the events of a listener and of the connections that it accepts.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Instant;

use uwarp_verbs::Progress;
use uwarp_verbs::llp::{
    BoundPort, Keepalive, Llp, LlpError, LlpListener, NetworkInfo, NetworkWatcher, Piece, Recv,
    SendHints,
};

use super::*;

/// MPA Request of revision 1, with CRC and without Private Data (RFC 5044 section 7.1.1).
const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";

/// Moment at which the passive side calls the hook.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moment {
    /// The listener has accepted this many connections. The last one has not been used yet.
    Accepted(usize),
    /// An accepted connection is about to send. Its first bytes are the Reply.
    Sends,
}

/// Callback for a [`Moment`].
type Hook = Arc<dyn Fn(Moment) + Send + Sync>;

/// Network over the kernel's TCP that calls a hook.
struct Hooked {
    inner: KernelNetwork,
    hook: Hook,
}

struct Port {
    inner: Box<dyn BoundPort>,
    hook: Hook,
}

struct Listener {
    inner: Box<dyn LlpListener>,
    hook: Hook,
    taken: usize,
}

/// Accepted connection, which calls the hook before it sends.
struct Stream {
    inner: Box<dyn Llp>,
    hook: Hook,
}

impl Network for Hooked {
    fn connect(&self, local: Option<SocketAddr>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        self.inner.connect(local, to)
    }

    fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        self.reserve(addr)?.listen(backlog)
    }

    fn source_for(&self, to: SocketAddr) -> Result<IpAddr, LlpError> {
        self.inner.source_for(to)
    }

    fn reserve(&self, addr: SocketAddr) -> Result<Box<dyn BoundPort>, LlpError> {
        let (inner, hook) = (self.inner.reserve(addr)?, Arc::clone(&self.hook));
        Ok(Box::new(Port { inner, hook }))
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn info(&self) -> NetworkInfo {
        self.inner.info()
    }

    fn watch(&self, watcher: Weak<dyn NetworkWatcher>) {
        self.inner.watch(watcher);
    }
}

impl BoundPort for Port {
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn connect(self: Box<Self>, to: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        self.inner.connect(to)
    }

    fn listen(self: Box<Self>, backlog: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        Ok(Box::new(Listener {
            inner: self.inner.listen(backlog)?,
            hook: self.hook,
            taken: 0,
        }))
    }
}

impl LlpListener for Listener {
    fn try_accept(&mut self) -> Result<Option<Box<dyn Llp>>, LlpError> {
        let accepted = self.inner.try_accept()?;
        if accepted.is_some() {
            self.taken += 1;
            (self.hook)(Moment::Accepted(self.taken));
        }
        let hook = Arc::clone(&self.hook);
        Ok(accepted.map(|inner| Box::new(Stream { inner, hook }) as Box<dyn Llp>))
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn clear_readiness(&mut self) {
        self.inner.clear_readiness();
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
}

impl Llp for Stream {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        self.inner.try_recv(buf)
    }
    fn try_send(&mut self, pieces: &[Piece<'_>], ends: SendHints<'_>) -> Result<usize, LlpError> {
        (self.hook)(Moment::Sends);
        self.inner.try_send(pieces, ends)
    }
    fn emss(&self) -> usize {
        self.inner.emss()
    }
    fn shutdown(&mut self) -> Result<(), LlpError> {
        self.inner.shutdown()
    }
    fn abort(&mut self) {
        self.inner.abort();
    }
    fn flushed(&mut self) -> bool {
        self.inner.flushed()
    }
    fn unacknowledged(&mut self) -> usize {
        self.inner.unacknowledged()
    }
    fn lost(&mut self) -> Option<LlpError> {
        self.inner.lost()
    }
    fn peer_closed(&mut self) -> bool {
        self.inner.peer_closed()
    }
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn wants_write_event(&self) -> bool {
        self.inner.wants_write_event()
    }
    fn clear_readiness(&mut self) {
        self.inner.clear_readiness();
    }
    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
    fn drive(&mut self) {
        self.inner.drive();
    }
    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError> {
        self.inner.set_keepalive(keepalive)
    }
    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        self.inner.connect_progress()
    }
}

/// Opens a connection of the kernel's TCP and sends an MPA Request on it.
fn requesting(to: SocketAddr) -> TcpStream {
    let mut peer = TcpStream::connect(to).unwrap();
    peer.write_all(REQUEST).unwrap();
    peer
}

/// Programs match their queue pairs by the order of the accepts (perftest with `-q`). While the
/// third connection is being accepted, the Requests of all three arrive.
#[test]
fn requests_are_told_in_the_order_in_which_their_connections_were_accepted() {
    let (connected, peers) = mpsc::channel::<Vec<TcpStream>>();
    let peers = Mutex::new(peers);
    let hook: Hook = Arc::new(move |moment| {
        if moment == Moment::Accepted(3) {
            for mut peer in peers.lock().unwrap().recv().unwrap() {
                peer.write_all(REQUEST).unwrap();
                // Closing the connection might cause a reject, so it stays open.
                std::mem::forget(peer);
            }
        }
    });
    let inner = KernelNetwork::default();
    let host = Host::new(Arc::new(Hooked { inner, hook }), Settings::default());
    let listener = host.listening("127.0.0.1:0".parse().unwrap(), 8);
    let to = listener.local_addr().unwrap();
    let peers: Vec<_> = (0..3).map(|_| TcpStream::connect(to).unwrap()).collect();
    let expected: Vec<_> = peers.iter().map(|peer| peer.local_addr().ok()).collect();
    connected.send(peers).unwrap();
    let arrived = expected.iter().map(|_| {
        let request = host.next(CmEventKind::ConnectRequest);
        request.id().peer_addr()
    });
    assert_eq!(arrived.collect::<Vec<_>>(), expected);
}

/// Accepts a connection whose peer sends a second Request as soon as it has the Reply. Returns the
/// events that had arrived together with that Request. The first list is from the listener's
/// channel, the second from the accepted id's channel. If `apart`, these are two channels.
fn reply_that_causes_a_request(apart: bool) -> (Vec<CmEventKind>, Vec<CmEventKind>) {
    let others = EventChannel::new().unwrap();
    let listens: Arc<OnceLock<(SocketAddr, EventChannel)>> = Arc::default();
    let seen = Arc::new(OnceLock::new());
    let hook: Hook = {
        let (listens, seen, others) = (Arc::clone(&listens), Arc::clone(&seen), others.clone());
        Arc::new(move |moment| {
            let (Moment::Sends, Some((to, channel))) = (moment, listens.get()) else {
                return;
            };
            if seen.get().is_none() {
                // The Reply is being sent now, so the peer may receive it at any time.
                std::mem::forget(requesting(*to));
                until("an event", || channel.waiting() > 0);
                seen.set(others.waiting()).unwrap();
            }
        })
    };
    let inner = KernelNetwork::default();
    let host = Host::new(Arc::new(Hooked { inner, hook }), Settings::default());
    let listener = host.listening("127.0.0.1:0".parse().unwrap(), 8);
    let to = listener.local_addr().unwrap();
    std::mem::forget(requesting(to));
    let first = host.next(CmEventKind::ConnectRequest).id().clone();
    if apart {
        first.migrate(&others).unwrap();
    }
    listens.set((to, host.channel.clone())).ok().unwrap();
    first
        .accept(&host.side.qp, &AcceptOptions::default())
        .unwrap();
    let kinds = |channel: &EventChannel, count: usize| {
        let event = || channel.get_event(Some(LIMIT)).unwrap().kind();
        (0..count).map(|_| event()).collect()
    };
    let before = *seen.get().unwrap();
    let own = if apart { 1 } else { 2 };
    (kinds(&host.channel, own), kinds(&others, before))
}

#[test]
fn established_is_told_before_a_request_that_the_reply_causes() {
    use CmEventKind::{ConnectRequest, Established};
    let (arrived, _) = reply_that_causes_a_request(false);
    assert_eq!(arrived, [Established, ConnectRequest]);
}

#[test]
fn established_waits_in_its_channel_when_a_request_that_the_reply_causes_comes_to_another() {
    let arrived = reply_that_causes_a_request(true);
    let expected = (
        vec![CmEventKind::ConnectRequest],
        vec![CmEventKind::Established],
    );
    assert_eq!(arrived, expected);
}

#[test]
fn the_end_of_a_connection_is_told_before_a_request_that_was_sent_after_it() {
    let manual = Settings::default().progress(Progress::Manual);
    let host = Host::new(Arc::new(KernelNetwork::default()), manual);
    let listener = host.listening("127.0.0.1:0".parse().unwrap(), 8);
    let to = listener.local_addr().unwrap();
    let mut first = requesting(to);
    until("the first request", || {
        host.side.device.progress();
        host.channel.waiting() > 0
    });
    let id = host.next(CmEventKind::ConnectRequest).id().clone();
    // This QP is created after the listener, like the queue pairs of a server.
    let qp = host.side.another_qp();
    id.accept(&qp, &AcceptOptions::default()).unwrap();
    drop(host.next(CmEventKind::Established));
    let mut reply = [0; 20];
    first.read_exact(&mut reply).unwrap();
    drop(first);
    let _second = requesting(to);
    // Over loopback both the end and the request have arrived, so one round of progress finds both.
    until("both events", || {
        host.side.device.progress();
        host.channel.waiting() >= 2
    });
    drop(host.next(CmEventKind::Disconnected));
    drop(host.next(CmEventKind::ConnectRequest));
}

/// Libfabric's test `fi_multi_ep` and other programs connect in this way.
#[test]
fn a_client_that_connects_again_once_it_is_established_is_seen_in_that_order() {
    const ROUNDS: usize = 50;
    let (client, server) = (Host::kernel(), Host::kernel());
    let listener = server.listening("127.0.0.1:0".parse().unwrap(), 8);
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 * ROUNDS {
                let qp = client.side.another_qp();
                let id = client.resolved(to);
                id.connect(&qp, &ConnectOptions::default()).unwrap();
                drop(client.next(CmEventKind::Established));
                // The connection stays open until the server has the next one.
                std::mem::forget((qp, id));
            }
        });
        for _ in 0..2 * ROUNDS {
            let id = server.next(CmEventKind::ConnectRequest).id().clone();
            let qp = server.side.another_qp();
            id.accept(&qp, &AcceptOptions::default()).unwrap();
            drop(server.next(CmEventKind::Established));
            std::mem::forget((qp, id));
        }
    });
}
