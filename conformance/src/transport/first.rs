//! Selects the connection of the target among those of strangers.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use super::{Got, Listener, Network, Stream};

/// Maximum number of silent connections that are kept. One more replaces the oldest.
const MAX_SILENT: usize = 64;
/// Time to wait for the next connection, between two looks at those that are silent.
const LOOK: Duration = Duration::from_millis(5);

/// Waits at most `timeout` for a connection whose peer sends something. An MPA Initiator sends
/// first, so a silent connection is not the target's as long as another one sends. If none does,
/// returns the oldest silent connection.
///
/// # Errors
/// If the listener fails.
pub(crate) fn accept_first_to_send(
    network: &dyn Network,
    listener: &mut dyn Listener,
    timeout: Duration,
) -> io::Result<Option<Box<dyn Stream>>> {
    let deadline = network.now() + timeout;
    let mut silent: Vec<Box<dyn Stream>> = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(network.now());
        let wait = if silent.is_empty() {
            left
        } else {
            left.min(LOOK)
        };
        if let Some(stream) = listener.accept(wait)? {
            if silent.len() == MAX_SILENT {
                silent.remove(0);
            }
            silent.push(stream);
        }
        let mut index = 0;
        while let Some(stream) = silent.get_mut(index) {
            let mut first = vec![0; 4096];
            match stream.receive(&mut first, Duration::ZERO) {
                Ok(Got::Bytes(count)) => {
                    first.truncate(count);
                    let rest = silent.swap_remove(index);
                    return Ok(Some(Box::new(Begun { first, rest })));
                }
                Ok(Got::Fin | Got::Reset) | Err(_) => drop(silent.remove(index)),
                Ok(Got::Nothing) => index += 1,
            }
        }
        if network.now() >= deadline {
            return Ok((!silent.is_empty()).then(|| silent.swap_remove(0)));
        }
    }
}

/// Connection from which the first bytes were already received.
struct Begun {
    first: Vec<u8>,
    rest: Box<dyn Stream>,
}

impl Stream for Begun {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.rest.send(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<Got> {
        if self.first.is_empty() || bytes.is_empty() {
            return self.rest.receive(bytes, timeout);
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
    fn a_silent_stranger_is_not_taken_as_the_target() {
        let network = KernelTcp::default();
        let at = Some("127.0.0.1:0".parse().unwrap());
        let mut listener = network.listen(at, None, None).unwrap();
        let silent: Vec<_> = (0..10)
            .map(|_| TcpStream::connect(listener.local_addr()).unwrap())
            .collect();
        drop(TcpStream::connect(listener.local_addr()).unwrap());
        let mut target = TcpStream::connect(listener.local_addr()).unwrap();
        target.write_all(b"MPA ID").unwrap();
        let hour = Duration::from_secs(3_600);
        let came = accept_first_to_send(&network, &mut *listener, hour);
        let mut came = came.unwrap().unwrap();
        assert_eq!(came.peer_addr(), target.local_addr().unwrap());
        let mut bytes = [0; 4];
        assert_eq!(came.receive(&mut bytes, hour).unwrap(), Got::Bytes(4));
        assert_eq!(&bytes, b"MPA ");
        assert_eq!(came.receive(&mut bytes, hour).unwrap(), Got::Bytes(2));
        assert_eq!(&bytes[..2], b"ID");
        // If nobody sends, the oldest one is taken.
        let waiting = TcpStream::connect(listener.local_addr()).unwrap();
        let came = accept_first_to_send(&network, &mut *listener, LOOK).unwrap();
        assert_eq!(came.unwrap().peer_addr(), waiting.local_addr().unwrap());
        drop(silent);
    }
}
