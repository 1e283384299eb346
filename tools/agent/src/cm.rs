//! Connection management: commands for the functions of librdmacm, and lines for its events.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use uwarp_verbs::{AcceptOptions, CmEvent, CmEventKind, ConnectOptions, Notify, RejectOptions};

use crate::endpoint::{Connection, Endpoint, Listener, Queues};
use crate::json::{Fields, Line, shortened};
use crate::refusal::{Refusal, by};
use crate::session::Session;

/// Maximum number of bytes of private data (RFC 5044 section 7.1.1). The library enforces the limit
/// that applies to the peer.
const MAX_PRIVATE_DATA: usize = 512;
/// Maximum IRD and ORD on the wire (RFC 6581 section 9.1).
const MAX_DEPTH: u16 = 0x3FFF;

/// Parameters with which a connection request is sent or accepted.
pub(crate) struct Answer {
    ird: u16,
    ord: u16,
    data: Vec<u8>,
}

impl Answer {
    fn parse(fields: &Fields) -> Result<Answer, Refusal> {
        let depth = |key| {
            let depth = fields.number_as(key, 16).unwrap_or(u16::MAX);
            if depth > MAX_DEPTH {
                return Err(Refusal::agent(format!(
                    "{key}: 0 to {MAX_DEPTH} was expected"
                )));
            }
            Ok(depth)
        };
        Ok(Answer {
            ird: depth("ird")?,
            ord: depth("ord")?,
            data: fields.hex("data", MAX_PRIVATE_DATA)?,
        })
    }

    fn accept(&self) -> AcceptOptions {
        AcceptOptions::default()
            .private_data(self.data.clone())
            .ird(self.ird)
            .ord(self.ord)
    }
}

fn parse_ip(fields: &Fields, key: &str) -> Result<Option<IpAddr>, Refusal> {
    if !fields.has(key) {
        return Ok(None);
    }
    let text = fields.text(key, "")?;
    text.parse().map(Some).map_err(|_| {
        let text = shortened(text);
        Refusal::agent(format!("{key}: an IP address was expected, got '{text}'"))
    })
}

fn parse_port(fields: &Fields, key: &str) -> Result<u16, Refusal> {
    fields.number_as(key, 0)
}

impl Session {
    pub(crate) fn listen(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let ip = parse_ip(fields, "addr")?.unwrap_or(self.common.listen_ip);
        let addr = SocketAddr::new(ip, parse_port(fields, "port")?);
        let backlog = fields.number_as("backlog", 64)?;
        let params = self.parse_params(fields)?;
        let options = Answer::parse(fields)?;
        let auto = fields.flag("auto", false)?.then_some(options);
        let number = self.endpoints.free()?;
        let id = self.cm.create_id(&self.common.device, number);
        id.bind_addr(addr).map_err(by("rdma_bind_addr"))?;
        id.listen(backlog).map_err(by("rdma_listen"))?;
        answer.number("listener", number);
        answer.number("port", id.local_addr().map_or(0, |addr| addr.port()));
        let listener = Listener { id, params, auto };
        self.endpoints
            .put(number, Endpoint::Listener(Box::new(listener)));
        Ok(())
    }

    pub(crate) fn unlisten(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let number = fields.number("listener", u64::MAX)?;
        match self.endpoints.get(number) {
            Ok(Endpoint::Listener(_)) => self.endpoints.take(number).map(drop),
            Ok(Endpoint::Connection(_)) | Err(_) => {
                Err(Refusal::agent(format!("there is no listener {number}")))
            }
        }
    }

