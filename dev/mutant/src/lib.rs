//! Catalogue of deliberate faults of uwarp, called mutants. They show whether the conformance
//! suite, the simulator and the fuzz targets detect errors.
//!
//! The stack has one fault site for each mutant, one line long: `mutate!(right, Name => wrong)`.
//! The sites are compiled in only with `--cfg uwarp_mutants` in `RUSTFLAGS`, so no feature of a
//! published crate can enable them. At most one fault is on, and it is on for the whole process.

#![forbid(unsafe_code)]

/// True in a build with `--cfg uwarp_mutants`, in which the stack has the fault sites.
pub const COMPILED_IN: bool = cfg!(uwarp_mutants);

/// Switches a fault on, and the previous one off. `None` only switches the previous one off.
///
/// # Panics
/// If a fault is requested in a build without the fault sites, where no test could detect it.
pub fn switch(mutant: Option<Mutant>) {
    #[cfg(uwarp_mutants)]
    uwarp_verbs::mutants::switch(
        mutant.map_or(0, |mutant| uwarp_verbs::mutants::id(mutant.name())),
    );
    #[cfg(not(uwarp_mutants))]
    assert!(
        mutant.is_none(),
        "this build has no fault sites; build it with RUSTFLAGS=\"--cfg uwarp_mutants\""
    );
}

/// Specification with the rule that a mutant breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// RFC 5044.
    Mpa,
    /// RFC 6581.
    Enhanced,
    /// RFC 5041.
    Ddp,
    /// RFC 5040.
    Rdmap,
    /// RFC 7306.
    Extensions,
}

macro_rules! mutants {
    ($($layer:ident $name:ident $fault:literal,)*) => {
        /// One fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $(#[doc = concat!($fault, ".")] $name,)*
        }

        impl Mutant {
            /// All mutants, layer by layer.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// Returns the mutant's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$name => stringify!($name),)*
                }
            }

            /// Describes the fault.
            #[must_use]
            pub const fn fault(self) -> &'static str {
                match self {
                    $(Mutant::$name => $fault,)*
                }
            }

            /// Returns the specification of the broken rule.
            #[must_use]
            pub const fn layer(self) -> Layer {
                match self {
                    $(Mutant::$name => Layer::$layer,)*
                }
            }
        }
    };
}

