//! A listener of either side, for many connections.

use std::thread;

use uwarp_interop::{Agent, Answer, Conn, Listen, ListenerNum, PATIENCE, QpWish, Result, Rig};
use uwarp_verbs::{AcceptOptions, ConnectOptions, Listener, Qp};

use crate::pair::{Ours, Role};
use crate::setup::{joined, listen};

/// Who listens for many connections.
pub(crate) enum Door {
    Guest(u16, ListenerNum),
    /// With what the guest's QPs are made with.
    Us(Listener, QpWish),
}

impl Door {
    /// The guest's QPs will be made as `wish` says.
    pub(crate) fn open(rig: &mut Rig, ours: &Ours, role: Role, wish: QpWish) -> Result<Door> {
        Ok(match role {
            Role::GuestServes => {
                let port = rig.guest_port();
                let options = Listen {
                    wish,
                    ..Listen::default()
                };
                Door::Guest(port, rig.agent.listen(port, &options)?)
            }
            Role::GuestConnects => Door::Us(listen(rig, ours)?, wish),
        })
    }

    /// One more connection, with this QP of ours.
    pub(crate) fn connect(&self, rig: &mut Rig, qp: &Qp) -> Result<Conn> {
        match self {
            Door::Guest(port, listener) => {
                let to = rig.wire.guest_addr(*port);
                let agent = &mut rig.agent;
                thread::scope(|scope| {
                    let connecting = scope.spawn(|| qp.connect(to, &ConnectOptions::default()));
                    let accepted = accept(agent, *listener);
                    joined(connecting.join())??;
                    accepted
                })
            }
            Door::Us(listener, wish) => {
                let (ip, port) = (rig.wire.our_ip_for_guest(), listener.local_addr().port());
                let conn = rig.agent.open_conn(ip, port, wish)?;
                rig.agent.connect(conn, &Answer::default())?;
                let request = listener.wait_request(Some(PATIENCE))?;
                request.accept(qp, &AcceptOptions::default())?;
                rig.agent.event(conn, "established")?;
                Ok(conn)
            }
        }
    }
}

/// When siw says that it is established, it listens to the socket: nothing of ours can be missed then.
fn accept(agent: &mut Agent, listener: ListenerNum) -> Result<Conn> {
    let request = agent.request(listener)?;
    agent.accept(request.conn, &Answer::default())?;
    agent.event(request.conn, "established")?;
    Ok(request.conn)
}
