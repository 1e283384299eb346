//! Attacks that kill a process in the middle of its work: the peer, or the victim.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::{AttackOutcome, Pace};
use crate::controller::{Controller, Region};
use crate::honest::{self, Client, Honest, ROOM, Rounds, Visits, Work as _};
use crate::raw::Peer;
use crate::report::Figures;
use crate::scene::Scene;
use crate::victim::{Confined, Usage, Victim, Watch};
use crate::{PATIENCE, Result};

/// Environment variable that makes this program the writer that is killed. Its value contains the
/// address, the STag, the TO and the length.
const WRITER: &str = "UWARP_TEST_WRITER";

/// Number of bytes in each segment that the writer sends.
const PIECE: u64 = 32 << 10;
/// Number of segments that the writer sends each second.
const PIECES: usize = 3_200;

/// Runs as the writer if [`WRITER`] is set. Otherwise returns `None`.
pub(crate) fn writer() -> Option<Result<()>> {
    let arguments = std::env::var(WRITER).ok()?;
    let mut words = arguments.split(' ');
    let mut next = || words.next().ok_or("an argument of the writer is missing");
    let mut write = || {
        let to: SocketAddr = next()?.parse()?;
        let (stag, addr, len): (u32, u64, u64) =
            (next()?.parse()?, next()?.parse()?, next()?.parse()?);
        let mut peer = Peer::connect(to)?;
        let bytes = vec![0xAB; PIECE as usize];
        for piece in Pace::new(usize::try_from(len / PIECE)?, PIECES) {
            // All segments belong to one message, which never ends.
            let at = piece as u64 * PIECE;
            peer.write(false, stag, addr + at, &bytes)?;
            peer.flush()?;
        }
        // The writer keeps running, so that it is killed before the message ends.
        thread::sleep(PATIENCE);
        Ok(())
    };
    Some(write())
}

