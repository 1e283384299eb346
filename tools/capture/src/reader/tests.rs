use proptest::prelude::*;

use super::*;

const STARTUP: &[u8] = include_bytes!("../../tests/data/siw-mpa-startup.pcap");
const ERRORS: &[u8] = include_bytes!("../../tests/data/siw-fpdu-errors.pcap");

fn read(bytes: impl AsRef<[u8]>) -> Result<Vec<Packet>, ReadError> {
    Reader::new(Cursor::new(bytes.as_ref().to_vec()))?.collect()
}

/// Builds a pcapng file in the byte order of `order`, with one interface and one packet.
/// `if_options` are the options of the interface. `time` and `options` belong to the packet.
fn pcapng(order: fn(u32) -> [u8; 4], if_options: &[u8], time: u64, options: &[u8]) -> Vec<u8> {
    let block = |kind: u32, body: Vec<u8>| {
        let len = order(body.len() as u32 + 12);
        [&order(kind)[..], &len, &body, &len].concat()
    };
    let half = |value: u16| match order(1) {
        [1, ..] => value.to_le_bytes(),
        _ => value.to_be_bytes(),
    };
    let header = [&order(0x1A2B_3C4D)[..], &half(1), &half(0), &[0xFF; 8]].concat();
    let interface = [&half(101)[..], &[0, 0], &order(0), if_options].concat();
    let packet = [
        &order(0)[..],
        &order((time >> 32) as u32),
        &order(time as u32),
        &order(4),
        &order(9),
        &[1, 2, 3, 4],
        options,
    ]
    .concat();
    [
        block(0x0A0D_0D0A, header),
        block(1, interface),
        block(6, packet),
    ]
    .concat()
}

#[test]
fn captures_of_the_siw_driver_are_read_whole() {
    let startup = read(STARTUP).unwrap();
    assert_eq!(startup[0].link, 1);
    let requests = startup
        .iter()
        .filter_map(Packet::tcp)
        .filter(|segment| segment.payload.starts_with(b"MPA ID Req Frame"))
        .count();
    assert!(requests > 20, "{requests}");
    let errors = read(ERRORS).unwrap();
    let segments: Vec<_> = errors.iter().filter_map(Packet::tcp).collect();
    assert!(
        segments
            .iter()
            .any(|s| s.payload.starts_with(b"MPA ID Rep Frame"))
    );
    // A Terminate of siw has a length of 22 or more, DDP Control with L and version 1, and RDMAP
    // Control with version 1 and opcode 7.
    assert!(
        segments
            .iter()
            .any(|s| s.source.port() == 7000 && s.payload.get(2..4) == Some(&[0x41, 0x47]))
    );
    assert!(errors.is_sorted_by_key(|packet| packet.timestamp));
}

#[test]
fn time_stamps_of_every_unit_and_byte_order_are_understood() {
    let micro = 1_700_000_000_123_456;
    let expected = Duration::from_micros(micro);
    for order in [u32::to_le_bytes, u32::to_be_bytes] {
        let packet = &read(pcapng(order, &[], micro, &[])).unwrap()[0];
        assert_eq!(packet.timestamp, expected);
        assert_eq!(packet.data, [1, 2, 3, 4]);
        assert_eq!(packet.original_len, 9);
    }
    let little = u32::to_le_bytes;
    let nano = [9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0];
    let packet = &read(pcapng(little, &nano, micro * 1000 + 7, &[])).unwrap()[0];
    assert_eq!(packet.timestamp, expected + Duration::from_nanos(7));
    // The time unit is 2^-10 seconds.
    let binary = [9, 0, 1, 0, 0x8A, 0, 0, 0, 0, 0, 0, 0];
    let packet = &read(pcapng(little, &binary, 1024 * 50 + 512, &[])).unwrap()[0];
    assert_eq!(packet.timestamp, Duration::from_millis(50_500));
    // The time offset is minus ten seconds.
    let offset = [&[14, 0, 8, 0][..], &(-10_i64).to_le_bytes(), &[0; 4]].concat();
    let packet = &read(pcapng(little, &offset, micro, &[])).unwrap()[0];
    assert_eq!(packet.timestamp, expected - Duration::from_secs(10));
    let offset = [&[0, 14, 0, 8][..], &(-10_i64).to_be_bytes(), &[0; 4]].concat();
    let packet = &read(pcapng(u32::to_be_bytes, &offset, micro, &[])).unwrap()[0];
    assert_eq!(packet.timestamp, expected - Duration::from_secs(10));
}

#[test]
fn direction_flags_are_read_in_the_files_byte_order() {
    let little = [2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0];
    let packets = read(pcapng(u32::to_le_bytes, &[], 0, &little)).unwrap();
    assert_eq!(packets[0].direction, Direction::Outbound);
    let big = [0, 2, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0];
    let packets = read(pcapng(u32::to_be_bytes, &[], 0, &big)).unwrap();
    assert_eq!(packets[0].direction, Direction::Inbound);
}

