//! A victim, its application, and an honest peer.

use std::net::SocketAddr;

use serde_json::json;

use crate::Result;
use crate::controller::{Controller, Region};
use crate::honest::{self, Client, Honest, Origin, ROOM, Rounds, Visitors, Visits, Work as _};
use crate::link::{self, Link, LinkKind};
use crate::victim::{Confined, Victim};

/// Processes, connections and memory that take part in an attack.
pub(crate) struct Scene {
    /// Ends before the victim does, because it would wait for a victim that is gone.
    pub(crate) honest: Honest,
    pub(crate) victim: Victim,
    pub(crate) controller: Controller,
    /// Listener of the application, which accepts every connection.
    pub(crate) listener: SocketAddr,
    /// Second listener of the same kind.
    pub(crate) elsewhere: SocketAddr,
    /// Region that every peer may read and write. Honest peers do not use it.
    pub(crate) region: Region,
    /// Region of newcomers, which connect once.
    spare: Region,
    /// Region of visitors, which connect repeatedly during the attack.
    visited: Region,
    /// Region of the honest peer that is always connected.
    target: Region,
    /// Place of the honest peers.
    origin: Origin,
    /// Listeners that honest peers visit.
    listeners: Vec<SocketAddr>,
    /// Link to a victim with TCP in user space.
    pub(crate) link: Option<Link>,
}

impl Scene {
    /// Starts a victim, its application and an honest peer. `whole`: true for a full run, which
    /// measures throughput. In a small run the honest peer pauses between rounds, because it must
    /// not use the whole machine.
    pub(crate) fn new(whole: bool, confined: Confined) -> Result<Scene> {
        let victim = Victim::start([0, 0], confined)?;
        Scene::of(victim, Origin::Kernel, &["127.0.0.1"], whole, None)
    }

    /// Starts a victim with TCP in user space on a link of this kind, with its application and an
    /// honest peer.
    pub(crate) fn on(kind: LinkKind, whole: bool) -> Result<Scene> {
        let (link, victim, origin) = Link::start(kind)?;
        Scene::of(victim, origin, &link::VICTIM, whole, Some(link))
    }

    /// Starts the application of a victim, which listens at these addresses, and an honest peer.
    fn of(
        victim: Victim,
        origin: Origin,
        addrs: &[&str],
        whole: bool,
        link: Option<Link>,
    ) -> Result<Scene> {
        let mut controller = Controller::connect(victim.control)?;
        let mut listeners = Vec::new();
        for addr in addrs {
            listeners.push(controller.listen_at(addr.parse()?)?);
        }
        let (listener, elsewhere) = (listeners[0], controller.listen_at(listeners[0].ip())?);
        let len = if whole { 16 } else { 1 } << 20;
        // Peers have all access rights to the region, so a successful attack changes its bytes.
        let region = controller.register(len, "lw,rw,rr")?;
        let mut room = || controller.register(ROOM, "lw,rw,rr");
        let (target, spare, visited) = (room()?, room()?, room()?);
        let client = Client::connect_from(&origin, listener, target)?;
        let mut scene = Scene {
            honest: Honest::start(client, Rounds::of::<Client>(), honest::rest(whole))?,
            origin,
            listeners,
            link,
            victim,
            controller,
            listener,
            elsewhere,
            region,
            spare,
            visited,
            target,
        };
        scene.fill()?;
        Ok(scene)
    }

    /// Listeners that honest peers visit: one for each IP version of the link.
    pub(crate) fn listeners(&self) -> &[SocketAddr] {
        &self.listeners
    }

    /// Fills the region with known bytes, which no peer may change.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let fill = json!({"cmd": "fill", "mr": self.region.number, "seed": 7});
        self.controller.command(fill).map(drop)
    }

    /// Returns the STags that a guess could hit.
    pub(crate) fn stags(&self) -> [u32; 4] {
        [self.region, self.spare, self.visited, self.target].map(|region| region.rkey)
    }

    /// Starts honest peers that connect during the attack, one after the other.
    pub(crate) fn visitors(&self) -> Visitors {
        let (origin, listeners, to) = (self.origin.clone(), self.listeners.clone(), self.visited);
        Visitors::start(move |number| {
            let listener = listeners[number % listeners.len()];
            Client::connect_from(&origin, listener, to)?.round()
        })
    }

    /// Lets honest peers connect after the attack, one after the other.
    pub(crate) fn later_visits(&self) -> Result<Visits> {
        let mut visits = Visits {
            afterwards: true,
            ..Visits::default()
        };
        for _ in 0..5 {
            visits.add(|| self.newcomer())?;
        }
        Ok(visits)
    }

    /// Checks that an honest peer which connects now is served.
    pub(crate) fn newcomer(&self) -> Result<()> {
        self.newcomer_at(self.listener)
    }

    /// Like `newcomer`, but connects to this listener.
    pub(crate) fn newcomer_at(&self, listener: SocketAddr) -> Result<()> {
        let client = Client::connect_from(&self.origin, listener, self.spare);
        let served = client.and_then(|mut client| client.round());
        served.map_err(|error| format!("an honest peer that connected: {error}").into())
    }

    /// Returns a hash of the region, which changes if a byte of the region does.
    pub(crate) fn canary(&mut self) -> Result<u64> {
        let answer = self
            .controller
            .command(json!({"cmd": "hash", "mr": self.region.number}))?;
        answer["fnv1a"].as_u64().ok_or_else(|| "no hash".into())
    }
}
