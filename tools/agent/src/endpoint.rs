//! Listeners and connections, and the QP of a connection.

use std::time::Duration;

use uwarp_verbs::{
    Access, CmId, Cq, DeviceError, IbvQpState, Notify, OnNoReceive, Qp, QpCaps, QpModify, Srq,
};

use crate::budget::Charge;
use crate::cm::Answer;
use crate::json::{Fields, Line, shortened};
use crate::memory::parse_access;
use crate::refusal::{Refusal, by};
use crate::session::Session;
use crate::srq::srq_number;

/// Members of a command that set the parameters of a QP.
pub(crate) const QP_KEYS: &str =
    "send_wr recv_wr send_sge recv_sge inline pd notify srq access hold_ms";
/// Maximum time in milliseconds that a message may be held until a receive is posted.
const MAX_HOLD_MS: u64 = 60_000;

/// Estimates of memory in bytes: a work request, one of its scatter/gather elements, a completion,
/// and a connection without its queues.
const REQUEST: u64 = 128;
const ELEMENT: u64 = 16;
const COMPLETION: u64 = 128;
const CONNECTION: u64 = 16 << 10;

/// States of a QP and their short names.
const STATES: [(&str, IbvQpState); 7] = [
    ("reset", IbvQpState::Reset),
    ("init", IbvQpState::Init),
    ("rtr", IbvQpState::Rtr),
    ("rts", IbvQpState::Rts),
    ("sqd", IbvQpState::Sqd),
    ("sqe", IbvQpState::Sqe),
    ("err", IbvQpState::Err),
];

/// A listener, with the parameters of the QPs for its connections.
pub(crate) struct Listener {
    pub(crate) id: CmId,
    pub(crate) params: QpParams,
    /// If set, requests are accepted at once with these parameters.
    pub(crate) auto: Option<Answer>,
}

pub(crate) struct Connection {
    /// This field must precede `id`, because fields are dropped in order of declaration. `id` must
    /// still exist when the QP reports its end.
    pub(crate) queues: Option<Queues>,
    pub(crate) id: CmId,
    pub(crate) params: QpParams,
}

/// QP of a connection, and its CQ. They are created after the route is resolved, or when a request
/// arrives.
pub(crate) struct Queues {
    pub(crate) qp: Qp,
    pub(crate) cq: Cq,
    /// Dropped after the queues.
    _charge: Charge,
}

pub(crate) enum Endpoint {
    Listener(Box<Listener>),
    Connection(Box<Connection>),
}

impl Endpoint {
    pub(crate) fn is_connection(&self) -> bool {
        matches!(self, Endpoint::Connection(_))
    }
}

/// Parameters of a QP, as a command sets them.
#[derive(Clone)]
pub(crate) struct QpParams {
    caps: QpCaps,
    pub(crate) pd: u64,
    srq: Option<Srq>,
    access: Access,
    hold: Option<Duration>,
    /// Kind of completions for which the CQ is armed. `None` if it is not armed.
    pub(crate) notify: Option<Notify>,
}

/// Returns an estimate of the memory of a receive queue in bytes.
pub(crate) fn receive_queue_memory(max_wr: u32, sges: u32) -> u64 {
    u64::from(max_wr).saturating_mul(REQUEST + ELEMENT * u64::from(sges))
}

/// Returns an estimate of the memory of a QP in bytes, with its CQ of `depth` completions.
fn queue_memory(caps: &QpCaps, depth: u32) -> u64 {
    let send = REQUEST + ELEMENT * u64::from(caps.max_send_sge) + u64::from(caps.max_inline_data);
    let sends = u64::from(caps.max_send_wr).saturating_mul(send);
    let receives = receive_queue_memory(caps.max_recv_wr, caps.max_recv_sge);
    let completions = u64::from(depth) * COMPLETION;
    let queues = sends.saturating_add(receives).saturating_add(completions);
    queues.saturating_add(CONNECTION)
}

impl Session {
    pub(crate) fn parse_params(&mut self, fields: &Fields) -> Result<QpParams, Refusal> {
        let notify = match fields.text("notify", "all")? {
            "all" => Some(Notify::Any),
            "solicited" => Some(Notify::Solicited),
            "none" => None,
            _ => {
                let why = "notify: all, solicited or none was expected";
                return Err(Refusal::agent(why));
            }
        };
        let hold_ms = fields.number("hold_ms", 0)?;
        if hold_ms > MAX_HOLD_MS {
            return Err(Refusal::agent(format!("hold_ms: at most {MAX_HOLD_MS}")));
        }
        let params = QpParams {
            caps: QpCaps::default()
                .max_send_wr(fields.number_as("send_wr", 64)?)
                .max_recv_wr(fields.number_as("recv_wr", 64)?)
                .max_send_sge(fields.number_as("send_sge", 4)?)
                .max_recv_sge(fields.number_as("recv_sge", 4)?)
                .max_inline_data(fields.number_as("inline", 0)?),
            pd: fields.number("pd", 0)?,
            srq: match fields.has("srq") {
                true => Some(self.srqs.get(srq_number(fields)?)?.srq.clone()),
                false => None,
            },
            access: match fields.has("access") {
                true => parse_access(fields.text("access", "")?)?,
                false => Access::ALL,
            },
            hold: (hold_ms > 0).then(|| Duration::from_millis(hold_ms)),
            notify,
        };
        self.pd(params.pd)?;
        Ok(params)
    }

