//! Catalogue of deliberate faults of uwarp, one at a time. They test whether the conformance suite, the simulator and
//! the fuzz targets find what is wrong.
//!
//! The sites are in the crates of the stack, one line each: `mutate!(right, Name => wrong)`. They are compiled in with
//! `--cfg uwarp_mutants` in `RUSTFLAGS` and not otherwise, so no feature of a published crate turns them on. One fault
//! is on at a time, for the whole process.

#![forbid(unsafe_code)]

/// True in a build with `--cfg uwarp_mutants`: the stack has the sites.
pub const COMPILED_IN: bool = cfg!(uwarp_mutants);

/// Switches a fault on in place of the one before; `None` makes the stack right again.
///
/// # Panics
/// In a build without the sites, where a test that asks for a fault would find nothing.
pub fn switch(mutant: Option<Mutant>) {
    #[cfg(uwarp_mutants)]
    uwarp_verbs::mutants::switch(
        mutant.map_or(0, |mutant| uwarp_verbs::mutants::id(mutant.name())),
    );
    #[cfg(not(uwarp_mutants))]
    assert!(
        mutant.is_none(),
        "this build has no sites for faults; build it with RUSTFLAGS=\"--cfg uwarp_mutants\""
    );
}

/// Where a mutant's rule comes from.
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
            /// All of them, layer by layer.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Mutant::$name => stringify!($name),)*
                }
            }

            /// What is wrong, in words.
            #[must_use]
            pub const fn fault(self) -> &'static str {
                match self {
                    $(Mutant::$name => $fault,)*
                }
            }

            /// Where its rule comes from.
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
    Mpa PadTooLong "an FPDU has one byte of PAD more than it should",
    Mpa PadNotZero "PAD bytes are sent as 0xEE",
    Mpa CrcMostSignificantFirst "the CRC field is sent most significant byte first",
    Mpa CrcWithoutPad "the CRC that is sent does not cover the PAD",
    Mpa CrcWithoutMarker "the CRC that is sent does not cover a Marker in front of the FPDU",
    Mpa CrcNotChecked "the CRC of what arrives is not checked",
    Mpa CrcAlwaysChecked "the CRC field is checked although CRCs are not in use",
    Mpa CrcOnlyIfBothAsk "CRCs are used only if both startup frames ask for them",
    Mpa MarkersNotSent "Markers are not sent although the peer asks for them",
    Mpa MarkersLate "the first Marker stands four bytes too early, and so do all that follow",
    Mpa MarkerPointerOff "FPDUPTR is four too large",
    Mpa MarkerReservedSet "a reserved bit of a Marker is set",
    Mpa MarkerErrorIsCrc "a Marker that points elsewhere is told as a CRC error",
    Mpa MarkerLowBitsChecked "the two low bits of FPDUPTR are not taken as zero",
    Mpa MarkerReservedChecked "Markers with reserved bits set are refused",
    Mpa RequestKeyWrong "the Request has another Key",
    Mpa ReplyKeyWrong "the Reply has another Key",
    Mpa KeyNotChecked "a startup frame with another Key is taken",
    Mpa ReplyAlwaysRevisionTwo "the Reply to a Request of revision 1 has revision 2",
    Mpa RevisionNotChecked "a startup frame of an unknown revision is taken for one of revision 2",
    Mpa PdLengthNotChecked "Private Data of more than 512 bytes is taken",
    Mpa StartupReservedSet "a reserved flag of the startup frames is set",
    Mpa StartupReservedChecked "a startup frame with a reserved flag set is refused",
    Mpa RequestRejectedBitChecked "a Request with R set is refused",
    Mpa PrivateDataCut "at most 256 bytes of the application's Private Data are sent",
    Mpa PdLengthShort "PD_Length leaves out the last byte of the application's Private Data",
    Mpa RejectWithoutR "a Reply that rejects does not have R set",
    Mpa RejectNotHeeded "R in a Reply is not looked at",
    Mpa ResponderSendsFirst "a responder sends before it has received an FPDU",
    Mpa TrailingOctetsTaken "bytes behind the Private Data of a Request are not seen",
    Enhanced DepthsSwapped "IRD and ORD change places in enhanced connection data",
    Enhanced OrdAboveIrd "a responder's ORD is not lowered to the initiator's IRD",
    Enhanced NoAutoIsANumber "IRD and ORD of 0x3FFF are answered with numbers",
    Enhanced ModelNotEchoed "a responder answers the peer-to-peer model with client-server",
    Enhanced RtrNotSent "an initiator sends no RTR indication",
    Enhanced RtrNotTaken "an initiator's RTR indication is of a kind that the Reply does not name",
    Enhanced RtrSendDelivered "the Send of an RTR indication takes a receive of the application",
    Enhanced OrdNotLowered "an initiator's ORD is not lowered to the responder's IRD",
    Enhanced IrdTooSmallTaken "an initiator goes on with a responder's ORD above what it can take",
    Enhanced NoRtrTaken "an initiator goes on although no RTR indication is in common",
    Ddp DvWrong "DV is sent as 0",
    Ddp DdpReservedSet "a reserved bit of DDP Control is set",
    Ddp DvNotChecked "DV of what arrives is not checked",
    Ddp DdpReservedChecked "a segment with a reserved bit of DDP Control set is refused",
    Ddp LastTooEarly "every segment has L set",
    Ddp LastMissing "the last segment of a Send does not have L set",
    Ddp MsnFromZero "the first Send has MSN 0",
    Ddp RequestMsnStuck "every Read Request has MSN 1",
    Ddp MoStuck "MO is 0 in every segment",
    Ddp ToStuck "TO is the same in every segment of a message",
    Ddp QnNotChecked "a segment for a Queue Number that does not exist is taken for one of its opcode's",
    Ddp MsnNotChecked "MSN of what arrives is not checked",
    Ddp MoNotChecked "MO of what arrives is not checked",
    Ddp TooLongTruncated "what a Send has beyond the end of its receive is dropped",
    Ddp DeliveredWithoutLast "every segment of a Send is delivered as a Send of its own",
    Ddp NoReceiveNeeded "a Send that finds no receive is dropped",
    Ddp ToWrapTaken "a Write whose TO wraps is not refused for that",
    Ddp BoundsOffByOne "one byte behind the end of a region is taken, and dropped",
    Ddp BaseNotChecked "bytes in front of a region are taken for its first",
    Ddp StagKeyIgnored "the key of an STag is not looked at",
    Ddp PdNotChecked "the protection domain of an STag is not checked",
    Ddp StreamNotChecked "that an STag is for another connection alone is not checked",
    Ddp WriteRightIgnored "the right to write is not checked",
    Ddp ShortHeaderFilled "the bytes that a DDP Header lacks are taken as zero",
    Ddp ShortSegmentDropped "a segment shorter than its DDP Header is dropped, and the stream goes on",
    Ddp ZeroLengthWriteChecked "the STag of a Write of no bytes is checked",
    Rdmap RvWrong "RV is sent as 0",
    Rdmap RdmapReservedSet "a reserved bit of RDMAP Control is set",
    Rdmap InvalidateStagNotZero "Invalidate STag is not zero in messages that invalidate nothing",
    Rdmap InvalidateStagLost "Invalidate STag is zero in a Send with Invalidate",
    Rdmap SolicitedLost "a Send with Solicited Event goes out as a Send",
    Rdmap ReadRequestOnQueue0 "Read Requests go to QN 0",
    Rdmap RvNotChecked "RV of what arrives is not checked",
    Rdmap RdmapReservedChecked "a segment with a reserved bit of RDMAP Control set is refused",
    Rdmap UnknownOpcodeIsSend "an unknown opcode is taken for a Send",
    Rdmap SendOnQueue1 "a Send on QN 1 is taken",
    Rdmap TaggedSendIsWrite "a tagged segment of any opcode but Read Response is taken for a Write",
    Rdmap RsvdUlpChanges "the segments of a Send behind the first have another opcode",
    Rdmap IrdNotEnforced "more Reads than IRD are taken",
    Rdmap ShortReadRequestFilled "the bytes that the header of a Read Request lacks are taken as zero",
    Rdmap ReadRightIgnored "the right to read is not checked",
    Rdmap ZeroLengthReadChecked "the STag of a Read of no bytes is checked",
    Rdmap ReadsAnsweredBackwards "of Reads that wait, the last is answered first",
    Rdmap ReadResponseWrongStag "a Read Response goes to the source's STag",
    Rdmap ReadResponseWrongTo "a Read Response goes to the source's TO",
    Rdmap ReadResponseNextOctet "a Read Response has the bytes one further on",
    Rdmap OrdExceeded "more Reads are outstanding than ORD",
    Rdmap ResponseStagNotChecked "the STag of a Read Response is not checked",
    Rdmap ResponseToNotChecked "the TO of a Read Response is not checked",
    Rdmap InvalidateNotDone "a Send with Invalidate invalidates nothing",
    Rdmap InvalidateForeign "an STag that other connections use, too, may be invalidated",
    Rdmap TerminateNeedsBuffer "a Terminate that arrives finds no buffer",
    Rdmap TerminateNibblesSwapped "Layer and Error Type change places in a Terminate",
    Rdmap TerminateBitsReversed "M, D and R are sent at the other end of their byte",
    Rdmap TerminateReservedSet "a reserved bit of a Terminate is set",
    Rdmap TerminateCodeOff "the Error Code of a Terminate is one too high",
    Rdmap TerminateWithoutHeaders "a Terminate has no header of the segment that was wrong",
    Rdmap TerminateWithoutReadHeader "a Terminate about a Read Request does not have its RDMAP header",
    Rdmap TerminateLengthOfPayload "DDP Segment Length in a Terminate leaves out the DDP Header",
    Rdmap TerminateTwice "a Terminate is sent twice",
    Rdmap NoTerminate "an error ends the connection without a Terminate",
    Rdmap NoCloseAfterTerminate "the connection stays open after an error",
    Rdmap NoFin "no FIN is ever sent: connections end by a reset, when time is over",
    Extensions AddMaskIgnored "FetchAdd carries from field to field",
    Extensions AtomicReturnsNewValue "an Atomic Response has the value after the operation",
    Extensions AtomicByteOrder "an Atomic Response has the value in another byte order",
    Extensions SwapWithoutCompare "CmpSwap stores whatever it finds",
    Extensions SwapMaskIgnored "CmpSwap stores the bits that its Swap Mask leaves out, too",
    Extensions CompareMaskIgnored "CmpSwap compares the bits that its Compare Mask leaves out, too",
    Extensions MisalignedAtomicDone "an atomic at an address that is no multiple of 8 is done at the one below it",
    Extensions ShortAtomicFilled "the bytes that the header of an Atomic Request or Response lacks are taken as zero",
    Extensions AtomicRightIgnored "the right to atomics is not checked",
    Extensions UnknownAtomicDone "an Atomic Request of an unknown kind is answered",
    Extensions AtomicIdNotEchoed "an Atomic Response has Request Identifier 0",
    Extensions AtomicResponseOnQueue1 "Atomic Responses go to QN 1",
    Extensions AtomicIdNotChecked "the Request Identifier of an Atomic Response is not checked",
    Extensions CompareMaskZero "the Compare Mask of a FetchAdd is sent as 0",
    Extensions ImmediateLengthNotChecked "Immediate Data of any length is taken",
    Extensions ImmediateNotCounted "Immediate Data that is sent uses up no MSN",
}

impl Mutant {
    /// The mutant of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL
            .iter()
            .copied()
            .find(|mutant| mutant.name() == name)
    }
}
