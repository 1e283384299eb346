//! State changes of a QP by the program: `ibv_modify_qp`, and "Modify QP" of the RDMA protocol
//! verbs (draft-hilland-rddp-verbs).

use core::fmt;

use uwarp_engine::fork_guard::Inherited;
use uwarp_engine::mem::Access;
use uwarp_engine::state::QpState;

use super::Qp;
use crate::connection::Connection;

/// States of `ibv_qp_state`, with their values.
///
/// The table at [`QpState`] relates them to the states of this library. Effect of a request with
/// [`QpModify::ibv_state`]:
///
/// | wanted | in `Idle` | `Connecting` | `Rts` | `Closing` | `Terminate` | `Error` |
/// |---|---|---|---|---|---|---|
/// | `RESET` | reset | abort, reset | abort, reset | abort, reset | abort, reset | reset |
/// | `INIT` | stays | illegal | illegal | illegal | illegal | illegal |
/// | `RTR` | illegal | stays | stays | illegal | illegal | illegal |
/// | `RTS` | illegal | stays | stays | illegal | illegal | illegal |
/// | `SQD` | illegal | illegal | disconnect | stays | illegal | illegal |
/// | `SQE` | illegal | illegal | illegal | illegal | illegal | illegal |
/// | `ERR` | to `Error` | abort | abort | abort | abort | stays |
///
/// On iWARP the connection manager makes a QP ready: connect and accept do what INIT, RTR and RTS
/// do on InfiniBand. A later request for one of these states changes nothing. Only a connection
/// leads to `RTR` or `RTS`, so they are refused in `Idle`. `SQD` starts a graceful close, which
/// cannot be undone, and `ERR` is the abortive close. `SQE` is reported, and cannot be requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IbvQpState {
    /// `IBV_QPS_RESET`: newly created or reset.
    Reset = 0,
    /// `IBV_QPS_INIT`: receives may be posted.
    Init = 1,
    /// `IBV_QPS_RTR`: ready to receive.
    Rtr = 2,
    /// `IBV_QPS_RTS`: ready to send.
    Rts = 3,
    /// `IBV_QPS_SQD`: the send queue is being drained. On iWARP: the connection is being closed.
    Sqd = 4,
    /// `IBV_QPS_SQE`: send queue error. On iWARP: a Terminate Message was sent or received.
    Sqe = 5,
    /// `IBV_QPS_ERR`: error; all work was flushed.
    Err = 6,
}

impl IbvQpState {
    /// All states, in the order of their values.
    pub const ALL: [IbvQpState; 7] = [
        IbvQpState::Reset,
        IbvQpState::Init,
        IbvQpState::Rtr,
        IbvQpState::Rts,
        IbvQpState::Sqd,
        IbvQpState::Sqe,
        IbvQpState::Err,
    ];

    /// Returns the state with this value of `ibv_qp_state`, or `None` if there is none.
    #[must_use]
    pub fn from_value(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// Value in `ibv_qp_state`.
    #[must_use]
    pub fn value(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for IbvQpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IbvQpState::Reset => "IBV_QPS_RESET",
            IbvQpState::Init => "IBV_QPS_INIT",
            IbvQpState::Rtr => "IBV_QPS_RTR",
            IbvQpState::Rts => "IBV_QPS_RTS",
            IbvQpState::Sqd => "IBV_QPS_SQD",
            IbvQpState::Sqe => "IBV_QPS_SQE",
            IbvQpState::Err => "IBV_QPS_ERR",
        })
    }
}

/// Target state of a request, by either set of names (`IBV_QP_STATE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WantedState {
    /// A state of the iWARP verbs.
    Verbs(QpState),
    /// A state of libibverbs.
    Ibv(IbvQpState),
}

impl fmt::Display for WantedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WantedState::Verbs(state) => state.fmt(f),
            WantedState::Ibv(state) => state.fmt(f),
        }
    }
}

/// Changes to a QP ([`Qp::modify`], `ibv_modify_qp`). Attributes that are not set stay as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "nothing changes before `Qp::modify`"]
pub struct QpModify {
    to: Option<WantedState>,
    current: Option<QpState>,
    access: Option<Access>,
    discards: bool,
}

impl QpModify {
    /// Creates a request that changes nothing (`attr_mask` 0 of `ibv_modify_qp`).
    pub fn new() -> Self {
        QpModify::default()
    }

