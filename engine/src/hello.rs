//! Private data of the MPA Request and the Reply between two QPs that are connected by their
//! numbers.
//!
//! ```text
//!   Request:  "uwQP"  version  flags  0  0  own number  peer's number  own address
//!               4        1       1    1  1       4            4            16       bytes
//!   Reply:    "uwQP"  version  flags  status  0
//! ```
//!
//! Numbers are big-endian. An address is an IPv6 address, or an IPv4 address mapped to one (RFC
//! 4291 section 2.5.5.2).

use std::net::{IpAddr, Ipv6Addr};

const MAGIC: [u8; 4] = *b"uwQP";
const VERSION: u8 = 1;
/// Flag of a Request: the side that is to be called calls itself, because nobody has called it.
const REVERSE: u8 = 1;
/// Flag of a Request and of a Reply: the sender takes Immediate Data that belongs to a Send.
const SEND_IMMEDIATE: u8 = 2;
/// Flag of a Request: the QP is unreliable (`QpBuilder::unreliable` of `uwarp-verbs`).
const UNRELIABLE: u8 = 4;
/// Place of the flags in both.
const FLAGS_AT: usize = 5;
const REQUEST_LEN: usize = 32;
const REPLY_LEN: usize = 8;

/// Introduction of a QP that calls another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Number of the QP that calls.
    pub own: u32,
    /// Number of the QP that is called.
    pub peer: u32,
    /// Address of the side that calls. Unspecified if the network chooses it.
    pub addr: IpAddr,
    /// The side that is to be called calls itself, because nobody has called it.
    pub reverse: bool,
    /// The QP is unreliable.
    pub unreliable: bool,
}

/// Status in the Reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The QPs are connected.
    Accepted = 0,
    /// No QP has this number, or it is not connected to the number of the caller.
    NoSuchPair = 1,
    /// A call in reverse, while the call of this side is under way.
    MineIsUnderWay = 2,
    /// The caller speaks another version.
    OtherVersion = 3,
}

impl Hello {
    /// Returns the private data of the Request.
    pub fn to_bytes(self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let flag = |set, flag| if set { flag } else { 0 };
        let flags =
            SEND_IMMEDIATE | flag(self.reverse, REVERSE) | flag(self.unreliable, UNRELIABLE);
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[VERSION, flags]);
        bytes[8..12].copy_from_slice(&self.own.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.peer.to_be_bytes());
        bytes[16..].copy_from_slice(&mapped(self.addr).octets());
        bytes
    }

    /// Reads the private data of a Request. Bytes that a later version appends are ignored.
    ///
    /// # Errors
    /// The status for the Reply.
    pub fn from_bytes(bytes: &[u8]) -> Result<Hello, Answer> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Answer::NoSuchPair)?;
        if *head != MAGIC {
            return Err(Answer::NoSuchPair);
        }
        let (&[version, flags, _, _], rest) = rest.split_first_chunk().ok_or(Answer::NoSuchPair)?;
        if version != VERSION {
            return Err(Answer::OtherVersion);
        }
        let (own, rest) = rest.split_first_chunk().ok_or(Answer::NoSuchPair)?;
        let (peer, rest) = rest.split_first_chunk().ok_or(Answer::NoSuchPair)?;
        let addr = rest.first_chunk::<16>().ok_or(Answer::NoSuchPair)?;
        Ok(Hello {
            own: u32::from_be_bytes(*own),
            peer: u32::from_be_bytes(*peer),
            addr: IpAddr::V6(Ipv6Addr::from(*addr)).to_canonical(),
            reverse: flags & REVERSE != 0,
            unreliable: flags & UNRELIABLE != 0,
        })
    }
}

impl Answer {
    /// Returns the private data of the Reply.
    pub fn to_bytes(self) -> [u8; REPLY_LEN] {
        let [a, b, c, d] = MAGIC;
        [a, b, c, d, VERSION, SEND_IMMEDIATE, self as u8, 0]
    }
}

/// Returns true if the private data of a Reply says that the QPs are connected.
pub fn is_acceptance(reply: &[u8]) -> bool {
    reply.starts_with(&Answer::Accepted.to_bytes()[..5])
        && reply.get(6) == Some(&(Answer::Accepted as u8))
}

/// Returns true if the sender of a Request or Reply with this private data takes Immediate Data
/// that belongs to a Send.
pub fn takes_send_immediate(private_data: &[u8]) -> bool {
    private_data.starts_with(&MAGIC)
        && (private_data.get(FLAGS_AT)).is_some_and(|flags| flags & SEND_IMMEDIATE != 0)
}

/// Returns an address as IPv6 address, as a GID holds it.
pub fn mapped(addr: IpAddr) -> Ipv6Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped(),
        IpAddr::V6(addr) => addr,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        own: 0x0400_0005,
        peer: 0x00FF_FF01,
        addr: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)),
        reverse: false,
        unreliable: false,
    };

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        for (addr, reverse) in [("192.0.2.7", false), ("2001:db8::7", true), ("::", false)] {
            let addr = addr.parse().unwrap();
            for unreliable in [false, true] {
                let hello = Hello {
                    addr,
                    reverse,
                    unreliable,
                    ..HELLO
                };
                assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
            }
        }
    }

    #[test]
    fn the_bytes_of_a_hello_are_those_of_the_documentation() {
        let bytes = HELLO.to_bytes();
        assert_eq!(bytes[..8], *b"uwQP\x01\x02\0\0");
        assert_eq!(bytes[8..16], [4, 0, 0, 5, 0, 0xFF, 0xFF, 1]);
        assert_eq!(bytes[16..26], [0; 10]);
        assert_eq!(bytes[26..], [0xFF, 0xFF, 192, 0, 2, 7]);
    }

    #[test]
    fn a_hello_that_is_cut_or_of_something_else_names_no_pair() {
        let bytes = HELLO.to_bytes();
        for len in 0..bytes.len() {
            assert_eq!(
                Hello::from_bytes(&bytes[..len]),
                Err(Answer::NoSuchPair),
                "{len}"
            );
        }
        let mut other = bytes;
        other[0] = b'U';
        assert_eq!(Hello::from_bytes(&other), Err(Answer::NoSuchPair));
        other = bytes;
        other[4] = 2;
        assert_eq!(Hello::from_bytes(&other), Err(Answer::OtherVersion));
        let longer = [&bytes[..], &[1, 2, 3]].concat();
        assert_eq!(Hello::from_bytes(&longer), Ok(HELLO));
    }

    #[test]
    fn only_private_data_of_a_rendezvous_with_the_flag_offers_immediate_data_for_sends() {
        assert!(takes_send_immediate(&HELLO.to_bytes()));
        assert!(takes_send_immediate(&Answer::Accepted.to_bytes()));
        for other in [
            &b""[..],
            b"uwQP\x01",
            b"uwQP\x01\x01\0\0",
            b"xxQP\x01\x02\0\0",
        ] {
            assert!(!takes_send_immediate(other));
        }
    }

    #[test]
    fn only_the_reply_of_a_rendezvous_that_accepts_is_an_acceptance() {
        assert!(is_acceptance(&Answer::Accepted.to_bytes()));
        for answer in [
            Answer::NoSuchPair,
            Answer::MineIsUnderWay,
            Answer::OtherVersion,
        ] {
            assert!(!is_acceptance(&answer.to_bytes()));
        }
        assert!(!is_acceptance(b""));
        assert!(!is_acceptance(b"hello, rping"));
        assert!(!is_acceptance(&Answer::Accepted.to_bytes()[..6]));
    }
}
