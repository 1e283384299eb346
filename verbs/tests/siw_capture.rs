//! Terminate Messages captured from Linux siw 6.1.192, parsed with and without the siw profile. In
//! `data/siw-fpdu-errors.pcap` a raw peer makes one mistake in each connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use uwarp_verbs::capture::Reader;
use uwarp_verbs::{Peer, Terminate};

/// Returns the bytes that each connection received from siw, without the MPA Reply.
fn answers() -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/siw-fpdu-errors.pcap");
    let mut order = Vec::new();
    let mut streams: BTreeMap<(SocketAddr, SocketAddr), (u32, Vec<u8>)> = BTreeMap::new();
    for packet in Reader::open(&path).unwrap() {
        let packet = packet.unwrap();
        let Some(segment) = packet.tcp() else {
            continue;
        };
        if segment.source.port() != 7000 {
            continue;
        }
        let key = (segment.source, segment.destination);
        if segment.syn {
            order.push(key);
            streams.insert(key, (segment.seq.wrapping_add(1), Vec::new()));
            continue;
        }
        let (next, bytes) = streams.get_mut(&key).unwrap();
        // The segments are in order, because the capture was made at siw's own interface.
        // Retransmissions are skipped.
        if segment.seq == *next {
            bytes.extend_from_slice(segment.payload);
            *next = next.wrapping_add(segment.payload.len() as u32);
        }
    }
    order
        .iter()
        .map(|key| {
            let bytes = &streams[key].1;
            assert_eq!(&bytes[..16], b"MPA ID Rep Frame");
            let private_data = usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
            bytes[20 + private_data..].to_vec()
        })
        .collect()
}

/// Returns the Terminate Header in the last FPDU of a stream without Markers.
fn terminate(stream: &[u8]) -> Option<Vec<u8>> {
    let (mut at, mut last) = (0, None);
    while let Some(&[high, low]) = stream.get(at..at + 2) {
        let len = usize::from(u16::from_be_bytes([high, low]));
        let ulpdu = &stream[at + 2..at + 2 + len];
        last = (ulpdu[..2] == [0x41, 0x47]).then(|| ulpdu[18..].to_vec());
        at += (2 + len).next_multiple_of(4) + 4;
    }
    last
}

#[test]
fn terminates_of_siw_are_told_in_the_words_of_what_was_wrong() {
    let expected = [
        ("unexpected opcode", false),
        ("Send refused: invalid Queue Number", true),
        ("CRC error", true),
        ("CRC error", true),
        ("RDMA Write refused: invalid STag", true),
        ("RDMA Read Request refused: base or bounds violation", true),
    ];
    let headers: Vec<Vec<u8>> = answers().iter().filter_map(|s| terminate(s)).collect();
    assert_eq!(headers.len(), expected.len());
    for (header, (words, certain)) in headers.iter().zip(expected) {
        let parsed = Terminate::parse_from(Peer::Siw, header).unwrap();
        assert!(parsed.to_string().starts_with(words), "{parsed}");
        assert_eq!(parsed.read_as(), Peer::Siw);
        let found = Terminate::parse(header).unwrap();
        if certain {
            assert_eq!(found, parsed);
        } else {
            assert_eq!(found.if_siw(), Some(parsed.reason()));
            assert!(found.to_string().contains(words), "{found}");
        }
    }
}