    /// Sets the target state (RDMA protocol verbs, "Modify QP"). [`Qp::modify`] lists the legal
    /// transitions.
    pub fn state(mut self, to: QpState) -> Self {
        self.to = Some(WantedState::Verbs(to));
        self
    }

    /// Sets the target state as `ibv_modify_qp` with `IBV_QP_STATE` does; see the table at
    /// [`IbvQpState`].
    pub fn ibv_state(mut self, to: IbvQpState) -> Self {
        self.to = Some(WantedState::Ibv(to));
        self
    }

    /// Makes the change conditional on the current state (`IBV_QP_CUR_STATE`).
    pub fn current(mut self, state: QpState) -> Self {
        self.current = Some(state);
        self
    }

    /// Sets the rights of the peer through the QP (`IBV_QP_ACCESS_FLAGS`).
    ///
    /// Each segment of a Write is checked against them as it arrives. A Read or an Atomic Operation
    /// is checked as it arrives and again before it is carried out. Therefore no forbidden
    /// operation starts after [`Qp::modify`] has returned, even one that was already waiting. Such
    /// an operation ends the connection like any violation of access rights. A Read that is already
    /// being answered is finished. A reset restores the rights set at creation.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }

    /// Makes a reset remove the completions of the QP from its CQs, as drivers of RNICs do.
    /// Outstanding work makes none. No poll that begins after [`Qp::modify`] returns one of them.
    pub fn discard_completions(mut self) -> Self {
        self.discards = true;
        self
    }
}

/// Reason why a QP was not modified (`ibv_modify_qp`). Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no transition between the two states.
    #[error(
        "a QP in state {from} cannot be moved to {to}; from {from} it can go to {}{}",
        list(.legal), hint(*.from, *.to)
    )]
    Illegal {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: WantedState,
        /// States that may be requested instead, in the same set of names.
        legal: Vec<WantedState>,
    },
    /// The QP was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// The QP is not in the state that [`QpModify::current`] named.
    #[error(
        "the QP is in state {is}, not in the expected state {expected}; query its state and retry"
    )]
    NotInState {
        /// Expected state.
        expected: QpState,
        /// Current state.
        is: QpState,
    },
}

fn list(states: &[WantedState]) -> String {
    let names: Vec<String> = states.iter().map(ToString::to_string).collect();
    names.join(", ")
}

fn hint(from: QpState, to: WantedState) -> &'static str {
    use IbvQpState as I;
    match (from, to) {
        (QpState::Idle, WantedState::Verbs(QpState::Rts) | WantedState::Ibv(I::Rtr | I::Rts)) => {
            "; on iWARP a QP becomes ready by connect or accept"
        }
        (QpState::Error, _) => "; reset it, then connect again",
        (
            QpState::Connecting | QpState::Rts | QpState::Closing | QpState::Terminate,
            WantedState::Verbs(QpState::Idle),
        ) => "; end its connection first",
        _ => "",
    }
}

/// Effect of a legal transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// No effect: the QP is in that state, or the connection manager brings it there.
    Stay,
    /// Records only that INIT was requested.
    Init,
    /// Graceful close: posted requests are sent, then FIN.
    Close,
    /// Terminate Message (local catastrophic error), flush, then a graceful close.
    Terminate,
    /// Reset of the LLP stream, if there is one, and flush.
    Abort,
    /// Makes a QP idle again after its connection has ended.
    Reset,
    /// Abort, then reset.
    AbortAndReset,
}

impl Move {
    /// Returns the effect of the transition from state `from` to state `to`; `None` if it is
    /// illegal.
    fn of(from: QpState, to: WantedState) -> Option<Move> {
        match to {
            WantedState::Verbs(to) => Self::by_verbs(from, to),
            WantedState::Ibv(to) => Self::by_ibv(from, to),
        }
    }

    fn by_verbs(from: QpState, to: QpState) -> Option<Move> {
        use QpState as S;
        match (from, to) {
            (_, S::Error) if from != S::Error => Some(Move::Abort),
            (S::Rts, S::Closing) => Some(Move::Close),
            (S::Rts, S::Terminate) => Some(Move::Terminate),
            (S::Error, S::Idle) => Some(Move::Reset),
            _ => (from == to).then_some(Move::Stay),
        }
    }

