//! Builder of QPs: queue sizes, access rights and options.

use std::sync::Arc;

use uwarp_engine::datagram::MAX_PAYLOAD;
use uwarp_engine::mem::Access;
use uwarp_llp::Keepalive;

use super::attr::QpInit;
use super::{Qp, QpCaps};
use crate::completion::CqOfQueue;
use crate::connection::QpContext;
use crate::connection::inner::{QpInner, QpPlace};
use crate::connection::meeting::Meeting;
use crate::cq::Cq;
use crate::device::{DeviceError, check_size};
use crate::pd::Pd;
use crate::rendezvous::{PairMeeting, Rendezvous};
use crate::settings::OnNoReceive;
use crate::srq::Srq;
use uwarp_engine::connection::QueueCaps;
use uwarp_engine::limits::OfPd;

/// Attributes of a new QP (`ibv_qp_init_attr`). [`Pd::qp`] creates the builder, and
/// [`build`](Self::build) the QP.
///
/// ```
/// use uwarp_verbs::{Access, Device, QpCaps};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::tcp()?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
/// let qp = pd
///     .qp()
///     .caps(QpCaps::default().max_send_wr(8))
///     .access(Access::LOCAL_WRITE | Access::REMOTE_READ)
///     .signal_all(true)
///     .context(42)
///     .build(&cq, &cq)?;
/// assert_eq!(qp.context(), 42);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the QP is created by `build`"]
pub struct QpBuilder {
    pd: Pd,
    caps: QpCaps,
    access: Access,
    signal_all: bool,
    context: u64,
    keepalive: Option<Keepalive>,
    srq: Option<Srq>,
    on_no_receive: Option<OnNoReceive>,
    late_faults: bool,
    rendezvous: Option<Rendezvous>,
    placed_writes: Option<bool>,
    unreliable: bool,
    datagrams: Option<u32>,
}

impl Pd {
    /// Creates a QP (`ibv_create_qp`). Its completions go to the two CQs, which may be the same.
    ///
    /// # Errors
    /// [`DeviceError`]: a size that the device does not allow, a limit, or a CQ of another device.
    pub fn create_qp(&self, send_cq: &Cq, recv_cq: &Cq, caps: QpCaps) -> Result<Qp, DeviceError> {
        self.qp().caps(caps).build(send_cq, recv_cq)
    }

    /// Starts the creation of a QP with further options (`ibv_create_qp_ex`).
    pub fn qp(&self) -> QpBuilder {
        QpBuilder::new(self)
    }
}

impl QpBuilder {
    pub(crate) fn new(pd: &Pd) -> Self {
        QpBuilder {
            pd: pd.clone(),
            caps: QpCaps::default(),
            access: Access::ALL,
            signal_all: false,
            context: 0,
            keepalive: None,
            srq: None,
            on_no_receive: None,
            late_faults: false,
            rendezvous: None,
            placed_writes: None,
            unreliable: false,
            datagrams: None,
        }
    }

    /// Sets the sizes of the queues (`ibv_qp_init_attr.cap`). Default: [`QpCaps::default`].
    pub fn caps(mut self, caps: QpCaps) -> Self {
        self.caps = caps;
        self
    }

    /// Sets the rights of the peer through this QP (`ibv_qp_attr.qp_access_flags`). They restrict
    /// the rights that regions grant. Default: [`Access::ALL`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Makes every request of the send queue produce a completion on success, even one posted with
    /// [`SendWr::unsignaled`](crate::SendWr::unsignaled) (`ibv_qp_init_attr.sq_sig_all`). Default:
    /// no.
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Sets a number of the program's choice, which [`Qp::context`] returns
    /// (`ibv_qp_init_attr.qp_context`). Default: 0.
    pub fn context(mut self, context: u64) -> Self {
        self.context = context;
        self
    }

    /// Sets when a silent peer of this QP is considered dead (TCP keep-alive, RFC 1122 section
    /// 4.2.3.6). Default: [`Settings::keepalive`](crate::Settings).
    pub fn keepalive(mut self, keepalive: Keepalive) -> Self {
        self.keepalive = Some(keepalive);
        self
    }

