//! Modifies, queries and resizes objects, and checks the results.

use uwarp_verbs::{
    IbvQpState, ModifyError, ModifySrqError, Notify, Qp, QpModify, QpState, ResizeCqError,
    SrqModify, WantedState,
};

use super::world::{CAPS, Queue, World};
use crate::input::Input;

/// Returns the state after a Modify QP of the iWARP verbs (draft-hilland-rddp-verbs, "Modify QP"),
/// or `None` if the transition is illegal.
fn by_verbs(from: QpState, to: QpState) -> Option<QpState> {
    let legal = from == to
        || to == QpState::Error
        || (from == QpState::Rts && matches!(to, QpState::Closing | QpState::Terminate))
        || (from == QpState::Error && to == QpState::Idle);
    legal.then_some(to)
}

/// Returns the state after a transition named as in libibverbs, according to the table at
/// [`IbvQpState`], or `None` if it is illegal.
fn by_ibv(from: QpState, to: IbvQpState) -> Option<QpState> {
    match to {
        IbvQpState::Reset => Some(QpState::Idle),
        IbvQpState::Err => Some(QpState::Error),
        IbvQpState::Init => (from == QpState::Idle).then_some(from),
        IbvQpState::Rtr | IbvQpState::Rts => {
            matches!(from, QpState::Connecting | QpState::Rts).then_some(from)
        }
        IbvQpState::Sqd => {
            matches!(from, QpState::Rts | QpState::Closing).then_some(QpState::Closing)
        }
        IbvQpState::Sqe => None,
    }
}

/// Checks that a legal transition happened, or that an illegal one was refused without effect.
fn judge(
    qp: &Qp,
    was: QpState,
    (wanted, moves): (WantedState, &[(WantedState, Option<QpState>)]),
    said: Result<(), ModifyError>,
) {
    let then = moves
        .iter()
        .find(|(to, _)| *to == wanted)
        .and_then(|(_, then)| *then);
    match said {
        Ok(()) => {
            let then = then.unwrap_or_else(|| panic!("{was} to {wanted} is illegal"));
            // A QP that has nothing to send or to wait for leaves Closing and Terminate at once, so
            // it may already be in Error.
            let closed = matches!(then, QpState::Closing | QpState::Terminate)
                && qp.state() == QpState::Error;
            assert!(qp.state() == then || closed, "{was} to {wanted}: {qp:?}");
        }
        Err(ModifyError::Illegal { from, to, legal }) => {
            assert!(then.is_none(), "{was} to {wanted} is legal");
            assert_eq!((from, to, qp.state()), (was, wanted, was));
            let wanted = moves
                .iter()
                .filter(|(_, then)| then.is_some())
                .map(|(to, _)| *to);
            assert!(wanted.eq(legal), "wrong list of legal moves in {was}");
        }
        Err(other) => panic!("{was} to {wanted}: {other}"),
    }
}

impl World {
    /// Calls Modify QP or one of its shorthands, and checks the result.
    pub(super) fn modify(&mut self, input: &mut Input<'_>) {
        let (at, how, to) = (input.choice(self.queues.len()), input.u8(), input.choice(7));
        let Some(Queue { qp, .. }) = self.queues.get(at) else {
            return;
        };
        let from = qp.state();
        match how % 8 {
            0 => qp.disconnect(),
            1 => qp.abort(),
            2 => {
                let may = matches!(from, QpState::Idle | QpState::Error);
                assert_eq!(qp.reset(), may, "in {from}");
                assert_eq!(qp.state(), if may { QpState::Idle } else { from });
            }
            3 | 4 => {
                let to = QpState::ALL[to % 6];
                let said = qp.modify(&QpModify::new().state(to));
                let legal = QpState::ALL.map(|to| (WantedState::Verbs(to), by_verbs(from, to)));
                judge(qp, from, (WantedState::Verbs(to), &legal), said);
            }
            5 => {
                let to = IbvQpState::ALL[to];
                let said = qp.modify(&QpModify::new().ibv_state(to));
                let legal = IbvQpState::ALL.map(|to| (WantedState::Ibv(to), by_ibv(from, to)));
                judge(qp, from, (WantedState::Ibv(to), &legal), said);
            }
            _ => {
                let named = QpState::ALL[to % 6];
                match qp.modify(&QpModify::new().current(named)) {
                    Ok(()) => assert_eq!(named, from),
                    Err(ModifyError::NotInState { expected, is }) => {
                        assert!((expected, is) == (named, from) && named != from);
                    }
                    Err(other) => panic!("{from}: {other}"),
                }
                assert_eq!(qp.state(), from);
            }
        }
    }

    pub(super) fn query(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.u8());
        if let Some(Queue { qp, srq, num, .. }) = self.queues.get(at % 8) {
            let attr = qp.query();
            assert_eq!(
                (attr.state, attr.caps.max_send_wr),
                (qp.state(), CAPS.max_send_wr)
            );
            assert_eq!(qp.init_attr().caps.max_inline_data, CAPS.max_inline_data);
            assert_eq!(qp.srq().map(uwarp_verbs::Srq::srq_num), *srq);
            assert_eq!(qp.qp_num(), *num);
            if let Some(reason) = qp.end_reason() {
                assert!(!reason.cause().to_string().is_empty());
            }
            let _ = (qp.connection(), qp.flight_record());
        }
        if let Some((_, srq)) = self.srqs.get(at % 4) {
            assert!(srq.posted() <= srq.query().max_wr as usize);
        }
        self.memory.check();
    }

    /// Modifies an SRQ, resizes a CQ, acknowledges an event, or begins to connect two QPs.
    pub(super) fn more(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => {
                if let Some((_, srq)) = self.srqs.get(usize::from(input.u8() % 2)) {
                    let before = srq.query();
                    let change = SrqModify::default()
                        .max_wr(Some(input.u8().into()).filter(|max| *max > 0))
                        .limit(Some(u32::from(input.u8() % 16)));
                    let max_wr = change.max_wr.unwrap_or(before.max_wr);
                    let small = (max_wr as usize) < srq.posted();
                    let unreachable = change.limit.is_some_and(|limit| limit > max_wr);
                    match srq.modify(change) {
                        Ok(()) => assert!(!small && !unreachable && srq.query().max_wr == max_wr),
                        Err(error) => {
                            assert!(match error {
                                ModifySrqError::TooSmall { max_wr: said, .. } =>
                                    small && said == max_wr,
                                ModifySrqError::Limit {
                                    limit,
                                    max_wr: said,
                                } =>
                                    unreachable
                                        && (Some(limit), said) == (change.limit, max_wr as usize),
                                _ => false,
                            });
                            assert_eq!(srq.query().max_wr, before.max_wr, "all or nothing");
                        }
                    }
                }
            }
            1 => {
                let at = input.choice(self.cqs.len());
                if let Some(cq) = self.cqs.get(at) {
                    let (before, depth) = (cq.capacity(), u32::from(input.u8()));
                    match cq.resize(depth) {
                        Ok(()) => assert!(depth > 0 && cq.capacity() == depth as usize),
                        Err(error) => {
                            assert!(match error {
                                ResizeCqError::Size { got: 0, .. } => depth == 0,
                                ResizeCqError::Overflowed { .. } => cq.has_overflowed(),
                                ResizeCqError::TooSmall { entries, .. } => entries > depth as usize,
                                _ => false,
                            });
                            assert_eq!(cq.capacity(), before, "{error}");
                        }
                    }
                    let _ = cq.req_notify(Notify::Any);
                }
            }
            2 => {
                self.held.pop();
            }
            3 => self.acknowledge(),
            _ => self.begin(input),
        }
    }
}
