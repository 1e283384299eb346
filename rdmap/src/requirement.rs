//! Requirements of the RFCs that errors refer to.

use core::fmt;

/// One requirement of an RFC. It has a short id: the RFC, the section, and a number within the
/// section. A number such as `i01` marks a requirement that the section implies but does not state.
///
/// ```
/// let demand =
///     uwarp_rdmap::Requirement::new("5041-7.1-14", "Tagged Offset plus length does not wrap");
/// assert_eq!((demand.rfc(), demand.section()), ("5041", "7.1"));
/// assert_eq!(
///     demand.to_string(),
///     "RFC 5041 section 7.1: Tagged Offset plus length does not wrap (5041-7.1-14)"
/// );
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Requirement {
    id: &'static str,
    text: &'static str,
}

impl Requirement {
    /// Creates the requirement with this id (`RFC-SECTION-NUMBER`) and text.
    #[must_use]
    pub const fn new(id: &'static str, text: &'static str) -> Self {
        Requirement { id, text }
    }

    /// Returns the id: `5041-7.1-11`.
    #[must_use]
    pub const fn id(&self) -> &'static str {
        self.id
    }

    /// Returns the text of the requirement.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.text
    }

    /// Returns the number of the RFC.
    #[must_use]
    pub fn rfc(&self) -> &'static str {
        self.id.split('-').next().unwrap_or_default()
    }

    /// Returns the section of the RFC.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.id.split('-').nth(1).unwrap_or_default()
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rfc, section) = (self.rfc(), self.section());
        write!(
            f,
            "RFC {rfc} section {section}: {} ({})",
            self.text, self.id
        )
    }
}

macro_rules! requirements {
    ($($name:ident = $id:literal $text:literal;)*) => {
        $(pub(crate) const $name: Requirement = Requirement::new($id, $text);)*
    };
}

requirements! {
    LOCAL_ERROR = "5040-7.1-02" "a side that cannot make a message sends a Terminate in its place";
    SOURCE_VALID = "5040-7.2-06" "the source STag of a Read Request is valid";
    SOURCE_BOUNDS = "5040-7.2-09" "a Read Request asks for nothing outside of the source's memory";
    SOURCE_READABLE = "5040-3.2-i01" "the source STag of a Read Request allows remote read";
    SOURCE_ASSOCIATED = "5040-7.2-07" "the source STag of a Read Request belongs to this stream";
    SOURCE_WRAP = "5040-7.2-10" "source Tagged Offset plus length does not wrap";
    INVALIDATE = "5040-5.3-12" "an STag to be invalidated belongs to this stream";
    VERSION = "5040-7.2-03" "the RDMAP version is 1";
    OPCODE = "5040-7.2-02" "the opcode is one that the receiver knows and expects";
    PLACE_OF_OPCODE = "5040-4.1-06" "each message goes to its own buffer model and queue";
    ALIGNED = "7306-8.2-05" "the target of an atomic operation is 64-bit aligned";
    ATOMIC_OP = "7306-5.2.1-06" "the operation code of an Atomic Request is FetchAdd or CmpSwap";
    ATOMIC_RESPONSE = "7306-5.2.2-i02" "an Atomic Response answers the oldest Atomic Operation";
    IMMEDIATE_LENGTH = "7306-6.3-07" "Immediate Data has exactly 8 bytes";
    IRD = "5040-6.1-05" "no more Reads are outstanding than were negotiated";
    RESPONSE_EXPECTED = "5040-5.2.2-i01" "a Read Response answers a Read";
    RESPONSE_MATCHES = "5040-5.2.2-05" "a Read Response fits the sink of its Read";
    STAG_VALID = "5041-7.1-10" "the STag of a tagged segment is valid for this stream";
    STAG_WRITABLE = "5041-7.1-11" "the STag of a tagged segment allows what is to be placed";
    STAG_BOUNDS = "5041-7.1-13" "a tagged segment stays within the memory of its STag";
    STAG_ASSOCIATED = "5041-8.2-01" "the STag belongs to the protection domain and the stream";
    STAG_WRAP = "5041-7.1-14" "Tagged Offset plus length does not wrap";
    TAGGED_VERSION = "5041-4.1-12" "the DDP version of a tagged segment is the stream's";
    UNTAGGED_VERSION = "5041-4.1-13" "the DDP version of an untagged segment is the stream's";
    QUEUE = "5041-7.1-01" "the Queue Number is one of the stream's";
    BUFFER_POSTED = "5041-7.1-02" "a buffer is posted for every untagged message";
    MSN_RANGE = "5041-7.1-05" "the Message Sequence Number is that of a posted buffer";
    MESSAGE_OFFSET = "5041-7.1-03" "the Message Offset lies within the buffer";
    MESSAGE_FITS = "5041-7.1-04" "an untagged message fits its buffer";
    HEADER_VALID = "5041-6.2.2-03" "every field of a DDP header is valid, and the header is whole";
    TCP_STANDS = "5044-8-01" "the TCP connection is closed only when both sides are done";
    CRC = "5044-8-02" "the CRC of an FPDU fits its bytes";
    MARKERS = "5044-8-03" "Markers and ULPDU Lengths agree on where FPDUs begin";
    STARTUP_FRAME = "5044-8-04" "MPA Request and Reply are valid frames";
    SETUP = "6581-9.3-01" "a local error of enhanced setup ends it with a Terminate";
    ENOUGH_IRD = "6581-9.1-08" "each side has the IRD that the other side's ORD needs";
    COMMON_RTR = "6581-9.2-10" "both sides know a common RTR indication";
}