    /// Makes the QP take its receives from a shared receive queue (`ibv_qp_init_attr.srq`).
    /// `max_recv_wr` and `max_recv_sge` are then ignored. The SRQ may belong to another protection
    /// domain; its receives name memory of that domain.
    pub fn srq(mut self, srq: &Srq) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Sets the reaction to a message from the peer that finds no receive (RFC 5041 section 7.1).
    /// Default: [`Settings::on_no_receive`](crate::Settings::on_no_receive).
    pub fn on_no_receive(mut self, what: OnNoReceive) -> Self {
        self.on_no_receive = Some(what);
        self
    }

    /// With `true`, posting accepts a request whose scatter/gather elements name memory that it may
    /// not use, as RNICs do. By default, posting such a request fails.
    ///
    /// Such a request completes with [`Status::LocalProtection`](crate::Status::LocalProtection),
    /// which ends the connection. A request of the send queue does so after all requests before it
    /// have completed. A receive does so when a message reaches the memory.
    ///
    /// On a QP for datagrams, posting also accepts what is no datagram, which fails with
    /// [`Status::LocalQpOperation`](crate::Status::LocalQpOperation), and one that is too long,
    /// which fails with [`Status::LocalLength`](crate::Status::LocalLength).
    pub fn late_faults(mut self, late: bool) -> Self {
        self.late_faults = late;
        self
    }

    /// With `true`, a Write completes when the peer has placed it. Default:
    /// [`Settings::placed_writes`](crate::Settings::placed_writes).
    pub fn placed_writes(mut self, placed: bool) -> Self {
        self.placed_writes = Some(placed);
        self
    }

    /// With `true`, messages are dropped instead of waiting, as on an unreliable connection of
    /// InfiniBand (`IBV_QPT_UC`). Default: no.
    ///
    /// * A message of the peer that finds no receive is dropped. A Write with Immediate Data is
    ///   placed, but its Immediate Data is dropped.
    /// * A Send or Write to a peer that has gone completes with success ([`Qp::pair`]). If the peer
    ///   was never there, it does so after [`PairOptions::patience`](crate::PairOptions::patience).
    /// * A Write completes when the LLP has taken it. Reads and atomic operations are refused, on
    ///   both sides.
    ///
    /// Two QPs that are connected by their numbers are both unreliable, or neither is.
    pub fn unreliable(mut self, unreliable: bool) -> Self {
        self.unreliable = unreliable;
        self
    }

    /// Gives the QP a number by which it can be connected ([`Qp::pair`]).
    pub fn rendezvous(mut self, rendezvous: &Rendezvous) -> Self {
        self.rendezvous = Some(rendezvous.clone());
        self
    }

    /// Makes the QP one for unreliable datagrams, as `IBV_QPT_UD` of InfiniBand. It has a number
    /// of the rendezvous, sends ([`Qp::post_datagram`]) at most `max_payload` bytes in a datagram
    /// (up to 4096), and has no connection. It receives and sends from [`Qp::open_datagrams`] on.
    ///
    /// A receive gets a Global Route Header of 40 bytes before the payload. What finds no receive
    /// of that length, or has another Q_Key ([`Qp::set_qkey`]), is dropped. Only the network of the
    /// kernel has datagrams.
    pub fn datagrams(mut self, rendezvous: &Rendezvous, max_payload: u32) -> Self {
        self.rendezvous = Some(rendezvous.clone());
        self.datagrams = Some(max_payload);
        self
    }

