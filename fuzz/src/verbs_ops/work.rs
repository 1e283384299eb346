//! Which work requests are open, and which completions there may be.

use std::collections::BTreeMap;

use uwarp_verbs::{Completion, Status};

/// Whose a work request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The send queue of a QP.
    Send(u32),
    /// The receive queue of a QP.
    Recv(u32),
    /// An SRQ: any of its QPs may complete it.
    Srq(u32),
}

#[derive(Clone, Copy, Debug)]
struct Open {
    owner: Owner,
    signaled: bool,
    /// Its QP, SRQ or CQ is gone or has lost completions: it may complete, and need not.
    gone: bool,
}

/// All that was posted and has not completed. Numbers are given in the order of posting, and never twice.
#[derive(Debug, Default)]
pub(super) struct Work {
    open: BTreeMap<u64, Open>,
    last: u64,
}

impl Work {
    /// The number of the next work request.
    pub(super) const fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// It was posted.
    pub(super) fn posted(&mut self, wr_id: u64, owner: Owner, signaled: bool) {
        let open = Open {
            owner,
            signaled,
            gone: false,
        };
        assert!(self.open.insert(wr_id, open).is_none());
    }

    /// How many of this owner are open, as far as anybody can know.
    pub(super) fn count(&self, owner: Owner) -> usize {
        self.open
            .values()
            .filter(|open| open.owner == owner)
            .count()
    }

    /// Completions that this owner still owes: as many of its places are certainly taken.
    pub(super) fn owed(&self, owner: Owner) -> usize {
        let open = self.open.values();
        open.filter(|open| open.owner == owner && open.signaled && !open.gone)
            .count()
    }

    /// How many of this owner are certainly open, and how many perhaps.
    pub(super) fn certain(&self, owner: Owner) -> (usize, usize) {
        let of = |gone| {
            let open = self.open.values();
            open.filter(|open| open.owner == owner && open.gone == gone)
                .count()
        };
        (of(false), of(true))
    }

    /// The owner is gone, or some of its completions are.
    pub(super) fn give_up(&mut self, owner: Owner) {
        self.open
            .values_mut()
            .filter(|open| open.owner == owner)
            .for_each(|open| open.gone = true);
    }

    /// A completion came. `srq`: that of the QP, if it has one.
    pub(super) fn completed(&mut self, completion: &Completion, srq: Option<Option<u32>>) {
        let Completion { wr_id, qp_num, .. } = *completion;
        let Some(done) = self.open.remove(&wr_id) else {
            panic!("nobody waits for {completion:?}");
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
        // In order: what was posted before completed before, or was unsignaled and succeeded.
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

    /// The owner has ended and all its completions were polled: nothing signaled is open any more. What is unsignaled
    /// keeps its place until a later one completes.
    pub(super) fn ended(&self, owner: Owner) {
        for (number, open) in &self.open {
            assert!(
                open.owner != owner || open.gone || !open.signaled,
                "work request {number} of {owner:?} never completes"
            );
        }
    }
}
