//! RFC 5044 section 7.1.5: the transition from a byte stream to FPDUs.

use crate::script::Action::*;
use crate::script::{Action, Case, Data, FrameChanges, Region, Setup, Stag, To, must, write};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-7.1.5/1",
            &["5044-7.1.5-03"],
            "Nothing is lost between startup and FPDUs, even if both come in small TCP segments.",
        )
        .dangerous()
        .steps((0..TIMES).flat_map(|_| in_pieces())),
    ]
}

/// Number of repetitions, because the result may depend on timing.
const TIMES: usize = 6;

fn in_pieces() -> [Action; 5] {
    [
        Establish(
            Setup::default()
                .no_nudge()
                .frame_changes(FrameChanges::in_pieces((1..64).map(|piece| piece * 3))),
        ),
        Region(Region::writable("r", 4096)),
        SendInPieces(
            write(Stag::Of("r"), To::In("r", 0), 64),
            (1..40).map(|piece| piece * 2).collect(),
        ),
        Ping,
        Holds {
            region: "r",
            offset: 0,
            data: Data::len(64),
        },
    ]
}