mutants! {
    Mpa PadTooLong "an FPDU has one PAD byte too many",
    Mpa PadNotZero "PAD bytes are sent as 0xEE",
    Mpa CrcMostSignificantFirst "the CRC field is sent most significant byte first",
    Mpa CrcWithoutPad "the sent CRC does not cover the PAD",
    Mpa CrcWithoutMarker "the sent CRC does not cover a Marker before the FPDU",
    Mpa CrcNotChecked "the CRC of received FPDUs is not checked",
    Mpa CrcAlwaysChecked "the CRC field is checked although CRCs are not in use",
    Mpa CrcOnlyIfBothAsk "CRCs are used only if both startup frames ask for them",
    Mpa MarkersNotSent "Markers are not sent although the peer asks for them",
    Mpa MarkersLate "the first Marker is four bytes too early, and so are all that follow",
    Mpa MarkerPointerOff "FPDUPTR is four too large",
    Mpa MarkerReservedSet "a reserved bit of a Marker is set",
    Mpa MarkerErrorIsCrc "a Marker with a wrong FPDUPTR is reported as a CRC error",
    Mpa MarkerLowBitsChecked "the two low bits of FPDUPTR are not ignored",
    Mpa MarkerReservedChecked "Markers with reserved bits set are refused",
    Mpa RequestKeyWrong "the Request has another Key",
    Mpa ReplyKeyWrong "the Reply has another Key",
    Mpa KeyNotChecked "a startup frame with another Key is accepted",
    Mpa ReplyAlwaysRevisionTwo "the Reply to a Request of revision 1 has revision 2",
    Mpa RevisionNotChecked "a startup frame of an unknown revision is handled as revision 2",
    Mpa PdLengthNotChecked "Private Data of more than 512 bytes is accepted",
    Mpa StartupReservedSet "a reserved flag of the startup frames is set",
    Mpa StartupReservedChecked "a startup frame with a reserved flag set is refused",
    Mpa RequestRejectedBitChecked "a Request with R set is refused",
    Mpa PrivateDataCut "at most 256 bytes of the application's Private Data are sent",
    Mpa PdLengthShort "PD_Length leaves out the last byte of the application's Private Data",
    Mpa RejectWithoutR "a Reply that rejects does not have R set",
    Mpa RejectNotHeeded "R in a Reply is ignored",
    Mpa ResponderSendsFirst "a responder sends before it has received an FPDU",
    Mpa TrailingBytesTaken "bytes after the Private Data of a Request are not noticed",
    Enhanced DepthsSwapped "IRD and ORD are swapped in enhanced connection data",
    Enhanced OrdAboveIrd "a responder's ORD is not lowered to the initiator's IRD",
    Enhanced NoAutoIsANumber "IRD and ORD of 0x3FFF are answered with numbers",
    Enhanced ModelNotEchoed "a responder answers the peer-to-peer model with client-server",
    Enhanced RtrNotSent "an initiator sends no RTR indication",
    Enhanced RtrNotTaken "an initiator's RTR indication is of a kind that the Reply does not name",
    Enhanced RtrSendDelivered "the Send of an RTR indication uses a receive of the application",
    Enhanced OrdNotLowered "an initiator's ORD is not lowered to the responder's IRD",
    Enhanced IrdTooSmallTaken "an initiator continues although the responder's ORD exceeds its IRD",
    Enhanced NoRtrTaken "an initiator continues although no RTR indication is in common",
    Ddp DvWrong "DV is sent as 0",
    Ddp DdpReservedSet "a reserved bit of DDP Control is set",
    Ddp DvNotChecked "DV of received segments is not checked",
    Ddp DdpReservedChecked "a segment with a reserved bit of DDP Control set is refused",
    Ddp LastTooEarly "every segment has L set",
    Ddp LastMissing "the last segment of a Send does not have L set",
    Ddp MsnFromZero "the first Send has MSN 0",
    Ddp RequestMsnStuck "every Read Request has MSN 1",
    Ddp MoStuck "MO is 0 in every segment",
    Ddp ToStuck "TO is the same in every segment of a message",
    Ddp QnNotChecked "a segment with an unknown Queue Number is accepted as one for its opcode's queue",
    Ddp MsnNotChecked "MSN of received segments is not checked",
    Ddp MoNotChecked "MO of received segments is not checked",
    Ddp TooLongTruncated "the bytes of a Send beyond the end of its receive are dropped",
    Ddp DeliveredWithoutLast "every segment of a Send is delivered as a separate Send",
    Ddp NoReceiveNeeded "a Send that finds no receive is dropped",
    Ddp ToWrapTaken "a Write whose TO wraps is not refused for this reason",
    Ddp BoundsOffByOne "one byte after the end of a region is accepted, and dropped",
    Ddp BaseNotChecked "an address before a region is handled as its start",
    Ddp StagKeyIgnored "the key of an STag is ignored",
    Ddp PdNotChecked "the protection domain of an STag is not checked",
    Ddp StreamNotChecked "an STag that belongs to another connection is accepted",
    Ddp WriteRightIgnored "the right to write is not checked",
    Ddp ShortHeaderFilled "the missing bytes of a DDP Header are read as zero",
    Ddp ShortSegmentDropped "a segment shorter than its DDP Header is dropped, and the stream continues",
    Ddp ZeroLengthWriteChecked "the STag of an empty Write is checked",
    Rdmap RvWrong "RV is sent as 0",
    Rdmap RdmapReservedSet "a reserved bit of RDMAP Control is set",
    Rdmap InvalidateStagNotZero "Invalidate STag is not zero in messages that invalidate nothing",
    Rdmap InvalidateStagLost "Invalidate STag is zero in a Send with Invalidate",
    Rdmap SolicitedLost "a Send with Solicited Event is sent as a plain Send",
    Rdmap ReadRequestOnQueue0 "Read Requests go to QN 0",
    Rdmap RvNotChecked "RV of received segments is not checked",
    Rdmap RdmapReservedChecked "a segment with a reserved bit of RDMAP Control set is refused",
    Rdmap UnknownOpcodeIsSend "an unknown opcode is handled as a Send",
    Rdmap SendOnQueue1 "a Send on QN 1 is accepted",
    Rdmap TaggedSendIsWrite "a tagged segment of any opcode but Read Response is handled as a Write",
    Rdmap RsvdUlpChanges "the segments of a Send after the first have another opcode",
    Rdmap IrdNotEnforced "more Reads than IRD are accepted",
    Rdmap ShortReadRequestFilled "the missing bytes of a Read Request's header are read as zero",
    Rdmap ReadRightIgnored "the right to read is not checked",
    Rdmap ZeroLengthReadChecked "the STag of an empty Read is checked",
    Rdmap ReadsAnsweredBackwards "the latest queued Read is answered first",
    Rdmap ReadResponseWrongStag "a Read Response goes to the source's STag",
    Rdmap ReadResponseWrongTo "a Read Response goes to the source's TO",
    Rdmap ReadResponseNextByte "a Read Response has the bytes at the next address",
    Rdmap OrdExceeded "more Reads are outstanding than ORD",
    Rdmap ResponseStagNotChecked "the STag of a Read Response is not checked",
    Rdmap ResponseToNotChecked "the TO of a Read Response is not checked",
    Rdmap InvalidateNotDone "a Send with Invalidate invalidates nothing",
    Rdmap InvalidateForeign "an STag that other connections also use may be invalidated",
    Rdmap TerminateNeedsBuffer "a received Terminate finds no buffer",
    Rdmap TerminateNibblesSwapped "Layer and Error Type are swapped in a Terminate",
    Rdmap TerminateBitsReversed "M, D and R are sent in the low bits of their byte",
    Rdmap TerminateReservedSet "a reserved bit of a Terminate is set",
    Rdmap TerminateCodeOff "the Error Code of a Terminate is one too high",
    Rdmap TerminateWithoutHeaders "a Terminate lacks the headers of the invalid segment",
    Rdmap TerminateWithoutReadHeader "a Terminate about a Read Request lacks its RDMAP header",
    Rdmap TerminateLengthOfPayload "DDP Segment Length in a Terminate leaves out the DDP Header",
    Rdmap TerminateTwice "a Terminate is sent twice",
    Rdmap NoTerminate "an error ends the connection without a Terminate",
    Rdmap NoCloseAfterTerminate "the connection stays open after an error",
    Rdmap NoFin "no FIN is ever sent: connections end by a reset after a timeout",
    Extensions AddMaskIgnored "a FetchAdd carries from one field into the next",
    Extensions AtomicReturnsNewValue "an Atomic Response has the value from after the operation",
    Extensions AtomicByteOrder "an Atomic Response has the value in another byte order",
    Extensions SwapWithoutCompare "a CmpSwap stores without comparing",
    Extensions SwapMaskIgnored "a CmpSwap ignores its Swap Mask",
    Extensions CompareMaskIgnored "a CmpSwap ignores its Compare Mask",
    Extensions MisalignedAtomicDone "an atomic at a misaligned address is executed at the multiple of 8 below it",
    Extensions ShortAtomicFilled "the missing bytes of the header of an Atomic Request or Response are read as zero",
    Extensions AtomicRightIgnored "the right to atomics is not checked",
    Extensions UnknownAtomicDone "an Atomic Request of an unknown kind is answered",
    Extensions AtomicIdNotEchoed "an Atomic Response has Request Identifier 0",
    Extensions AtomicResponseOnQueue1 "Atomic Responses go to QN 1",
    Extensions AtomicIdNotChecked "the Request Identifier of an Atomic Response is not checked",
    Extensions CompareMaskZero "the Compare Mask of a FetchAdd is sent as 0",
    Extensions ImmediateLengthNotChecked "Immediate Data of any length is accepted",
    Extensions ImmediateNotCounted "sent Immediate Data uses no MSN",
}

impl Mutant {
    /// Returns the mutant with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL
            .iter()
            .copied()
            .find(|mutant| mutant.name() == name)
    }
}
