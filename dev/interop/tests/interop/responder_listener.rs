//! A listener on either side that accepts many connections.

use std::thread;

use uwarp_interop::{Agent, Answer, Conn, Listen, ListenerNum, PATIENCE, QpParams, Result, Rig};
use uwarp_verbs::{AcceptOptions, ConnectOptions, Listener, Qp};

use crate::pair::{Ours, Role};
use crate::setup::{joined, listen};

/// Listener on the responder's side.
pub(crate) enum ResponderListener {
    Guest(u16, ListenerNum),
    /// Listener on our side, and the parameters of the guest's QPs.
    Us(Listener, QpParams),
}

impl ResponderListener {
    /// Opens a listener. `qp_params` are the parameters of the guest's QPs.
    pub(crate) fn open(
        rig: &mut Rig,
        ours: &Ours,
        role: Role,
        qp_params: QpParams,
    ) -> Result<ResponderListener> {
        Ok(match role {
            Role::GuestServes => {
                let port = rig.guest_port();
                let options = Listen {
                    qp_params,
                    ..Listen::default()
                };
                ResponderListener::Guest(port, rig.agent.listen(port, &options)?)
            }
            Role::GuestConnects => ResponderListener::Us(listen(rig, ours)?, qp_params),
        })
    }

    /// Establishes one more connection, with this QP of ours.
    pub(crate) fn connect(&self, rig: &mut Rig, qp: &Qp) -> Result<Conn> {
        match self {
            ResponderListener::Guest(port, listener) => {
                let to = rig.wire.guest_addr(*port);
                let agent = &mut rig.agent;
                thread::scope(|scope| {
                    let connecting = scope.spawn(|| qp.connect(to, &ConnectOptions::default()));
                    let accepted = accept(agent, *listener);
                    joined(connecting.join())??;
                    accepted
                })
            }
            ResponderListener::Us(listener, qp_params) => {
                let (ip, port) = (rig.wire.our_ip_for_guest(), listener.local_addr().port());
                let conn = rig.agent.open_conn(ip, port, qp_params)?;
                rig.agent.connect(conn, &Answer::default())?;
                let request = listener.wait_request(Some(PATIENCE))?;
                request.accept(qp, &AcceptOptions::default())?;
                rig.agent.event(conn, "established")?;
                Ok(conn)
            }
        }
    }
}

/// Accepts the next request in the guest. When siw reports that the connection is established, it
/// already watches the socket. So siw misses none of the bytes that we send.
fn accept(agent: &mut Agent, listener: ListenerNum) -> Result<Conn> {
    let request = agent.request(listener)?;
    agent.accept(request.conn, &Answer::default())?;
    agent.event(request.conn, "established")?;
    Ok(request.conn)
}
