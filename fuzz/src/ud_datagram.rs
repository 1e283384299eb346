//! Parses arbitrary bytes as a datagram of a queue pair. The model must accept and drop the same
//! ones. An accepted header must encode back to its bytes, except for those without a meaning, and
//! the Global Route Header must be the model's.

use uwarp_verbs::datagram_format::{GRH, HEADER, Header, MAX_PAYLOAD};

use crate::model::datagram;

/// Runs one input: a datagram as UDP delivers it.
pub fn run(data: &[u8]) {
    examine(data);
    // Most inputs are dropped at once, so the rest of the input is also that of a datagram.
    examine(&[b"uwUD\x01", data].concat());
    // Sizes at the limit.
    let mut longest = [b"uwUD\x01", data].concat();
    for len in [HEADER, HEADER + MAX_PAYLOAD, HEADER + MAX_PAYLOAD + 1] {
        longest.resize(len, 0);
        examine(&longest);
    }
}

fn examine(datagram: &[u8]) {
    let found = Header::parse(datagram);
    let wanted = datagram::read(datagram);
    let encoded = found.map(|(header, payload)| (header.to_bytes().to_vec(), payload));
    assert_eq!(encoded, wanted);
    let (Some((header, payload)), Some((head, _))) = (found, wanted) else {
        return;
    };
    assert!(payload.len() <= MAX_PAYLOAD && head.len() == HEADER);
    assert_eq!(datagram.len(), HEADER + payload.len());
    let again = [&head[..], payload].concat();
    assert_eq!(Header::parse(&again), Some((header, payload)));
    let route_header = header.grh(payload.len());
    assert_eq!(route_header.len(), GRH);
    assert_eq!(
        route_header[..],
        datagram::route_header(&head, payload.len())
    );
    assert_eq!(header.is_ipv6(), route_header[0] >> 4 == 6);
}