    fn by_ibv(from: QpState, to: IbvQpState) -> Option<Move> {
        use IbvQpState as I;
        use QpState as S;
        match (from, to) {
            (S::Idle | S::Error, I::Reset) => Some(Move::Reset),
            (S::Connecting | S::Rts | S::Closing | S::Terminate, I::Reset) => {
                Some(Move::AbortAndReset)
            }
            (S::Idle, I::Init) => Some(Move::Init),
            (S::Connecting | S::Rts, I::Rtr | I::Rts) => Some(Move::Stay),
            (S::Rts, I::Sqd) => Some(Move::Close),
            (S::Closing, I::Sqd) | (S::Error, I::Err) => Some(Move::Stay),
            (S::Idle | S::Connecting | S::Rts | S::Closing | S::Terminate, I::Err) => {
                Some(Move::Abort)
            }
            (S::Idle, I::Rtr | I::Rts | I::Sqd | I::Sqe) => None,
            (S::Connecting, I::Init | I::Sqd | I::Sqe) => None,
            (S::Rts, I::Init | I::Sqe) => None,
            (S::Closing, I::Init | I::Rtr | I::Rts | I::Sqe) => None,
            (S::Terminate | S::Error, I::Init | I::Rtr | I::Rts | I::Sqd | I::Sqe) => None,
        }
    }

    fn is_reset(self) -> bool {
        matches!(self, Move::Reset | Move::AbortAndReset)
    }

    fn is_abort(self) -> bool {
        matches!(self, Move::Abort | Move::AbortAndReset | Move::Terminate)
    }
}

/// States that may be requested in state `from`, in the set of names of `like`.
fn legal(from: QpState, like: WantedState) -> Vec<WantedState> {
    let all: Vec<WantedState> = match like {
        WantedState::Verbs(_) => QpState::ALL.map(WantedState::Verbs).to_vec(),
        WantedState::Ibv(_) => IbvQpState::ALL.map(WantedState::Ibv).to_vec(),
    };
    let may = |to: &WantedState| Move::of(from, *to).is_some();
    all.into_iter().filter(may).collect()
}

impl QpModify {
    /// Returns the requested transition if it is legal now.
    fn plan(&self, from: QpState) -> Result<Move, ModifyError> {
        if let Some(expected) = self.current
            && expected != from
        {
            return Err(ModifyError::NotInState { expected, is: from });
        }
        let Some(to) = self.to else {
            return Ok(Move::Stay);
        };
        Move::of(from, to).ok_or_else(|| ModifyError::Illegal {
            from,
            to,
            legal: legal(from, to),
        })
    }

    /// Prepares for a legal request, before staged requests are sent: their completions may be
    /// among those to be discarded.
    fn prepare(&self, conn: &mut Connection) -> Result<(), ModifyError> {
        let step = self.plan(conn.state)?;
        // Until the reset.
        conn.discards |= self.discards && step.is_reset();
        Ok(())
    }

    /// Applies everything that is possible at once under the lock. The reset of `AbortAndReset`
    /// follows after the LLP is gone.
    fn apply(&self, conn: &mut Connection) -> Result<Move, ModifyError> {
        let step = self.plan(conn.state);
        // Sending the staged requests may have changed the state.
        let step = step.inspect_err(|_| conn.discards = false)?;
        match step {
            Move::Stay => {}
            Move::Init => conn.attr.initialized = true,
            Move::Close => {
                conn.disconnect();
            }
            Move::Terminate => conn.terminate(),
            Move::Abort => conn.fail(),
            Move::AbortAndReset => {
                // The QP only passes through Error, and takes receives from its SRQ again.
                conn.raised_last_wqe = true;
                conn.fail();
            }
            Move::Reset => {
                conn.reset();
            }
        }
        if let Some(access) = self.access {
            conn.attr.access = access;
        }
        Ok(step)
    }
}

