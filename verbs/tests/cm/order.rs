//! The order in which Requests are told.

use std::io::Write;
use std::net::{IpAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, Weak, mpsc};
use std::time::Instant;

use uwarp_verbs::llp::{BoundPort, Llp, LlpError, LlpListener, NetworkInfo, NetworkWatcher};

use super::*;

/// What happens when so many connections were taken from TCP.
type Hook = Arc<Mutex<Box<dyn FnMut(usize) + Send>>>;

/// The kernel's TCP, and something that happens between an accept and the first look at what was accepted.
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
            (self.hook.lock().unwrap())(self.taken);
        }
        Ok(accepted)
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

/// Programs match their queue pairs by it (perftest with `-q`): while one connection is being taken, the Requests of those before it
/// come, and its own.
#[test]
fn requests_are_told_in_the_order_in_which_their_connections_were_accepted() {
    /// RFC 5044 section 7.1.1: revision 1, with CRC, without Private Data.
    const REQUEST: &[u8] = b"MPA ID Req Frame\x40\x01\0\0";
    let (connected, peers) = mpsc::channel::<Vec<TcpStream>>();
    let hook: Hook = Arc::new(Mutex::new(Box::new(move |taken| {
        if taken == 3 {
            for mut peer in peers.recv().unwrap() {
                peer.write_all(REQUEST).unwrap();
                // Who hears of the end of a connection may reject it.
                std::mem::forget(peer);
            }
        }
    })));
    let inner = KernelNetwork::default();
    let host = Host::new(Arc::new(Hooked { inner, hook }), Settings::default());
    let listener = host.listening("127.0.0.1:0".parse().unwrap(), 8);
    let to = listener.local_addr().unwrap();
    let peers: Vec<_> = (0..3).map(|_| TcpStream::connect(to).unwrap()).collect();
    let expected: Vec<_> = peers.iter().map(|peer| peer.local_addr().ok()).collect();
    connected.send(peers).unwrap();
    let told = expected.iter().map(|_| {
        let request = host.next(CmEventKind::ConnectRequest);
        request.id().peer_addr()
    });
    assert_eq!(told.collect::<Vec<_>>(), expected);
}
