//! Selects the connection of the target among those of strangers.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Got, Listener, Network, Stream};
use crate::wire::startup::REQUEST_KEY;

/// Maximum number of connections that wait side by side. One more replaces the oldest.
const MAX_WAITING: usize = 64;
/// Maximum number of bytes that are received of a connection before it is selected.
const MAX_FIRST: usize = 4096;
/// Time to wait for the next connection, between two looks at those that wait.
const LOOK: Duration = Duration::from_millis(5);

/// Waits at most `timeout` for a connection whose first bytes are the key of an MPA Request. An MPA
/// Initiator sends it first, so another connection is not the target's as long as one sends it. If
/// none does, returns the oldest connection that has sent something else, because a faulty target
/// may have, or else the oldest silent one. One that has ended comes after those that have not, and
/// is dropped if it was silent.
///
/// # Errors
/// If the listener fails.
pub(crate) fn accept_first_with_key(
    network: &dyn Network,
    listener: &mut dyn Listener,
    timeout: Duration,
) -> io::Result<Option<Box<dyn Stream>>> {
    let deadline = network.now() + timeout;
    let mut waiting: Vec<Begun> = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(network.now());
        let wait = if waiting.is_empty() {
            left
        } else {
            left.min(LOOK)
        };
        if let Some(rest) = listener.accept(wait)? {
            if waiting.len() == MAX_WAITING {
                waiting.remove(0);
            }
            waiting.push(Begun {
                first: Vec::new(),
                end: None,
                rest,
            });
        }
        let mut index = 0;
        while let Some(begun) = waiting.get_mut(index) {
            match begun.look() {
                Look::Key => return Ok(Some(Box::new(waiting.swap_remove(index)))),
                Look::Over => drop(waiting.remove(index)),
                Look::Waits => index += 1,
            }
        }
        if network.now() >= deadline {
            waiting.sort_by_key(|begun| (begun.first.is_empty(), begun.end.is_some()));
            let chosen = waiting.into_iter().next();
            return Ok(chosen.map(|begun| Box::new(begun) as Box<dyn Stream>));
        }
    }
}

/// State of a connection that waits.
enum Look {
    /// It has sent the key of an MPA Request.
    Key,
    /// It has sent something else, or nothing.
    Waits,
    /// It has ended without a byte.
    Over,
}

/// Connection from which the first bytes were already received.
struct Begun {
    first: Vec<u8>,
    /// End of the connection, if it was received after these bytes.
    end: Option<Got>,
    rest: Box<dyn Stream>,
}

impl Begun {
    /// Receives what has arrived. Does not wait.
    fn look(&mut self) -> Look {
        let room = MAX_FIRST - self.first.len();
        if room > 0 && self.end.is_none() {
            let mut more = vec![0; room];
            match self.rest.receive(&mut more, Duration::ZERO) {
                Ok(Got::Bytes(count)) => self.first.extend_from_slice(&more[..count]),
                Ok(Got::Nothing) => {}
                Ok(end @ (Got::Fin | Got::Reset)) => self.end = Some(end),
                Err(_) => self.end = Some(Got::Reset),
            }
        }
        if self.first.starts_with(&REQUEST_KEY) {
            Look::Key
        } else if self.first.is_empty() && self.end.is_some() {
            Look::Over
        } else {
            Look::Waits
        }
    }
}