impl Qp {
    /// Changes the state or the access rights of the QP, as `ibv_modify_qp` and "Modify QP" of the
    /// RDMA protocol verbs do. The QP is in the new state when this returns.
    ///
    /// | from \ to | `Idle` | `Connecting` | `Rts` | `Closing` | `Terminate` | `Error` |
    /// |---|---|---|---|---|---|---|
    /// | `Idle` | stays | illegal | illegal | illegal | illegal | flush |
    /// | `Connecting` | illegal | stays | illegal | illegal | illegal | abort |
    /// | `Rts` | illegal | illegal | stays | disconnect | Terminate | abort |
    /// | `Closing` | illegal | illegal | illegal | stays | illegal | abort |
    /// | `Terminate` | illegal | illegal | illegal | illegal | stays | abort |
    /// | `Error` | reset | illegal | illegal | illegal | illegal | stays |
    ///
    /// * *disconnect* is [`Qp::disconnect`]. In the verbs it is an error if the send queue has
    ///   work. Here the work is carried out first.
    /// * *Terminate* sends a Terminate Message (local catastrophic error, RFC 5040 section 4.8),
    ///   flushes, and closes gracefully so that the message arrives.
    /// * *abort* is [`Qp::abort`]. It sends no Terminate Message, because the verbs require an
    ///   abortive end of the LLP stream.
    /// * *reset* is [`Qp::reset`]. Completions of the previous connection stay in the CQ until they
    ///   are polled, unless they are [discarded](QpModify::discard_completions).
    ///
    /// [`IbvQpState`] has the table for the names of libibverbs.
    ///
    /// # Errors
    /// [`ModifyError`], which names the current state and the legal requests. Nothing has changed
    /// then.
    pub fn modify(&self, modify: &QpModify) -> Result<(), ModifyError> {
        let inner = self.inner()?;
        let step = inner.with_prepared(|conn| modify.prepare(conn), |conn| modify.apply(conn))?;
        if step == Move::AbortAndReset {
            // The reset is possible only now that the LLP is gone.
            inner.with(|conn| {
                conn.reset();
                if let Some(access) = modify.access {
                    conn.attr.access = access;
                }
            });
        }
        if step.is_abort() {
            inner.changed();
        }
        if modify.discards && step.is_reset() {
            inner.ctx.purge_completions();
        }
        Ok(())
    }

    /// Ends the connection at once (RFC 5041 section 6.2.2): resets TCP, and completes all
    /// outstanding work as flushed before it returns. Does nothing without a connection.
    ///
    /// The reason on this side is [`EndReason::Aborted`](crate::EndReason::Aborted). The peer sees
    /// a TCP reset.
    pub fn abort(&self) {
        if let Ok(inner) = self.inner() {
            inner.with(Connection::abort);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::fmt::Write;

    fn table(wanted: &[WantedState]) -> String {
        let mut table = format!("{:14}", "");
        for from in QpState::ALL {
            write!(table, "{:>15}", from.to_string()).unwrap();
        }
        for to in wanted {
            write!(table, "\n{:14}", to.to_string()).unwrap();
            for from in QpState::ALL {
                let cell = Move::of(from, *to).map_or("-".to_owned(), |step| format!("{step:?}"));
                write!(table, "{cell:>15}").unwrap();
            }
        }
        table
    }

    #[test]
    fn moves_by_the_names_of_the_iwarp_verbs() {
        insta::assert_snapshot!(table(&QpState::ALL.map(WantedState::Verbs)));
    }

    #[test]
    fn moves_by_the_names_of_libibverbs() {
        insta::assert_snapshot!(table(&IbvQpState::ALL.map(WantedState::Ibv)));
    }

    #[test]
    fn an_illegal_move_names_both_states_the_legal_ones_and_a_way_out() {
        let words = |from, modify: QpModify| modify.plan(from).unwrap_err().to_string();
        insta::assert_snapshot!(
            [
                words(QpState::Idle, QpModify::new().state(QpState::Rts)),
                words(QpState::Idle, QpModify::new().ibv_state(IbvQpState::Rtr)),
                words(QpState::Rts, QpModify::new().state(QpState::Idle)),
                words(QpState::Error, QpModify::new().ibv_state(IbvQpState::Rts)),
                words(QpState::Closing, QpModify::new().ibv_state(IbvQpState::Sqe)),
                words(QpState::Rts, QpModify::new().current(QpState::Idle)),
            ]
            .join("\n")
        );
    }

    #[test]
    fn the_values_of_ibv_states_are_those_of_verbs_h() {
        for (value, state) in (0..).zip(IbvQpState::ALL) {
            assert_eq!(state.value(), value);
            assert_eq!(IbvQpState::from_value(value), Some(state));
        }
        assert_eq!(IbvQpState::from_value(7), None);
    }
}
