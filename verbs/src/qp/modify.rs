//! Moving a QP from one state to another on the program's word: `ibv_modify_qp`, and what the RDMA
//! protocol verbs (draft-hilland-rddp-verbs, "Modify QP") allow of it.

use core::fmt;

use super::Qp;
use super::state::QpState;
use crate::engine::Connection;
use crate::fork_guard::Inherited;
use crate::mem::Access;

/// The states of `ibv_qp_state`, with their values.
///
/// Programs for libibverbs know these; what they are here says the table at [`QpState`]. What a
/// program may ask for with [`QpModify::ibv_state`], and what then happens:
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
/// do on InfiniBand, and a program that asks for these besides changes nothing. There is no way to
/// `RTR` or `RTS` but a connection, so in `Idle` they are refused. `SQD` is the graceful close (it
/// does not lead back to `RTS`, as nothing does on iWARP), and `ERR` the abortive one. `SQE` is told
/// only, never asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum IbvQpState {
    /// `IBV_QPS_RESET`: new, or reset.
    Reset = 0,
    /// `IBV_QPS_INIT`: receives may be posted.
    Init = 1,
    /// `IBV_QPS_RTR`: ready to receive.
    Rtr = 2,
    /// `IBV_QPS_RTS`: ready to send.
    Rts = 3,
    /// `IBV_QPS_SQD`: the send queue is drained. On iWARP: the connection is being closed.
    Sqd = 4,
    /// `IBV_QPS_SQE`: an error of the send queue. On iWARP: a Terminate Message was sent or received.
    Sqe = 5,
    /// `IBV_QPS_ERR`: an error; all work was flushed.
    Err = 6,
}

impl IbvQpState {
    /// All of them, in the order of their values.
    pub const ALL: [IbvQpState; 7] = [
        IbvQpState::Reset,
        IbvQpState::Init,
        IbvQpState::Rtr,
        IbvQpState::Rts,
        IbvQpState::Sqd,
        IbvQpState::Sqe,
        IbvQpState::Err,
    ];

    /// The state with this value of `ibv_qp_state`; `None` for a number that is none.
    #[must_use]
    pub fn from_value(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// The value in `ibv_qp_state`.
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

/// A state that a program asked for, by either set of names (`IBV_QP_STATE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum WantedState {
    /// One of the iWARP verbs.
    Verbs(QpState),
    /// One of libibverbs.
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

/// What to change of a QP ([`Qp::modify`], `ibv_modify_qp`); what is not named stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[must_use = "nothing changes before `Qp::modify`"]
pub struct QpModify {
    to: Option<WantedState>,
    current: Option<QpState>,
    access: Option<Access>,
}

impl QpModify {
    /// Changes nothing (`attr_mask` 0 of `ibv_modify_qp`).
    pub fn new() -> Self {
        QpModify::default()
    }

    /// Move it to this state (RDMA protocol verbs, "Modify QP"). What is legal says [`Qp::modify`].
    pub fn state(mut self, to: QpState) -> Self {
        self.to = Some(WantedState::Verbs(to));
        self
    }

    /// Move it as `ibv_modify_qp` with `IBV_QP_STATE` does; the table is at [`IbvQpState`].
    pub fn ibv_state(mut self, to: IbvQpState) -> Self {
        self.to = Some(WantedState::Ibv(to));
        self
    }

    /// Change something only if this is the state now (`IBV_QP_CUR_STATE`).
    pub fn current(mut self, state: QpState) -> Self {
        self.current = Some(state);
        self
    }

    /// What the peer may do through the QP from now on (`IBV_QP_ACCESS_FLAGS`). A Write is held against
    /// it segment by segment, as it arrives; a Read or an atomic operation as it arrives, and again when
    /// its turn comes to be carried out. So none begins after [`Qp::modify`] has returned that is not
    /// allowed, also of those that waited by then: it ends the connection, as any violation of access
    /// rights. A Read that is being answered is finished. A reset restores what the QP was made with.
    pub fn access(mut self, access: Access) -> Self {
        self.access = Some(access);
        self
    }
}

/// Why a QP was not modified (`ibv_modify_qp`); then nothing of it was.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// There is no way from the one state to the other.
    #[error(
        "a QP in state {from} cannot be moved to {to}; from {from} it can go to {}{}",
        list(.legal), hint(*.from, *.to)
    )]
    Illegal {
        /// The state it is in.
        from: QpState,
        /// The one that was asked for.
        to: WantedState,
        /// Those that may be asked for, in the same set of names.
        legal: Vec<WantedState>,
    },
    /// It was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// It is not in the state that [`QpModify::current`] named.
    #[error("the QP is in state {is}, and not in {expected} as was said; query it and decide anew")]
    NotInState {
        /// The state that was named.
        expected: QpState,
        /// The state it is in.
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
        (QpState::Error, _) => "; reset it, then connect it anew",
        (
            QpState::Connecting | QpState::Rts | QpState::Closing | QpState::Terminate,
            WantedState::Verbs(QpState::Idle),
        ) => "; end its connection first",
        _ => "",
    }
}

