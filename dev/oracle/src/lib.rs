//! The wire of MPA, DDP and RDMAP, written from the RFCs a second time for tests: startup frames,
//! FPDUs with Markers and CRC, segments, Terminate Messages.
//!
//! This crate shares no code with the stack, so that a mistake cannot hide on both sides. Its CRC
//! is the crate `crc32c`, and its parsers are built with `nom`. It is slow and simple.
//!
//! Encoders write any value into any field, because tests need invalid bytes. They panic on a value
//! that the field cannot hold. Parsers return what they find, or an error that says what is wrong.
//!
//! ```
//! use uwarp_oracle::{Fpdus, Framing, SEND, Segment, Untagged};
//!
//! let send = Untagged::new(SEND, 0, 1, b"hello");
//! let stream = Fpdus::new(true, true).seal(&send.bytes());
//! let framing = Framing { markers: true, crc: true };
//! let fpdu = framing.read(&stream, 0).unwrap().unwrap();
//! framing.check(&fpdu).unwrap();
//! assert_eq!(Segment::parse(&fpdu.ulpdu).unwrap(), Segment::Untagged(send));
//! ```

mod fpdu;
mod message;
mod segment;
mod startup;
mod terminate;

pub use ::crc32c::crc32c;
pub use fpdu::{
    Crc, Fpdu, FpduError, Fpdus, Framing, INTERVAL, MAX_ULPDU, Marker, fpdu, receive_fpdu,
};
pub use message::{AtomicHeader, ReadHeader, read_request};
pub use segment::*;
pub use startup::{
    CRC, ENHANCED, MARKERS, NO_DEPTH, PEER_TO_PEER, REJECT, REPLY, REQUEST, RTR_READ, RTR_SEND,
    RTR_WRITE, StartupFrame, WrongKey, receive_startup, startup, startup_claiming, words,
};
pub use terminate::Code;

/// Splits the result of a parser of `nom`. Returns `None` if the input is incomplete, and the error
/// of the parser as its rest of the input.
fn whole<T>(result: nom::IResult<&[u8], T>) -> Result<Option<(&[u8], T)>, &[u8]> {
    match result {
        Ok(parsed) => Ok(Some(parsed)),
        Err(nom::Err::Incomplete(_)) => Ok(None),
        Err(nom::Err::Error(error) | nom::Err::Failure(error)) => Err(error.input),
    }
}

/// Converts a length or a distance to the 16 bits of its field.
///
/// # Panics
/// If the field cannot hold it.
fn field(name: &str, value: usize) -> u16 {
    u16::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit into {name}, 16 bits"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_crc_is_that_of_rfc_3720() {
        // RFC 3720 section B.4.
        assert_eq!(super::crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(super::crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(super::crc32c(&ascending), 0x46DD_794E);
    }
}