impl Stream for Begun {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.rest.send(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got> {
        if self.first.is_empty() || bytes.is_empty() {
            // A reset is reported only once.
            return match self.end {
                Some(end) if !bytes.is_empty() => Ok(end),
                _ => self.rest.receive(bytes, timeout),
            };
        }
        let count = self.first.len().min(bytes.len());
        let left = self.first.split_off(count);
        let taken = mem::replace(&mut self.first, left);
        bytes[..count].copy_from_slice(&taken);
        Ok(Got::Bytes(count))
    }

    fn fin(&mut self) -> io::Result<()> {
        self.rest.fin()
    }

    fn reset(&mut self) {
        self.rest.reset();
    }

    fn local_addr(&self) -> SocketAddr {
        self.rest.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.rest.peer_addr()
    }

    fn mss(&self) -> Option<usize> {
        self.rest.mss()
    }

    fn unacknowledged(&self) -> Option<usize> {
        self.rest.unacknowledged()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;
    use crate::transport::KernelTcp;

    #[test]
    fn a_stranger_is_not_taken_as_the_target() {
        let network = KernelTcp::default();
        let at = Some("127.0.0.1:0".parse().unwrap());
        let mut listener = network.listen(at, None, None).unwrap();
        let connect = |first: &[u8]| {
            let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
            stream.write_all(first).unwrap();
            stream
        };
        let silent: Vec<_> = (0..5).map(|_| connect(b"")).collect();
        let garbage: Vec<_> = (0..5).map(|_| connect(b"GET / HTTP/1.1\r\n\r\n")).collect();
        drop(connect(b""));
        let target = connect(&[&REQUEST_KEY[..], b"rest"].concat());
        let hour = Duration::from_secs(3_600);
        let came = accept_first_with_key(&network, &mut *listener, hour);
        let mut came = came.unwrap().unwrap();
        assert_eq!(came.peer_addr(), target.local_addr().unwrap());
        let mut bytes = [0; 16];
        assert_eq!(came.receive(&mut bytes, hour).unwrap(), Got::Bytes(16));
        assert_eq!(bytes, REQUEST_KEY);
        assert_eq!(came.receive(&mut bytes, hour).unwrap(), Got::Bytes(4));
        assert_eq!(&bytes[..4], b"rest");
        drop((silent, garbage));
    }

    #[test]
    fn without_a_key_what_a_faulty_target_sent_comes_before_silence() {
        let network = KernelTcp::default();
        let at = Some("127.0.0.1:0".parse().unwrap());
        let mut listener = network.listen(at, None, None).unwrap();
        let silent = TcpStream::connect(listener.local_addr()).unwrap();
        let came = accept_first_with_key(&network, &mut *listener, LOOK).unwrap();
        let mut came = came.unwrap();
        assert_eq!(came.peer_addr(), silent.local_addr().unwrap());
        let other = TcpStream::connect(listener.local_addr()).unwrap();
        let mut faulty = TcpStream::connect(listener.local_addr()).unwrap();
        faulty.write_all(b"MPA ID Rep Frame").unwrap();
        let second = Duration::from_secs(1);
        came = accept_first_with_key(&network, &mut *listener, second)
            .unwrap()
            .unwrap();
        assert_eq!(came.peer_addr(), faulty.local_addr().unwrap());
        let mut bytes = [0; 16];
        assert_eq!(came.receive(&mut bytes, second).unwrap(), Got::Bytes(16));
        drop(other);
    }

    #[test]
    fn a_faulty_target_that_closes_after_a_wrong_key_is_tested() {
        let network = KernelTcp::default();
        let at = Some("127.0.0.1:0".parse().unwrap());
        let mut listener = network.listen(at, None, None).unwrap();
        let silent = TcpStream::connect(listener.local_addr()).unwrap();
        let mut faulty = TcpStream::connect(listener.local_addr()).unwrap();
        faulty.write_all(b"MPA ID Rep Frame").unwrap();
        let from = faulty.local_addr().unwrap();
        drop(faulty);
        let second = Duration::from_secs(1);
        let came = accept_first_with_key(&network, &mut *listener, second);
        let mut came = came.unwrap().unwrap();
        assert_eq!(came.peer_addr(), from);
        let mut bytes = [0; 20];
        assert_eq!(came.receive(&mut bytes, second).unwrap(), Got::Bytes(16));
        assert_eq!(&bytes[..16], b"MPA ID Rep Frame");
        assert_eq!(came.receive(&mut bytes, second).unwrap(), Got::Fin);
        drop(silent);
    }
}
