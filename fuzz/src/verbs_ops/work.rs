//! Open work requests, and the check of their completions.

use std::collections::BTreeMap;

use uwarp_verbs::{Completion, Status};

/// Queue of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// Send queue of a QP.
    Send(u32),
    /// Receive queue of a QP.
    Recv(u32),
    /// SRQ: any of its QPs may complete the request.
    Srq(u32),
}

#[derive(Clone, Copy, Debug)]
struct Open {
    owner: Owner,
    signaled: bool,
    /// True if the queue or its CQ is gone or has lost completions. The request need not complete.
    gone: bool,
}

/// All posted work requests that have not completed. Numbers are assigned in posting order and
/// never reused.
#[derive(Debug, Default)]
pub(super) struct Work {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl Work {
    /// Assigns the number of the next work request.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records a posted work request.
    pub(super) fn posted(&mut self, wr_id: u64, owner: Owner, signaled: bool) {
        let open = Open {
            owner,
            signaled,
            gone: false,
        };
        assert!(self.open.insert(wr_id, open).is_none());
    }

    /// Returns an upper bound of the number of open work requests in a queue.
    pub(super) fn count(&self, owner: Owner) -> usize {
        self.open
            .values()
            .filter(|open| open.owner == owner)
            .count()
    }

    /// Returns the number of completions still due from a queue. At least this number of its slots
    /// is in use.
    pub(super) fn owed(&self, owner: Owner) -> usize {
        let open = self.open.values();
        open.filter(|open| open.owner == owner && open.signaled && !open.gone)
            .count()
    }

    /// Returns two counts for a queue: work requests that are certainly open, and those that may be
    /// open.
    pub(super) fn certain(&self, owner: Owner) -> (usize, usize) {
        let of = |gone| {
            let open = self.open.values();
            open.filter(|open| open.owner == owner && open.gone == gone)
                .count()
        };
        (of(false), of(true))
    }

    /// Records that a queue or some of its completions are lost. Its open requests need not
    /// complete.
    pub(super) fn give_up(&mut self, owner: Owner) {
        self.open
            .values_mut()
            .filter(|open| open.owner == owner)
            .for_each(|open| open.gone = true);
    }

    /// Checks a completion. `srq` is `None` if the QP is not known; otherwise it is the SRQ of the
    /// QP, if there is one.
    pub(super) fn completed(&mut self, completion: &Completion, srq: Option<Option<u32>>) {
        let Completion { wr_id, qp_num, .. } = *completion;
        let Some(done) = self.open.remove(&wr_id) else {
            panic!("no open work request for {completion:?}");
        };
        match done.owner {
            Owner::Send(qp) | Owner::Recv(qp) => assert_eq!(qp, qp_num, "{completion:?}"),
            Owner::Srq(own) => {
                assert!(srq.is_none_or(|srq| srq == Some(own)), "{completion:?}");
                assert!(completion.opcode.is_recv(), "{completion:?}");
                return;
            }
        }
        let sends = matches!(done.owner, Owner::Send(_));
        assert_eq!(completion.opcode.is_recv(), !sends, "{completion:?}");
        assert!(
            done.signaled || completion.status != Status::Success,
            "unsignaled: {completion:?}"
        );
        // Completions are in posting order. So each earlier request has completed, or was
        // unsignaled and succeeded.
        self.open.retain(|number, open| {
            if *number > wr_id || open.owner != done.owner {
                return true;
            }
            assert!(
                open.gone || !open.signaled,
                "{completion:?} before work request {number}"
            );
            open.gone
        });
    }

    /// Checks a queue in Error whose completions were all polled: no signaled request is still
    /// open. An unsignaled request keeps its slot until a later request completes.
    pub(super) fn ended(&self, owner: Owner) {
        for (number, open) in &self.open {
            assert!(
                open.owner != owner || open.gone || !open.signaled,
                "work request {number} of {owner:?} never completes"
            );
        }
    }
}
