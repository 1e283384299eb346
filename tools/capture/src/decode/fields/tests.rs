use super::super::{Decoder, Frame};
use crate::{Direction, Packet};
use uwarp_oracle::Fpdus;
use uwarp_testkit::filler;
use uwarp_testkit::frames::{reply, request, tagged, untagged};

/// Returns the frames of a connection in which the initiator sends `ulpdus`.
fn frames(markers: bool, ulpdus: &[Vec<u8>]) -> Vec<Frame> {
    let flags = if markers { 0xC0 } else { 0x40 };
    let mut encoder = Fpdus::new(true, markers);
    let fpdus = ulpdus
        .iter()
        .flat_map(|ulpdu| encoder.seal(ulpdu))
        .collect();
    let streams = [
        (true, request(0x50, 2, &[0x80, 4, 0x80, 8, 1, 2, 3])),
        (false, reply(flags | 0x10, 2, &[0x80, 8, 0x80, 4])),
        (true, fpdus),
    ];
    let mut seqs = [0_u32; 2];
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for (initiator, bytes) in streams {
        let (from, to) = if initiator { (1, 2) } else { (2, 1) };
        let header = etherparse::PacketBuilder::ipv4([10, 0, 0, from], [10, 0, 0, to], 64);
        let seq = &mut seqs[usize::from(from) - 1];
        let builder = header.tcp(u16::from(from), u16::from(to), *seq, 100);
        *seq += bytes.len() as u32;
        let mut data = Vec::new();
        builder.write(&mut data, &bytes).unwrap();
        frames.extend(decoder.packet(&Packet {
            timestamp: std::time::Duration::ZERO,
            interface: 0,
            link: 101,
            direction: Direction::Unknown,
            original_len: data.len(),
            comments: Vec::new(),
            data,
        }));
    }
    // Without a SYN, packets wait, because earlier ones might follow. `finish` releases them.
    frames.extend(decoder.finish());
    frames
}

#[test]
fn every_byte_of_a_frame_is_in_one_field() {
    let terminate = [&[0x11, 0, 0xC0, 0, 0, 20][..], &tagged(0, &[])].concat();
    for markers in [false, true] {
        let frames = frames(
            markers,
            &[
                tagged(0, &[]),
                tagged(0, &filler(0, 1100)),
                untagged(1, 1, 1, &[0; 28]),
                untagged(3, 0, 1, &filler(0, 501)),
                untagged(8, 0, 2, &[0; 8]),
                untagged(10, 1, 2, &[0; 52]),
                untagged(7, 2, 1, &terminate),
            ],
        );
        assert_eq!(frames.len(), 9);
        for frame in frames {
            let fields = frame.fields();
            assert!(fields.iter().all(|field| field.name != "bytes"), "{frame}");
            assert!(fields.is_sorted_by(|a, b| a.at < b.at), "{frame}");
            let places = fields.iter().filter(|field| field.name == "Marker");
            let markers: Vec<usize> = places.flat_map(|field| field.at..field.at + 4).collect();
            let mut next = 0;
            for field in fields.iter().filter(|field| field.name != "Marker") {
                let mut free = (next..).filter(|at| !markers.contains(at));
                assert_eq!(free.next(), Some(field.at), "{frame}");
                for byte in &field.bytes {
                    next = (next..).find(|at| !markers.contains(at)).unwrap();
                    assert_eq!(frame.bytes[next], *byte, "{frame}");
                    next += 1;
                }
            }
            assert_eq!(next, frame.bytes.len(), "{frame}");
        }
    }
}

#[test]
fn the_fields_have_the_names_of_the_rfcs() {
    let mut text = String::new();
    for frame in frames(false, &[untagged(1, 1, 1, &[0; 28])]) {
        for field in frame.fields() {
            text.push_str(&format!(
                "{:3} {} {:?}\n",
                field.at, field.name, field.value
            ));
        }
    }
    insta::assert_snapshot!(text);
}
