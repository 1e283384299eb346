//! A victim, its application, and an honest peer.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use crate::Result;
use crate::controller::{Controller, Region};
use crate::honest::{Client, Honest, ROOM};
use crate::victim::Victim;

/// What an attack finds.
pub(crate) struct Scene {
    pub(crate) victim: Victim,
    pub(crate) controller: Controller,
    /// Where the application accepts everybody.
    pub(crate) listener: SocketAddr,
    /// Another place where it does.
    pub(crate) elsewhere: SocketAddr,
    /// What the application lets everybody read.
    pub(crate) region: Region,
    /// For peers that come while the attack is on.
    spare: Region,
    pub(crate) honest: Honest,
}

impl Scene {
    /// For a whole run, which measures; or for one where nobody is to need all of the machine.
    pub(crate) fn new(whole: bool, descriptors: Option<u32>) -> Result<Scene> {
        let victim = Victim::start([0, 0], descriptors)?;
        let mut controller = Controller::connect(victim.control)?;
        let (listener, elsewhere) = (controller.listen()?, controller.listen()?);
        let len = if whole { 16 } else { 1 } << 20;
        // Also to write: a right guess of its STag would show.
        let region = controller.register(len, "lw,rw,rr")?;
        let filled = json!({"cmd": "fill", "mr": region.number, "seed": 7});
        controller.command(filled)?;
        let mut room = || controller.register(ROOM, "lw,rw,rr");
        let (target, spare) = (room()?, room()?);
        let rest = Duration::from_millis(if whole { 0 } else { 5 });
        Ok(Scene {
            honest: Honest::start(listener, target, rest)?,
            victim,
            controller,
            listener,
            elsewhere,
            region,
            spare,
        })
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

    /// A number that changes when an octet of the region does.
    pub(crate) fn canary(&mut self) -> Result<u64> {
        let answer = self
            .controller
            .command(json!({"cmd": "hash", "mr": self.region.number}))?;
        answer["fnv1a"].as_u64().ok_or_else(|| "no hash".into())
    }
}
