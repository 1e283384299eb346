//! Attacks that kill a process in the middle of its work: the peer, or the victim.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::{AttackOutcome, Pace};
use crate::controller::{Controller, Region};
use crate::honest::{Client, ROOM};
use crate::raw::Peer;
use crate::scene::Scene;
use crate::victim::{Confined, Usage, Victim};
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

/// Kills the victim, and starts it again on the same ports.
pub(crate) fn victim_killed(_: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let mut ports = [0, 0];
    let (mut before, mut most) = (None, Usage::default());
    let (mut killed, mut slowest) = (None::<Instant>, Duration::ZERO);
    let mut noticed_after = Duration::ZERO;
    for _ in &mut *pace {
        let mut victim = Victim::start(ports, Confined::Not)?;
        let watch = victim.watch();
        ports = [victim.rdma.port(), victim.control.port()];
        let mut controller = Controller::connect(victim.control)?;
        let region = controller.register(ROOM, "lw,rw,rr")?;
        let mut client = Client::connect(controller.listen()?, region)?;
        client.round()?;
        if let Some(killed) = killed {
            slowest = slowest.max(killed.elapsed());
        }
        before.get_or_insert(victim.usage()?);
        let peer = thread::spawn(move || {
            loop {
                if let Err(error) = client.round() {
                    return error.to_string();
                }
            }
        });
        thread::sleep(Duration::from_millis(500));
        let seen = watch.most();
        drop(watch);
        most.memory = most.memory.max(seen.memory);
        most.descriptors = most.descriptors.max(seen.descriptors);
        victim.kill()?;
        let now = Instant::now();
        let error = peer.join().map_err(|_| "the peer has panicked")?;
        noticed_after = noticed_after.max(now.elapsed());
        killed = Some(now);
        if error.contains("got no completion") {
            return Err(format!("its peer noticed nothing: {error}").into());
        }
    }
    let outcome = AttackOutcome::new(
        format!("{} times", pace.load()),
        &format!(
            "after {} ms all work of its peer has completed in error; the next process takes the same ports, and has served a peer {:.1} s after the kill",
            noticed_after.as_millis(),
            slowest.as_secs_f64()
        ),
    );
    Ok(AttackOutcome {
        itself: before.map(|before| (before, most)),
        ..outcome
    })
}