#[test]
fn the_older_format_with_nanoseconds_is_read() {
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|w| w.to_be_bytes())
            .collect::<Vec<_>>()
    };
    let mut file = words(&[0xA1B2_3C4D, 0x0002_0004, 0, 0, 65_535, 101]);
    file.extend(words(&[10, 999_999_999, 2, 60]));
    file.extend([7, 8]);
    let packets = read(file).unwrap();
    assert_eq!(packets[0].timestamp, Duration::new(10, 999_999_999));
    assert_eq!((packets[0].link, packets[0].original_len), (101, 60));
    assert_eq!(packets[0].data, [7, 8]);
}

#[test]
fn what_is_no_capture_and_what_is_damaged_are_told_apart() {
    for bytes in [
        &b""[..],
        b"short",
        b"this is a text, not a capture file at all",
    ] {
        assert!(matches!(read(bytes), Err(ReadError::NotACapture)));
    }
    let name = format!("uwarp-reader-{}-missing", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).unwrap();
    let opened = Reader::open(dir.join("x.pcapng"));
    std::fs::remove_dir(&dir).unwrap();
    assert!(matches!(opened, Err(ReadError::Io(_))));
    let mut file = pcapng(u32::to_le_bytes, &[], 0, &[]);
    let packet_at = 28 + 20;
    // The packet now refers to an interface that does not exist.
    file[packet_at + 8] = 9;
    let error = read(&file).unwrap_err();
    assert!(
        matches!(error, ReadError::Damaged { offset: 48 }),
        "{error}"
    );
    assert!(error.to_string().contains("byte 48"));
}

/// A fuzzer found this problem with a Process Information Block.
#[test]
fn a_block_that_is_shorter_than_its_own_lengths_is_damage() {
    for order in [u32::to_le_bytes, u32::to_be_bytes] {
        let whole = pcapng(order, &[], 0, &[]);
        for kind in [1, 2, 3, 4, 5, 6, 9, 10, 0xBAD, 0x8000_0001, 0x4000_0BAD, 77] {
            for length in (0..64).chain([u32::MAX]) {
                let mut bytes = whole.clone();
                bytes.extend(order(kind));
                bytes.extend(order(length));
                bytes.extend([0; 64]);
                let result = read(&bytes);
                if length < 12 {
                    let offset = whole.len() as u64;
                    let damaged =
                        matches!(result, Err(ReadError::Damaged { offset: at }) if at == offset);
                    assert!(damaged, "{kind:#x} of {length}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn iteration_ends_after_an_error() {
    let mut file = pcapng(u32::to_le_bytes, &[], 0, &[]);
    file[56] = 9;
    let mut reader = Reader::new(Cursor::new(file)).unwrap();
    assert!(reader.next().unwrap().is_err());
    assert!(reader.next().is_none());
}

#[test]
fn blocks_larger_than_the_buffer_are_read() {
    let mut file = pcapng(u32::to_le_bytes, &[], 0, &[]);
    // This block has an unknown type and is larger than the buffer. It precedes the packet.
    let len = (3 * BUFFER as u32).to_le_bytes();
    let unknown = [
        &0x0BAD_u32.to_le_bytes()[..],
        &len,
        &vec![0; 3 * BUFFER - 12],
        &len,
    ]
    .concat();
    file.splice(48..48, unknown);
    assert_eq!(read(file).unwrap().len(), 1);
}

/// A source that returns at most three bytes per read.
struct Slow<T>(Cursor<T>);

impl<T: AsRef<[u8]>> Read for Slow<T> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(3);
        self.0.read(&mut out[..len])
    }
}

#[test]
fn a_capture_that_ends_in_a_block_of_any_length_is_cut_off_however_it_is_read() {
    for len in [40, 3 * BUFFER, 2 * MAX_BUFFER] {
        let mut file = pcapng(u32::to_le_bytes, &[], 0, &[]);
        file.extend_from_slice(&0x0BAD_u32.to_le_bytes());
        file.extend_from_slice(&(len as u32).to_le_bytes());
        file.extend_from_slice(&[0; 21]);
        let mut whole = Reader::new(Cursor::new(file.clone())).unwrap();
        let mut slow = Reader::new(Slow(Cursor::new(file))).unwrap();
        for reader in [&mut whole, &mut slow] {
            assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 1);
            assert!(reader.cut_off(), "{len}");
            assert_eq!(reader.room, BUFFER, "for {len} bytes that did not come");
        }
    }
}

#[test]
fn a_source_that_delivers_little_at_a_time_is_read() {
    let packets = Reader::new(Slow(Cursor::new(ERRORS))).unwrap().count();
    assert_eq!(packets, read(ERRORS).unwrap().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Damage at any offset yields packets or an error, but never a panic or an endless loop.
    #[test]
    fn damaged_captures_never_panic(
        which in 0..3,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = match which {
            0 => STARTUP[..2000].to_vec(),
            1 => pcapng(u32::to_le_bytes, &[9, 0, 1, 0, 9, 0, 0, 0], 5, &[2, 0, 4, 0, 2, 0, 0, 0]),
            _ => pcapng(u32::to_be_bytes, &[], 5, &[0, 1, 0, 2, b'h', b'i', 0, 0]),
        };
        for (index, value) in damage {
            let index = index.index(file.len());
            file[index] = value;
        }
        file.truncate(cut.index(file.len()) + 1);
        if let Ok(packets) = read(&file) {
            for packet in packets {
                if let Some(segment) = packet.tcp() {
                    segment.checksum_is_right();
                }
            }
        }
    }
}