    /// Creates the CQ and the QP of the connection with this number.
    pub(crate) fn make_queues(
        &mut self,
        number: u64,
        params: &QpParams,
    ) -> Result<Queues, Refusal> {
        let pd = self.pd(params.pd)?;
        let receives = params.srq.as_ref().map_or(0, |srq| srq.query().max_wr);
        let depth = params.caps.max_send_wr;
        let depth = depth.saturating_add(receives.max(params.caps.max_recv_wr));
        let charge = self
            .common
            .memory
            .charge(queue_memory(&params.caps, depth))?;
        let device = &self.common.device;
        let cq = device
            .create_cq_on(depth.max(1), &self.completions, number)
            .map_err(by::<DeviceError>("ibv_create_cq"))?;
        let mut builder = pd.qp().caps(params.caps).access(params.access);
        if let Some(srq) = &params.srq {
            builder = builder.srq(srq);
        }
        if let Some(hold) = params.hold {
            builder = builder.on_no_receive(OnNoReceive::Hold(hold));
        }
        let qp = builder.build(&cq, &cq).map_err(by("rdma_create_qp"))?;
        if let Some(notify) = params.notify {
            cq.req_notify(notify);
        }
        Ok(Queues {
            qp,
            cq,
            _charge: charge,
        })
    }

    /// Returns the connection that a command names.
    pub(crate) fn connection(&self, fields: &Fields) -> Result<&Connection, Refusal> {
        self.connection_of(fields.number("conn", u64::MAX)?)
    }

    pub(crate) fn connection_of(&self, number: u64) -> Result<&Connection, Refusal> {
        match self.endpoints.get(number) {
            Ok(Endpoint::Connection(connection)) => Ok(connection),
            Ok(Endpoint::Listener(_)) | Err(_) => {
                let why = format!("there is no connection {number}");
                Err(Refusal::agent(why))
            }
        }
    }

    pub(crate) fn queues(&self, fields: &Fields) -> Result<&Queues, Refusal> {
        let queues = self.connection(fields)?.queues.as_ref();
        queues.ok_or_else(|| Refusal::agent("the connection has no QP yet: wait for its 'ready'"))
    }

    /// Returns the QP of the connection that a command names.
    pub(crate) fn qp(&self, fields: &Fields) -> Result<&Qp, Refusal> {
        Ok(&self.queues(fields)?.qp)
    }

    pub(crate) fn destroy(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        self.connection(fields)?;
        self.endpoints
            .take(fields.number("conn", u64::MAX)?)
            .map(drop)
    }

    pub(crate) fn modify(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let name = fields.text("state", "")?;
        let Some((_, state)) = STATES.iter().find(|(state, _)| *state == name) else {
            let name = shortened(name);
            return Err(Refusal::agent(format!(
                "state: reset init rtr rts sqd sqe or err was expected, got '{name}'"
            )));
        };
        let change = QpModify::new().ibv_state(*state);
        let modified = self.qp(fields)?.modify(&change);
        modified.map_err(|error| Refusal::invalid("ibv_modify_qp", &error))
    }

    pub(crate) fn modify_access(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let access = parse_access(fields.text("access", "")?)?;
        if !fields.has("access") {
            return Err(Refusal::agent("access: a list of rights was expected"));
        }
        let modified = self.qp(fields)?.modify(&QpModify::new().access(access));
        modified.map_err(|error| Refusal::invalid("ibv_modify_qp", &error))
    }

    pub(crate) fn query_qp(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let qp = self.qp(fields)?;
        let attr = qp.query();
        answer.number("qpn", qp.qp_num());
        for (name, state) in STATES {
            if state == attr.ibv_state {
                answer.text("state", name);
            }
        }
        answer.number("send_wr", attr.caps.max_send_wr);
        answer.number("recv_wr", attr.caps.max_recv_wr);
        answer.number("send_sge", attr.caps.max_send_sge);
        answer.number("recv_sge", attr.caps.max_recv_sge);
        answer.number("inline", attr.caps.max_inline_data);
        if let Some(agreed) = qp.connection() {
            answer.text("local", &agreed.local.to_string());
            answer.text("peer", &agreed.peer.to_string());
            answer.number("mpa", agreed.revision.code());
            answer.flag("crc", agreed.crc);
            answer.flag("markers_sent", agreed.tx_markers);
            answer.flag("markers_received", agreed.rx_markers);
            answer.number("ird", agreed.ird);
            answer.number("ord", agreed.ord);
        }
        if let Some(reason) = qp.end_reason() {
            answer.text("cause", &reason.to_string());
        }
        Ok(())
    }
}
