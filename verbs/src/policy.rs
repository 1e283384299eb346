//! Policy: when to send, poll, yield and sleep, and how much one turn takes. The constants of these
//! choices in this crate are here, each with the reason for its value:
//!
//! * [`progress`]: posts, polls, waits and the background.
//! * [`transfer`]: bounds on a turn.
//!
//! Those of the kernel's TCP are in [`uwarp_llp::policy`]. Those of batches, buffers and registered
//! memory are in [`uwarp_engine::policy`]. Limits, waits of the protocols and what the
//! RFCs demand are no policy; they are in `settings.rs`, in `limits` of the engine, and beside
//! their code.
//!
//! `UWARP_POLICY_OFF` builds without one or more of these heuristics, for a measurement
//! ([`uwarp_engine::policy`] has the details). [`Heuristic`] lists them, and says what remains
//! without each.

pub(crate) mod progress;
pub(crate) mod transfer;

uwarp_engine::heuristics! {
    pub(crate) const NAMES;

    /// Off: the background checks every `takeover` while programs poll.
    BackOff = "back_off",
    /// Off: polls that find completions never drive the connections of a large CQ.
    BusyPolls = "busy_polls",
    /// Off: each post is sent before it returns.
    Doorbell = "doorbell",
    /// Off: a poll gives a turn to every connection of its CQ, and a wait sleeps on all of them.
    EpollGroup = "epoll_group",
    /// Off: each poll queries the epoll set of its group.
    LastActive = "last_active",
    /// Off: confirmations of Writes are sent in the turn in which they are due.
    LateConfirmations = "late_confirmations",
    /// Off: only the background drives connections that no thread polls.
    OrphanPolling = "orphan_polling",
    /// Off: the clock is read after every turn of a poll.
    RareClock = "rare_clock",
    /// Off: no poll waits for the peer's reply.
    ReplyWait = "reply_wait",
    /// Off: the background serves each event at once, also of connections that are being polled.
    StandBack = "stand_back",
}

const _: () = assert!(
    uwarp_engine::policy::has_only(&[NAMES, uwarp_llp::policy::NAMES, uwarp_engine::policy::NAMES]),
    "UWARP_POLICY_OFF has a name that is no heuristic"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_meaning() {
        let mut all = [NAMES, uwarp_llp::policy::NAMES, uwarp_engine::policy::NAMES].concat();
        assert!(NAMES.is_sorted());
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_heuristic_is_on_unless_the_build_leaves_it_out() {
        let off = uwarp_engine::policy::is_off("doorbell");
        assert_eq!(is_on(Heuristic::Doorbell), !off);
    }
}