/// Kills a peer in the middle of a Write. The load is the length of the Write in MiB.
pub(crate) fn peer_killed(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let load = pace.load();
    let len = (load as u64) << 20;
    let mut controller = Controller::connect(scene.victim.control)?;
    let region = controller.register(len, "lw,rw")?;
    let listener = controller.listen_with("all")?;
    let arguments = format!("{listener} {} {} {len}", region.rkey, region.addr);
    let mut writer = Command::new(std::env::current_exe()?)
        .env(WRITER, arguments)
        .stdin(Stdio::null())
        .spawn()?;
    let arrived = wait_half_written(&mut controller, region);
    let killed = writer.kill().and_then(|()| writer.wait());
    arrived?;
    killed?;
    let start = Instant::now();
    while controller.ended() < 1 {
        if start.elapsed() > PATIENCE {
            return Err("the victim does not notice that its peer was killed".into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let cause = check_partial_write(&mut controller, region)?;
    let outcome = AttackOutcome::new(
        format!(
            "a Write of {load} MiB at {} MiB a second",
            (PIECE * PIECES as u64) >> 20
        ),
        &format!(
            "the connection ends, and the application gets the cause (\"{cause}\"); bytes that arrived stay, the rest is unchanged, \
             and no completion reports the message"
        ),
    );
    Ok(AttackOutcome {
        own_memory: len,
        ..outcome
    })
}

/// Checks that the application received the cause of the connection's end, and no completion. The
/// first half of the region must be written, and its last bytes must not.
fn check_partial_write(controller: &mut Controller, region: Region) -> Result<String> {
    const LEN: u64 = 64;
    let causes = controller.causes();
    let [cause] = &causes[..] else {
        return Err(format!("the application got the causes {causes:?}").into());
    };
    // The cause must be the same wherever the peer's kernel cut the stream, even between two FPDUs.
    if !cause.contains("in the middle of a message (RDMA Write)") {
        return Err(format!("the application got another cause: {cause}").into());
    }
    if controller.completions() > 0 {
        return Err("a completion reports a Write that is incomplete".into());
    }
    for part in 0..16 {
        let found = controller.peek(region, region.len / 32 * part, LEN)?;
        if found != "ab".repeat(LEN as usize) {
            return Err(
                format!("bytes that arrived have changed: {found} at part {part} of 32").into(),
            );
        }
    }
    let end = controller.peek(region, region.len - LEN, LEN)?;
    if end != "00".repeat(LEN as usize) {
        return Err(format!("the end of the region was not written, and is {end}").into());
    }
    Ok(cause.clone())
}

/// Waits until the middle of the region has been written.
fn wait_half_written(controller: &mut Controller, region: Region) -> Result<()> {
    let (middle, deadline) = (region.len / 2, Instant::now() + PATIENCE);
    loop {
        if controller.peek(region, middle, 1)? == "ab" {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err("the Write does not arrive".into());
        }
        // Without a pause, polling itself would load the machine.
        thread::sleep(Duration::from_millis(10));
    }
}

/// A process from its start until it is killed, with the honest peer that it serves.
struct Life {
    victim: Victim,
    /// Application of the victim. Its listener ends with it.
    _controller: Controller,
    listener: SocketAddr,
    /// Region of newcomers. The honest peer has its own, because it works all the time.
    spare: Region,
    watch: Watch,
    honest: Honest,
}

impl Life {
    /// Starts a process on these ports. Performs the visit of a newcomer as soon as the process
    /// listens, and then starts the honest peer.
    fn start(ports: [u16; 2], rounds: &Rounds, visits: &mut Visits, whole: bool) -> Result<Life> {
        let victim = Victim::start(ports, Confined::Not)?;
        let watch = victim.watch();
        let mut controller = Controller::connect(victim.control)?;
        let mut room = || controller.register(ROOM, "lw,rw,rr");
        let (region, spare) = (room()?, room()?);
        let listener = controller.listen()?;
        visits.add(|| Client::connect(listener, spare)?.round())?;
        let client = Client::connect(listener, region)?;
        Ok(Life {
            honest: Honest::start(client, rounds.clone(), honest::rest(whole))?,
            victim,
            _controller: controller,
            listener,
            spare,
            watch,
        })
    }

    fn ports(&self) -> [u16; 2] {
        [self.victim.rdma.port(), self.victim.control.port()]
    }

    /// Kills the process. Returns its usage at its peak, its processor time, and the time until its
    /// peer had noticed.
    fn end(self) -> Result<(Usage, f64, Duration)> {
        let Life {
            mut victim,
            watch,
            honest,
            ..
        } = self;
        let most = watch.most();
        let processor = victim.processor()?;
        drop(watch);
        victim.kill()?;
        let killed = Instant::now();
        let Err(error) = honest.wait_end() else {
            return Err("its peer has ended without an error".into());
        };
        let noticed_after = killed.elapsed();
        if error.to_string().contains("got no completion") {
            return Err(format!("its peer noticed nothing: {error}").into());
        }
        Ok((most, processor, noticed_after))
    }
}

/// Kills the victim, and starts it again on the same ports.
pub(crate) fn victim_killed(
    pace: &mut Pace,
    whole: bool,
) -> Result<Option<(AttackOutcome, Figures)>> {
    let (rounds, mut visits) = (Rounds::of::<Client>(), Visits::default());
    let mut life = Life::start([0, 0], &rounds, &mut visits, whole)?;
    let ports = life.ports();
    let quiet = rounds.sample(whole);
    let before = life.victim.usage()?;
    visits = Visits::default();

    let (mut most, mut processor) = (Usage::default(), 0.0);
    let (mut slowest, mut noticed_after) = (Duration::ZERO, Duration::ZERO);
    let from = Instant::now();
    for _ in &mut *pace {
        let ended = life.end()?;
        most = most.max(ended.0);
        processor += ended.1;
        noticed_after = noticed_after.max(ended.2);
        let killed = Instant::now();
        life = Life::start(ports, &rounds, &mut visits, whole)?;
        slowest = slowest.max(killed.elapsed());
    }
    // The last process has a second as well.
    thread::sleep(Duration::from_secs(1));
    let rates = rounds.rates(from, Instant::now());
    let afterwards = rounds.sample(whole);
    Client::connect(life.listener, life.spare)?.round()?;
    let (last, used, _) = life.end()?;
    let outcome = AttackOutcome::new(
        pace.summary(),
        &format!(
            "after {} ms all work of its peer has completed in error; the next process takes the same ports, and has served a peer {:.1} s after the kill",
            noticed_after.as_millis(),
            slowest.as_secs_f64()
        ),
    );
    let figures = Figures {
        before,
        most: most.max(last),
        processor: processor + used,
        rates,
        quiet: [quiet, afterwards],
        visits,
    };
    Ok(Some((outcome, figures)))
}
