//! A victim, its application, and an honest peer.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use crate::Result;
use crate::controller::{Controller, Region};
use crate::honest::{Client, Honest, ROOM, Visitors};
use crate::victim::{Confined, Victim};

/// What an attack finds.
pub(crate) struct Scene {
    pub(crate) victim: Victim,
    pub(crate) controller: Controller,
    /// Where the application accepts everybody.
    pub(crate) listener: SocketAddr,
    /// Another place where it does.
    pub(crate) elsewhere: SocketAddr,
    /// What the application lets everybody read and write; nobody who is honest does.
    pub(crate) region: Region,
    /// For peers that come while the attack is on: one that an attack asks for, and visitors.
    spare: Region,
    visited: Region,
    /// That of the honest peer.
    target: Region,
    pub(crate) honest: Honest,
}

impl Scene {
    /// For a whole run, which measures; or for one where nobody is to need all of the machine.
    pub(crate) fn new(whole: bool, confined: Confined) -> Result<Scene> {
        let victim = Victim::start([0, 0], confined)?;
        let mut controller = Controller::connect(victim.control)?;
        let (listener, elsewhere) = (controller.listen()?, controller.listen()?);
        let len = if whole { 16 } else { 1 } << 20;
        // With all rights, so that what gets through is seen.
        let region = controller.register(len, "lw,rw,rr")?;
        let mut room = || controller.register(ROOM, "lw,rw,rr");
        let (target, spare, visited) = (room()?, room()?, room()?);
        let rest = Duration::from_millis(if whole { 0 } else { 5 });
        let mut scene = Scene {
            honest: Honest::start(listener, target, rest)?,
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

    /// The region has the bytes that nobody is to change.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let fill = json!({"cmd": "fill", "mr": self.region.number, "seed": 7});
        self.controller.command(fill).map(drop)
    }

    /// What a guess would be right with.
    pub(crate) fn stags(&self) -> [u32; 4] {
        [self.region, self.spare, self.visited, self.target].map(|region| region.rkey)
    }

    /// Honest peers come and go from now on.
    pub(crate) fn visitors(&self) -> Visitors {
        Visitors::start(self.listener, self.visited)
    }

    /// An honest peer that comes now is served.
    pub(crate) fn newcomer(&self) -> Result<()> {
        self.newcomer_at(self.listener)
    }

    /// The same at another listener.
    pub(crate) fn newcomer_at(&self, listener: SocketAddr) -> Result<()> {
        let served = Client::connect(listener, self.spare).and_then(|mut c| c.round());
        served.map_err(|error| format!("an honest peer that came meanwhile: {error}").into())
    }

    /// A number that changes when an byte of the region does.
    pub(crate) fn canary(&mut self) -> Result<u64> {
        let answer = self
            .controller
            .command(json!({"cmd": "hash", "mr": self.region.number}))?;
        answer["fnv1a"].as_u64().ok_or_else(|| "no hash".into())
    }
}