    /// Creates the QP (`ibv_create_qp`). `send_cq` and `recv_cq` may be the same CQ.
    ///
    /// # Errors
    /// [`DeviceError`] for a size that the device or the domain does not allow, for an exceeded
    /// limit, and for a CQ or an SRQ of another device.
    pub fn build(self, send_cq: &Cq, recv_cq: &Cq) -> Result<Qp, DeviceError> {
        let QpBuilder { pd, caps, .. } = &self;
        let device = pd.device()?;
        let limits = &device.settings.limits;
        check_size("max_send_wr", caps.max_send_wr, 0, limits.max_wr)?;
        check_size("max_recv_wr", caps.max_recv_wr, 0, limits.max_wr)?;
        check_size("max_send_sge", caps.max_send_sge, 0, limits.max_sge)?;
        check_size("max_recv_sge", caps.max_recv_sge, 0, limits.max_sge)?;
        check_size(
            "max_inline_data",
            caps.max_inline_data,
            0,
            limits.max_inline_data,
        )?;
        // 5040-8.1.1-07: objects of another device count as those of another user. Within one
        // device the program decides.
        for (cq, what) in [(send_cq, "send CQ"), (recv_cq, "receive CQ")] {
            if !cq.is_of(device) {
                return Err(DeviceError::OtherDevice { what });
            }
        }
        let keepalive = self.keepalive.or(device.settings.keepalive);
        if let Some(keepalive) = keepalive {
            keepalive.check()?;
        }
        if self.srq.as_ref().is_some_and(|srq| !srq.is_of(device)) {
            return Err(DeviceError::OtherDevice { what: "SRQ" });
        }
        if (self.rendezvous.as_ref()).is_some_and(|rendezvous| !rendezvous.is_of(device)) {
            return Err(DeviceError::OtherDevice { what: "rendezvous" });
        }
        if let Some(max) = self.datagrams {
            check_size("max_payload", max, 0, MAX_PAYLOAD as u32)?;
        }
        let receives = self.srq.as_ref().map_or(caps.max_recv_wr, |_| 0);
        let in_pd = [pd.take(OfPd::Qps, 1)?, pd.take(OfPd::Receives, receives)?];
        let rendezvous = self
            .rendezvous
            .as_ref()
            .map(Rendezvous::inner)
            .transpose()?;
        let (place, num, port) = match rendezvous {
            Some(rendezvous) if self.datagrams.is_some() => rendezvous.take_datagram_number()?,
            Some(rendezvous) => rendezvous.take_number()?,
            None => {
                let (place, num) = device.take_qp()?;
                (place, num, None)
            }
        };
        let srq = self.srq.as_ref().map(Srq::inner).transpose()?;
        let cqs = [Arc::clone(send_cq.shared()?), Arc::clone(recv_cq.shared()?)];
        let receive_places = srq.map_or_else(Arc::default, |srq| Arc::clone(srq.freed()));
        let context = QpContext {
            qp_num: num.get(),
            pd: pd.id(),
            table: Arc::clone(&device.table),
            send_cq: CqOfQueue::new(&cqs[0].inner, Arc::default()),
            recv_cq: CqOfQueue::new(&cqs[1].inner, receive_places),
            settings: Arc::clone(&device.of_connections),
            caps: QueueCaps {
                max_send_wr: caps.max_send_wr,
                max_recv_wr: caps.max_recv_wr,
                max_send_sge: caps.max_send_sge,
                max_recv_sge: caps.max_recv_sge,
                max_inline_data: caps.max_inline_data,
            },
            srq: srq.map(Arc::clone),
            on_no_receive: self.on_no_receive.unwrap_or(device.settings.on_no_receive),
            access: self.access,
            signal_all: self.signal_all,
            late_faults: self.late_faults,
            placed_writes: self.placed_writes.unwrap_or(device.settings.placed_writes)
                && !self.unreliable,
            unreliable: self.unreliable,
            datagrams: self.datagrams,
            keepalive,
        };
        let meeting = rendezvous.map(|_| Arc::<PairMeeting>::default());
        let uses_srq = self.srq.as_ref().map(Srq::user).transpose()?;
        let inner = QpInner::new(
            Arc::new(context),
            Arc::clone(device),
            Arc::clone(pd.events()),
            cqs,
            QpPlace {
                in_pd,
                _place: place,
                num: Arc::new(num),
            },
            port,
            meeting.clone().map(|meeting| meeting as Arc<dyn Meeting>),
        );
        if let (Some(rendezvous), Some(meeting)) = (rendezvous, &meeting) {
            rendezvous.enter(&inner, meeting);
        }
        Ok(Qp::new(
            inner,
            self,
            uses_srq,
            send_cq.clone(),
            recv_cq.clone(),
        ))
    }

    /// SRQ of the QP, if one was chosen.
    pub(crate) fn chosen_srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    /// Rendezvous of the QP, if one was chosen.
    pub(crate) fn chosen_rendezvous(&self) -> Option<&Rendezvous> {
        self.rendezvous.as_ref()
    }

    /// Protection domain of the QP.
    pub(crate) fn pd(&self) -> &Pd {
        &self.pd
    }

    /// Attributes chosen by the program.
    pub(crate) fn init(&self) -> QpInit {
        QpInit {
            caps: self.caps,
            access: self.access,
            signal_all: self.signal_all,
            context: self.context,
        }
    }
}
