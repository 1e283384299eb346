//! A connection between a QP of ours and a QP of the agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use uwarp_interop::{Agent, Answer, Conn, Event, Failure, Listen, PATIENCE, QpParams, Result, Rig};
use uwarp_verbs::llp::ethernet::EthernetNetwork;
use uwarp_verbs::{
    AcceptOptions, Access, Completion, ConnectOptions, Connected, Cq, Device, MemoryRegion, Pd, Qp,
    QpCaps, Settings, Status, WcOpcode,
};

/// Pause before our first FPDU. siw's responder sends its Reply before it watches the socket. So it
/// can miss an FPDU that arrives right after the Reply, and then processes nothing until more bytes
/// arrive.
const SETTLE: Duration = Duration::from_millis(250);

/// Roles of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// We connect to the guest.
    GuestServes,
    /// The guest connects to us.
    GuestConnects,
}

impl Role {
    pub(crate) const BOTH: [Role; 2] = [Role::GuestServes, Role::GuestConnects];

    /// Returns the name for tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::GuestServes => "guest_serves",
            Role::GuestConnects => "guest_connects",
        }
    }

    /// Returns the name for the matrix.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Role::GuestServes => "siw as responder",
            Role::GuestConnects => "siw as initiator",
        }
    }
}

/// Parameters of both ends. Depths are powers of two, because siw rounds other depths up.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ird: u8,
    pub(crate) ord: u8,
    /// IRD and ORD of the guest's application, if they are different.
    pub(crate) their_depths: Option<(u8, u8)>,
    /// Private Data of our side.
    pub(crate) our_data: Vec<u8>,
    /// Private Data of the guest.
    pub(crate) their_data: Vec<u8>,
    pub(crate) settings: Settings,
    pub(crate) peer_to_peer: bool,
    pub(crate) caps: QpCaps,
    pub(crate) qp_params: QpParams,
    /// Network of our side, if it differs from the network of the wire.
    pub(crate) network: Option<EthernetNetwork>,
}

impl Default for Terms {
    fn default() -> Self {
        Terms {
            ird: 16,
            ord: 16,
            their_depths: None,
            our_data: Vec::new(),
            their_data: Vec::new(),
            settings: Settings::default(),
            peer_to_peer: false,
            caps: QpCaps::default(),
            qp_params: QpParams::default(),
            network: None,
        }
    }
}

/// Our end of a connection.
pub(crate) struct Ours {
    pub(crate) device: Device,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
}

/// Both ends of a connection.
pub(crate) struct Pair {
    pub(crate) ours: Ours,
    pub(crate) conn: Conn,
    /// Last event in the guest: the connection request, or the establishment of the connection.
    pub(crate) heard: Event,
    /// Private Data received from the guest.
    pub(crate) private_data: Vec<u8>,
}

impl Ours {
    pub(crate) fn new(rig: &Rig, terms: &Terms) -> Result<Ours> {
        let settings = terms.settings.clone();
        let device = match &terms.network {
            Some(network) => Device::open(Arc::new(network.clone()), settings)?,
            None => rig.device(settings)?,
        };
        Ours::on(device, terms)
    }

    /// Creates an end on an existing device.
    pub(crate) fn on(device: Device, terms: &Terms) -> Result<Ours> {
        let pd = device.alloc_pd()?;
        let cq = device.create_cq(terms.caps.max_send_wr + terms.caps.max_recv_wr)?;
        let qp = pd.create_qp(&cq, &cq, terms.caps)?;
        Ok(Ours { device, pd, cq, qp })
    }

    /// Registers a region of zeros on our side.
    pub(crate) fn region(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        Ok(self.pd.register(vec![0; len], access)?)
    }

    /// Waits for the next completion, which must be a success with this number and opcode.
    pub(crate) fn completion(&self, wr_id: u64, opcode: WcOpcode) -> Result<Completion> {
        let Some(completion) = self.cq.wait(Some(PATIENCE)) else {
            return Err(Failure::new(format!(
                "no completion of {opcode:?} {wr_id} on our side in time"
            )));
        };
        let it = (completion.wr_id, completion.opcode, completion.status);
        if it == (wr_id, opcode, Status::Success) {
            return Ok(completion);
        }
        let end = self.qp.end_reason().map(|reason| reason.to_string());
        Err(Failure::new(format!(
            "expected a completion of {opcode:?} {wr_id} on our side, got: {completion:?}; \
             end of the connection: {end:?}"
        )))
    }
}