    /// Opens an active connection: resolves the address and the route, and creates the QP. The
    /// event `ready` or `failed` reports the result.
    pub(crate) fn open(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        let Some(ip) = parse_ip(fields, "addr")? else {
            return Err(Refusal::agent("addr: an address was expected"));
        };
        let to = SocketAddr::new(ip, parse_port(fields, "port")?);
        let port = parse_port(fields, "source_port")?;
        let usual = self.common.source_ip;
        let from = match parse_ip(fields, "source")?.or(usual) {
            Some(ip) => Some(SocketAddr::new(ip, port)),
            None if port == 0 => None,
            None if ip.is_ipv4() => Some(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
            None => Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)),
        };
        let params = self.parse_params(fields)?;
        let number = self.endpoints.free()?;
        let id = self.cm.create_id(&self.common.device, number);
        id.resolve_addr(from, to).map_err(by("rdma_resolve_addr"))?;
        let connection = Connection {
            queues: None,
            id,
            params,
        };
        self.endpoints
            .put(number, Endpoint::Connection(Box::new(connection)));
        answer.number("conn", number);
        Ok(())
    }

    pub(crate) fn connect(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let Answer { ird, ord, data } = Answer::parse(fields)?;
        let options = ConnectOptions::default()
            .private_data(data)
            .ird(ird)
            .ord(ord)
            .peer_to_peer(fields.flag("peer_to_peer", false)?);
        let (id, qp) = (&self.connection(fields)?.id, self.qp(fields)?);
        id.connect(qp, &options).map_err(by("rdma_connect"))
    }

    pub(crate) fn accept(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let options = Answer::parse(fields)?.accept();
        let (id, qp) = (&self.connection(fields)?.id, self.qp(fields)?);
        id.accept(qp, &options).map_err(by("rdma_accept"))
    }

    pub(crate) fn reject(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let needed = fields.number_as("ord_needed", 0)?;
        let options = RejectOptions::default()
            .private_data(fields.hex("data", MAX_PRIVATE_DATA)?)
            .ord_needed(fields.has("ord_needed").then_some(needed));
        let id = &self.connection(fields)?.id;
        id.reject(&options).map_err(by("rdma_reject"))
    }

    pub(crate) fn disconnect(&mut self, fields: &Fields, _: &mut Line) -> Result<(), Refusal> {
        let id = &self.connection(fields)?.id;
        id.disconnect().map_err(by("rdma_disconnect"))
    }

    /// Handles all pending events of librdmacm. Returns false if there were none.
    pub(crate) fn take_cm_events(&mut self) -> bool {
        let mut busy = false;
        while let Some(event) = self.cm.try_get_event() {
            self.cm_event(&event);
            busy = true;
        }
        busy
    }

    fn cm_event(&mut self, event: &CmEvent) {
        let (kind, number) = (event.kind(), event.id().context());
        if kind == CmEventKind::ConnectRequest {
            self.handle_request(event);
            return;
        }
        let Ok(endpoint) = self.endpoints.get(number) else {
            return;
        };
        let (id, params) = match endpoint {
            Endpoint::Connection(connection) => (connection.id.clone(), connection.params.clone()),
            Endpoint::Listener(_) => return self.report(event, number, None),
        };
        if !id.is(event.id()) {
            return; // belongs to an earlier connection with this number
        }
        match kind {
            CmEventKind::AddrResolved => {
                if let Err(error) = id.resolve_route().map_err(by("rdma_resolve_route")) {
                    self.report_failed(number, &error);
                }
            }
            CmEventKind::RouteResolved => match self.make_queues(number, &params) {
                Ok(queues) => self.report_ready(number, queues),
                Err(error) => self.report_failed(number, &error),
            },
            CmEventKind::Disconnected => {
                // All work requests have been flushed. Their completions are reported before this
                // event.
                if params.notify == Some(Notify::Any) {
                    self.report_completions(number);
                }
                self.report(event, number, None);
            }
            _ => self.report(event, number, None),
        }
    }

    fn report_ready(&mut self, number: u64, queues: Queues) {
        let mut line = begin_event("ready", number);
        line.number("qpn", queues.qp.qp_num());
        if let Ok(Endpoint::Connection(connection)) = self.endpoints.get_mut(number) {
            connection.queues = Some(queues);
        }
        self.write(line);
    }

    /// Handles a connection request at a listener. The connection receives its number and, if
    /// possible, its QP before the controller receives the event.
    fn handle_request(&mut self, event: &CmEvent) {
        let Some(listen_id) = event.listen_id() else {
            return;
        };
        let of = listen_id.context();
        let Ok(Endpoint::Listener(listener)) = self.endpoints.get(of) else {
            return; // the listener is gone, so the request is rejected
        };
        let Ok(number) = self.endpoints.free() else {
            return;
        };
        if !listener.id.is(listen_id) {
            return;
        }
        let params = listener.params.clone();
        let auto = listener.auto.as_ref().map(Answer::accept);
        let id = event.id().clone();
        id.set_context(number);
        let made = self.make_queues(number, &params);
        let (queues, mut failure) = match made {
            Ok(queues) => (Some(queues), None),
            Err(refusal) => (None, Some(refusal)),
        };
        self.report(event, number, Some(of));
        if let (Some(options), Some(queues)) = (auto, &queues) {
            failure = id
                .accept(&queues.qp, &options)
                .map_err(by("rdma_accept"))
                .err();
        }
        let connection = Connection { queues, id, params };
        self.endpoints
            .put(number, Endpoint::Connection(Box::new(connection)));
        if let Some(refusal) = failure {
            self.report_failed(number, &refusal);
        }
    }

    fn report_failed(&mut self, number: u64, why: &Refusal) {
        let mut line = begin_event("failed", number);
        why.write(&mut line);
        self.write(line);
    }

    fn report(&mut self, event: &CmEvent, number: u64, listener: Option<u64>) {
        let kind = event.kind();
        let mut line = begin_event(event_name(kind), number);
        if let Some(listener) = listener {
            line.number("listener", listener);
        }
        line.signed("status", event.status());
        if matches!(kind, CmEventKind::ConnectRequest | CmEventKind::Established) {
            line.number("ird", event.responder_resources());
            line.number("ord", event.initiator_depth());
        }
        if kind == CmEventKind::ConnectRequest {
            line.flag("peer_to_peer", event.is_peer_to_peer());
        }
        if !event.private_data().is_empty() {
            line.hex("data", event.private_data());
        }
        if let Some(reason) = event.reason() {
            line.text("cause", &reason.to_string());
        }
        self.write(line);
    }
}

fn begin_event(name: &str, number: u64) -> Line {
    let mut line = Line::new();
    line.text("ev", name);
    line.number("conn", number);
    line
}

fn event_name(kind: CmEventKind) -> &'static str {
    match kind {
        CmEventKind::AddrResolved => "addr_resolved",
        CmEventKind::AddrError => "addr_error",
        CmEventKind::RouteResolved => "route_resolved",
        CmEventKind::RouteError => "route_error",
        CmEventKind::ConnectRequest => "connect_request",
        CmEventKind::ConnectError => "connect_error",
        CmEventKind::Unreachable => "unreachable",
        CmEventKind::Rejected => "rejected",
        CmEventKind::Established => "established",
        CmEventKind::Disconnected => "disconnected",
        CmEventKind::DeviceRemoval => "device_removal",
        _ => "other",
    }
}
