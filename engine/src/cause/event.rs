//! Causes of device events that end no connection.

use std::fmt;

use super::parts::{Account, Layer, Who};

/// Event of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Happening {
    Established {
        qp_num: u32,
    },
    CqOverflow {
        cq_num: u32,
        depth: u32,
        qp_num: u32,
    },
    SrqLimit {
        srq_num: u32,
    },
    LastWqe {
        qp_num: u32,
    },
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Established { qp_num } => {
                write!(
                    f,
                    "the connection of QP {qp_num} is open in both directions"
                )
            }
            Self::CqOverflow {
                cq_num,
                depth,
                qp_num,
            } => write!(
                f,
                "completion queue {cq_num} was full ({depth} completions), and a completion of QP {qp_num} is lost"
            ),
            Self::SrqLimit { srq_num } => write!(
                f,
                "shared receive queue {srq_num} has fewer receives left than its limit"
            ),
            Self::LastWqe { qp_num } => write!(
                f,
                "QP {qp_num} has failed and takes no more receives from its shared receive queue"
            ),
        }
    }
}

impl Happening {
    pub(super) const fn account(self) -> Account {
        match self {
            Self::Established { .. } => Account::new("", Who::PeerProgram, Layer::Mpa),
            Self::SrqLimit { .. } => Account::new("", Who::Program, Layer::Verbs)
                .hint("post more receives, then arm the limit again (`Srq::modify`)"),
            Self::LastWqe { .. } => Account::new("", Who::Program, Layer::Verbs)
                .hint("drop or reset it after polling its completions; `Qp::end_reason` says why it failed"),
            Self::CqOverflow { .. } => Account::new("completion lost", Who::Program, Layer::Verbs)
                .hint(DEEPER),
        }
    }
}

/// Hint for a CQ that overflows.
pub(super) const DEEPER: &str = "poll the completion queue more often, or make it as deep as all queues together that complete to it";
