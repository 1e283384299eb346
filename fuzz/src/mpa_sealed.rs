//! Puts ULPDUs from the input into valid FPDUs, so that the fuzzer gets past the CRC.
//!
//! * All three methods of the framer write the same bytes as the model.
//! * The deframer returns the same ULPDUs, however the stream is cut into pieces.
//! * RDMAP and DDP handle the ULPDUs as the model does.
//! * A damaged byte is never accepted as valid if the CRC is on.

use uwarp_mpa::{FrameError, Framer};

use crate::deframing::deframe;
use crate::input::{Cuts, Input};
use crate::model::fpdu::{End, MAX_ULPDU, Opened, Sealer, open};
use crate::play::Play;

/// Maximum number of ULPDUs in one input.
const MAX_COUNT: usize = 24;
/// Number of bytes from which no further ULPDU is added.
const MAX_BYTES: usize = 80_000;

/// Runs one input: flags (bit 0: CRC, bit 1: Markers, bit 2: damage, bit 3: pad ULPDUs), the
/// lengths of the pieces, position and value of the damage, then ULPDUs with their lengths. Padding
/// makes ULPDUs longer than an input could hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.flags();
    let (crc, markers) = (flags(0), flags(1));
    let lengths = input.slice(64);
    let (damage_at, damage) = (input.u32(), input.u8());
    let mut ulpdus: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    while !input.is_empty() && ulpdus.len() < MAX_COUNT && bytes < MAX_BYTES {
        let filled = if flags(3) {
            usize::from(input.u16())
        } else {
            0
        };
        let mut ulpdu = input.slice(4096).to_vec();
        ulpdu.resize(ulpdu.len().max(filled), 0xA5);
        bytes += ulpdu.len();
        if !ulpdu.is_empty() && ulpdu.len() <= MAX_ULPDU {
            ulpdus.push(ulpdu);
        } else {
            refused(crc, markers, &ulpdu);
        }
    }

    let mut sealer = Sealer::new(crc, markers);
    for ulpdu in &ulpdus {
        sealer.seal(ulpdu);
    }
    frame(crc, markers, &ulpdus, sealer.stream());

    let expected = open(sealer.stream(), crc, markers);
    assert!(expected.0.iter().map(|opened| &opened.ulpdu).eq(&ulpdus));
    for lengths in [&[], lengths] {
        let found = deframe(sealer.stream(), crc, markers, Cuts::new(lengths));
        assert_eq!(found, expected);
    }
    // The layers above MPA see only ULPDUs.
    let mut play = Play::new(4, 4);
    for ulpdu in &ulpdus {
        play.receive(ulpdu);
    }
    play.check();

    if flags(2) && !ulpdus.is_empty() && damage != 0 {
        damaged(crc, markers, &sealer, damage_at as usize, damage, lengths);
    }
}

/// Checks that the framer refuses a ULPDU of an invalid length, and writes nothing.
fn refused(crc: bool, markers: bool, ulpdu: &[u8]) {
    let mut framer = Framer::new(crc, markers);
    let mut out = vec![7];
    let error = framer
        .frame(&[], ulpdu, 0, ulpdu.len(), &mut out)
        .unwrap_err();
    let wanted = match ulpdu.len() {
        0 => FrameError::Empty,
        len => FrameError::TooLong { len },
    };
    assert_eq!((error, out, framer.position()), (wanted, vec![7], 0));
}

/// Checks that all methods of the framer make `wanted` from the ULPDUs. The split of a ULPDU into
/// header and payload varies.
fn frame(crc: bool, markers: bool, ulpdus: &[Vec<u8>], wanted: &[u8]) {
    let (mut staged, mut into, mut in_place) = (Vec::new(), Vec::new(), Vec::new());
    let mut framers = [(); 3].map(|()| Framer::new(crc, markers));
    for (count, ulpdu) in ulpdus.iter().enumerate() {
        let header_len = [0, 14, 18, 70, usize::MAX][count % 5].min(ulpdu.len());
        let header = &ulpdu[..header_len];
        let len = ulpdu.len() - header_len;
        let [first, second, third] = &mut framers;
        let fpdu = first.fpdu_len(ulpdu.len());
        first
            .frame(header, ulpdu.as_slice(), header_len, len, &mut staged)
            .unwrap();

        let mut room = vec![0xEE; fpdu - 1];
        let no_room = second.frame_into(header, ulpdu.as_slice(), header_len, len, &mut room);
        let needed = FrameError::NoRoom {
            needed: fpdu,
            room: fpdu - 1,
        };
        assert_eq!(no_room, Err(needed));
        assert!(room == [0xEE].repeat(fpdu - 1), "written without room");
        room.resize(fpdu + 3, 0xEE);
        let taken = second.frame_into(header, ulpdu.as_slice(), header_len, len, &mut room);
        assert_eq!((taken, &room[fpdu..]), (Ok(fpdu), &[0xEE; 3][..]));
        into.extend_from_slice(&room[..fpdu]);

        // Without Markers, frames in place. With Markers, in-place framing must be refused. Then
        // framing, rewinding and framing again must give the same FPDU.
        let before = third.position();
        match third.frame_in_place(header, ulpdu.as_slice(), header_len, len, &mut in_place) {
            Ok(trailer) => {
                in_place.extend_from_slice(&ulpdu[header_len..]);
                in_place.extend_from_slice(trailer.as_ref());
            }
            Err(error) => {
                assert!(markers && error == FrameError::InPlaceWithMarkers);
                let mut dropped = Vec::new();
                third
                    .frame(header, ulpdu.as_slice(), header_len, len, &mut dropped)
                    .unwrap();
                third.rewind(before);
                third
                    .frame(header, ulpdu.as_slice(), header_len, len, &mut in_place)
                    .unwrap();
            }
        }
        assert!(
            framers
                .iter()
                .all(|framer| framer.position() == staged.len() as u64)
        );
    }
    for made in [staged, into, in_place] {
        assert!(made == wanted, "the framer and the model differ");
    }
}

/// Damages one byte of the stream and compares the deframer with the model. With a CRC, only the
/// ULPDUs before the damaged FPDU may be returned. This is not checked if a length field was
/// damaged, because the FPDU then ends elsewhere.
fn damaged(crc: bool, markers: bool, sealer: &Sealer, at: usize, damage: u8, lengths: &[u8]) {
    let mut stream = sealer.stream().to_vec();
    let at = at % stream.len();
    stream[at] ^= damage;
    let found = deframe(&stream, crc, markers, Cuts::new(lengths));
    assert_eq!(found, open(&stream, crc, markers));
    let hit = sealer
        .starts()
        .iter()
        .rposition(|(start, _)| *start <= at)
        .unwrap_or(0);
    let (start, length_at) = sealer.starts()[hit];
    if crc && !(length_at..length_at + 2).contains(&at) {
        let whole: Vec<Opened> = open(sealer.stream(), crc, markers)
            .0
            .into_iter()
            .take(hit)
            .collect();
        assert_eq!(found, (whole, End::Crc(start as u64)));
    }
}