/// What a legal move does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// Nothing: it is so, or the connection manager does it.
    Stay,
    /// Only remembers that INIT was asked for.
    Init,
    /// A graceful close: what was posted is sent, then FIN.
    Close,
    /// A Terminate Message (local catastrophic error), a flush, then a graceful close.
    Terminate,
    /// A reset of the LLP stream, if there is one, and a flush.
    Abort,
    /// Makes an ended QP idle again.
    Reset,
    /// Both.
    AbortAndReset,
}

impl Move {
    /// What the move `from` one state `to` another does; `None` when it is illegal.
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

    fn is_abort(self) -> bool {
        matches!(self, Move::Abort | Move::AbortAndReset)
    }
}

/// What may be asked for in a state, by the names of `like`.
fn legal(from: QpState, like: WantedState) -> Vec<WantedState> {
    let all: Vec<WantedState> = match like {
        WantedState::Verbs(_) => QpState::ALL.map(WantedState::Verbs).to_vec(),
        WantedState::Ibv(_) => IbvQpState::ALL.map(WantedState::Ibv).to_vec(),
    };
    let may = |to: &WantedState| Move::of(from, *to).is_some();
    all.into_iter().filter(may).collect()
}

impl QpModify {
    /// The move that is asked for, if it is legal now.
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

    /// Does what can be done under the lock at once. A reset follows when the LLP is gone.
    fn apply(&self, conn: &mut Connection) -> Result<Move, ModifyError> {
        let step = self.plan(conn.state)?;
        match step {
            Move::Stay => {}
            Move::Init => conn.initialized = true,
            Move::Close => {
                conn.disconnect();
            }
            Move::Terminate => conn.terminate(),
            Move::Abort | Move::AbortAndReset => conn.fail(),
            Move::Reset => {
                conn.reset();
            }
        }
        if let Some(access) = self.access {
            conn.access = access;
        }
        Ok(step)
    }
}

impl Qp {
    /// Changes the state or the rights of the QP, as `ibv_modify_qp` and the "Modify QP" of the RDMA
    /// protocol verbs do. The QP is in the new state when this returns.
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
    /// * *disconnect* is [`Qp::disconnect`]. The verbs let a QP with work in its send queue fail; here the
    ///   work is carried out first.
    /// * *Terminate* sends a Terminate Message (local catastrophic error, RFC 5040 section 4.8), flushes,
    ///   and closes gracefully, so that the message arrives.
    /// * *abort* is [`Qp::abort`]: no Terminate Message, as the verbs ask for an abortive end of the LLP
    ///   stream.
    /// * *reset* is [`Qp::reset`]: completions of the life before stay in the CQ until they are polled.
    ///
    /// The names of libibverbs have a table of their own: [`IbvQpState`].
    ///
    /// # Errors
    /// [`ModifyError`], which names the state, and those that are legal; then nothing has changed.
    pub fn modify(&self, modify: &QpModify) -> Result<(), ModifyError> {
        self.inner().device.fork_guard.check()?;
        let step = self.inner().with(|conn| modify.apply(conn))?;
        if step == Move::AbortAndReset {
            // Now that the LLP is gone.
            self.inner().with(|conn| {
                conn.reset();
                if let Some(access) = modify.access {
                    conn.access = access;
                }
            });
        }
        if step.is_abort() {
            self.inner().changed();
        }
        Ok(())
    }

    /// Ends the connection at once (RFC 5041 section 6.2.2): a reset goes to the peer, and everything that is
    /// outstanding completes as flushed before this returns. Nothing happens where there is no connection.
    ///
    /// The reason on this side is [`EndReason::Aborted`](crate::EndReason::Aborted); the peer sees TCP reset.
    pub fn abort(&self) {
        if !self.is_inherited() {
            self.inner().with(Connection::abort);
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
