//! Processes that end in the middle: the peer's, and ours.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::{Pace, Told};
use crate::controller::{Controller, Region};
use crate::honest::{Client, ROOM};
use crate::raw::Peer;
use crate::scene::Scene;
use crate::victim::{Confined, Usage, Victim};
use crate::{PATIENCE, Result};

/// In the environment of this program when it is to be the writer that gets killed: address, STag, TO, length.
const WRITER: &str = "UWARP_TEST_WRITER";

/// Bytes of its segments.
const PIECE: u64 = 32 << 10;
/// How many of them it sends in a second.
const PIECES: usize = 3_200;

/// Runs as the writer, if that is what this process is for.
pub(crate) fn writer() -> Option<Result<()>> {
    let told = std::env::var(WRITER).ok()?;
    let mut words = told.split(' ');
    let mut next = || words.next().ok_or("the writer was not told enough");
    let mut write = || {
        let to: SocketAddr = next()?.parse()?;
        let (stag, addr, len): (u32, u64, u64) =
            (next()?.parse()?, next()?.parse()?, next()?.parse()?);
        let mut peer = Peer::connect(to)?;
        let octets = vec![0xAB; PIECE as usize];
        for piece in Pace::new(usize::try_from(len / PIECE)?, PIECES) {
            // One message; nobody gets to see its end.
            let at = piece as u64 * PIECE;
            peer.write(false, stag, addr + at, &octets)?;
            peer.flush()?;
        }
        // What is written must not be all, whoever is faster.
        thread::sleep(PATIENCE);
        Ok(())
    };
    Some(write())
}

/// A peer is killed in the middle of a Write of so many MiB.
pub(crate) fn peer_killed(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let load = pace.load();
    let len = (load as u64) << 20;
    let mut controller = Controller::connect(scene.victim.control)?;
    let region = controller.register(len, "lw,rw")?;
    let listener = controller.listen_with("all")?;
    let told = format!("{listener} {} {} {len}", region.rkey, region.addr);
    let mut writer = Command::new(std::env::current_exe()?)
        .env(WRITER, told)
        .stdin(Stdio::null())
        .spawn()?;
    let arrived = half_way(&mut controller, region);
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
    let cause = no_more_than_came(&mut controller, region)?;
    let told = Told::new(
        format!(
            "a Write of {load} MiB at {} MiB a second",
            (PIECE * PIECES as u64) >> 20
        ),
        &format!(
            "the connection ends, which the application is told with the cause (\"{cause}\"); what had come stays, the rest is as it was, \
             and no completion says that it is whole"
        ),
    );
    Ok(Told {
        own_memory: len,
        ..told
    })
}

/// The application knows that the connection ended, and why, and of nothing that is whole; the first half of the region is
/// written, and its end is not.
fn no_more_than_came(controller: &mut Controller, region: Region) -> Result<String> {
    const LEN: u64 = 64;
    let causes = controller.causes();
    let [cause] = &causes[..] else {
        return Err(format!("the application is told {causes:?}").into());
    };
    // Wherever the kernel of the peer has cut it: between two FPDUs, too.
    if !cause.contains("in the middle of a message (RDMA Write)") {
        return Err(format!("the application is told another cause: {cause}").into());
    }
    if controller.completions() > 0 {
        return Err("a completion says that a Write is whole which is not".into());
    }
    for part in 0..16 {
        let found = controller.peek(region, region.len / 32 * part, LEN)?;
        if found != "ab".repeat(LEN as usize) {
            return Err(format!("what had come did not stay: {found} at part {part} of 32").into());
        }
    }
    let end = controller.peek(region, region.len - LEN, LEN)?;
    if end != "00".repeat(LEN as usize) {
        return Err(format!("the end of the region was not written, and is {end}").into());
    }
    Ok(cause.clone())
}

/// Waits until the middle of the region has been written.
fn half_way(controller: &mut Controller, region: Region) -> Result<()> {
    let (middle, deadline) = (region.len / 2, Instant::now() + PATIENCE);
    loop {
        if controller.peek(region, middle, 1)? == "ab" {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err("the Write does not come".into());
        }
        // To look without a pause would be a load of its own.
        thread::sleep(Duration::from_millis(10));
    }
}

/// The victim itself is killed, and started again on the same ports.
pub(crate) fn victim_killed(_: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let mut ports = [0, 0];
    let (mut before, mut most) = (None, Usage::default());
    let (mut killed, mut slowest) = (None::<Instant>, Duration::ZERO);
    let mut told_after = Duration::ZERO;
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
        told_after = told_after.max(now.elapsed());
        killed = Some(now);
        if error.contains("in vain") {
            return Err(format!("its peer noticed nothing: {error}").into());
        }
    }
    let told = Told::new(
        format!("{} times", pace.load()),
        &format!(
            "its peer has errors for all its work after {} ms; the next process takes the same ports, and has served {:.1} s after the kill",
            told_after.as_millis(),
            slowest.as_secs_f64()
        ),
    );
    Ok(Told {
        itself: before.map(|before| (before, most)),
        ..told
    })
}