/// Connects. `before` runs when both QPs exist and nothing was sent yet. It can post receives.
pub(crate) fn connect(
    rig: &mut Rig,
    role: Role,
    terms: &Terms,
    before: impl FnOnce(&mut Agent, Conn, &Ours) -> Result<()>,
) -> Result<Pair> {
    let ours = Ours::new(rig, terms)?;
    connect_with(rig, role, ours, terms, before)
}

/// Connects as `connect` does, with an existing end on our side.
pub(crate) fn connect_with(
    rig: &mut Rig,
    role: Role,
    ours: Ours,
    terms: &Terms,
    before: impl FnOnce(&mut Agent, Conn, &Ours) -> Result<()>,
) -> Result<Pair> {
    match role {
        Role::GuestServes => guest_serves(rig, ours, terms, before),
        Role::GuestConnects => guest_connects(rig, ours, terms, before),
    }
}

fn guest_serves(
    rig: &mut Rig,
    ours: Ours,
    terms: &Terms,
    before: impl FnOnce(&mut Agent, Conn, &Ours) -> Result<()>,
) -> Result<Pair> {
    let port = rig.guest_port();
    let to = rig.wire.guest_addr(port);
    let listen = Listen {
        qp_params: terms.qp_params,
        addr: Some(rig.wire.guest_ip()),
        ..Listen::default()
    };
    let listener = rig.agent.listen(port, &listen)?;
    let options = ConnectOptions::default()
        .private_data(terms.our_data.clone())
        .ird(terms.ird.into())
        .ord(terms.ord.into())
        .peer_to_peer(terms.peer_to_peer);
    let agent = &mut rig.agent;
    let (heard, connected) = thread::scope(|scope| {
        let connecting = scope.spawn(|| ours.qp.connect(to, &options));
        let heard = (|| {
            let request = agent.request(listener)?;
            before(agent, request.conn, &ours)?;
            agent.accept(request.conn, &their_answer(terms))?;
            agent.event(request.conn, "established")?;
            Ok::<_, Failure>(request)
        })();
        // A connect without an answer ends by its own timeout.
        (heard, connecting.join())
    });
    let Ok(connected) = connected else {
        return Err(Failure::new("our connect panicked"));
    };
    let (heard, connected): (Event, Connected) = match (heard, connected) {
        (Ok(heard), Ok(connected)) => (heard, connected),
        (Err(failure), Ok(_)) => return Err(failure),
        (Ok(_), Err(error)) => return Err(error.into()),
        (Err(failure), Err(error)) => return Err(failure.during(format!("our side: {error}"))),
    };
    thread::sleep(SETTLE);
    Ok(Pair {
        conn: heard.conn,
        ours,
        heard,
        private_data: connected.private_data,
    })
}

fn guest_connects(
    rig: &mut Rig,
    ours: Ours,
    terms: &Terms,
    before: impl FnOnce(&mut Agent, Conn, &Ours) -> Result<()>,
) -> Result<Pair> {
    let listener = ours.device.listen(SocketAddr::new(rig.wire.our_ip(), 0))?;
    let (ip, port) = (rig.wire.our_ip_for_guest(), listener.local_addr().port());
    let conn = rig.agent.open_conn(ip, port, &terms.qp_params)?;
    before(&mut rig.agent, conn, &ours)?;
    rig.agent.connect(conn, &their_answer(terms))?;
    let request = listener.wait_request(Some(PATIENCE))?;
    let private_data = request.private_data().to_vec();
    let accept = AcceptOptions::default()
        .private_data(terms.our_data.clone())
        .ird(terms.ird.into())
        .ord(terms.ord.into());
    request.accept(&ours.qp, &accept)?;
    let heard = rig.agent.event(conn, "established")?;
    Ok(Pair {
        ours,
        conn,
        heard,
        private_data,
    })
}

fn their_answer(terms: &Terms) -> Answer {
    let (ird, ord) = terms.their_depths.unwrap_or((terms.ird, terms.ord));
    Answer {
        ird,
        ord,
        private_data: terms.their_data.clone(),
    }
}
