//! Checks that runs detect deliberate faults of the stack, which shows that the checks of a run can
//! fail.

use std::panic::catch_unwind;

use uwarp_mutant::Mutant;
use uwarp_sim::{Log, Options, run};

/// Each fault affects both sides in the same way. So only the checks of programs, of the device or
/// of the protocol monitor can detect it.
const FOUND: [Mutant; 75] = [
    Mutant::CrcNotChecked,
    Mutant::MarkerPointerOff,
    Mutant::DepthsSwapped,
    Mutant::OrdAboveIrd,
    Mutant::LastTooEarly,
    Mutant::LastMissing,
    Mutant::DeliveredWithoutLast,
    Mutant::TooLongTruncated,
    Mutant::ToStuck,
    Mutant::MoStuck,
    Mutant::RequestMsnStuck,
    Mutant::StagKeyIgnored,
    Mutant::BoundsOffByOne,
    Mutant::SolicitedLost,
    Mutant::InvalidateStagLost,
    Mutant::InvalidateNotDone,
    Mutant::InvalidateForeign,
    Mutant::ReadRightIgnored,
    Mutant::ReadResponseNextByte,
    Mutant::ReadsAnsweredBackwards,
    Mutant::ZeroLengthReadChecked,
    Mutant::IrdNotEnforced,
    Mutant::OrdExceeded,
    Mutant::TerminateCodeOff,
    Mutant::NoTerminate,
    Mutant::NoCloseAfterTerminate,
    Mutant::NoFin,
    Mutant::AddMaskIgnored,
    Mutant::AtomicReturnsNewValue,
    Mutant::AtomicByteOrder,
    Mutant::SwapWithoutCompare,
    Mutant::SwapMaskIgnored,
    Mutant::CompareMaskIgnored,
    Mutant::MisalignedAtomicDone,
    Mutant::ImmediateNotCounted,
    Mutant::ResponderSendsFirst,
    Mutant::MsnFromZero,
    Mutant::TerminateTwice,
    Mutant::PadNotZero,
    Mutant::PadTooLong,
    Mutant::DdpReservedSet,
    Mutant::RdmapReservedSet,
    Mutant::MarkerReservedSet,
    Mutant::InvalidateStagNotZero,
    Mutant::CrcWithoutPad,
    Mutant::CrcWithoutMarker,
    Mutant::MarkersNotSent,
    Mutant::MarkersLate,
    Mutant::ReadRequestOnQueue0,
    Mutant::AtomicResponseOnQueue1,
    Mutant::RsvdUlpChanges,
    Mutant::AtomicRightIgnored,
    Mutant::NoReceiveNeeded,
    Mutant::CrcMostSignificantFirst,
    Mutant::CrcOnlyIfBothAsk,
    Mutant::RequestKeyWrong,
    Mutant::ReplyKeyWrong,
    Mutant::PrivateDataCut,
    Mutant::PdLengthShort,
    Mutant::RejectWithoutR,
    Mutant::RejectNotHeeded,
    Mutant::ModelNotEchoed,
    Mutant::RtrNotSent,
    Mutant::RtrNotTaken,
    Mutant::DvWrong,
    Mutant::ToWrapTaken,
    Mutant::BaseNotChecked,
    Mutant::ZeroLengthWriteChecked,
    Mutant::RvWrong,
    Mutant::ReadResponseWrongStag,
    Mutant::ReadResponseWrongTo,
    Mutant::TerminateNeedsBuffer,
    Mutant::TerminateNibblesSwapped,
    Mutant::AtomicIdNotEchoed,
    Mutant::CompareMaskZero,
];

/// Maximum number of runs in which a fault must be detected.
const RUNS: u64 = 400;

/// A single test, because the switch for faults is global to the process.
#[cfg_attr(
    not(uwarp_mutants),
    ignore = "needs the sites of the faults: ./ci.sh mutants-smoke"
)]
#[test]
fn runs_find_faults_of_the_stack() {
    let options = Options {
        log: Log::Off,
        crc: true,
    };
    let holds = |seed: u64| matches!(catch_unwind(|| run(seed, options)), Ok(Ok(_)));
    assert!((1..=4).all(holds), "without a fault");
    let mut hidden = Vec::new();
    for mutant in FOUND {
        uwarp_mutant::switch(Some(mutant));
        let found = (1..=RUNS).find(|seed| !holds(*seed));
        uwarp_mutant::switch(None);
        match found {
            Some(seed) => println!("{} is found by seed {seed}", mutant.name()),
            None => hidden.push(format!("{}: {}", mutant.name(), mutant.fault())),
        }
    }
    assert!(
        hidden.is_empty(),
        "not found in {RUNS} runs:\n{}",
        hidden.join("\n")
    );
}
