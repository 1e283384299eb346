//! Attacks of peers that have a connection: messages that are wrong, too many, or answered in vain.

use std::io::Read;
use std::thread;
use std::time::Duration;

use uwarp_mpa::crc32c;

use crate::Result;
use crate::attacks::{Pace, Told, many};
use crate::raw::{Peer, reset};
use crate::scene::Scene;

pub(crate) fn terminate_storm(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    for _ in &mut *pace {
        let mut peer = Peer::connect(scene.listener)?;
        for number in 1..=100 {
            peer.terminate(number)?;
        }
        // The victim closes after the first one, so the rest may find nobody.
        let _ = peer.flush();
        let came = peer.drain()?;
        if came > 0 {
            return Err(format!("a Terminate was answered with {came} octets").into());
        }
    }
    let load = pace.told();
    scene.newcomer()?;
    Ok(Told::new(
        load,
        "the first one ends the connection, without an answer; the others are not looked at",
    ))
}

pub(crate) fn reads_of_4_gib(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    for _ in &mut *pace {
        let mut peer = Peer::connect(scene.listener)?;
        peer.read(u32::MAX, scene.region.rkey, scene.region.addr)?;
        peer.flush()?;
        let came = peer.drain()?;
        // A Terminate, and nothing of the region.
        if !(1..200).contains(&came) {
            return Err(format!("a Read of 4 GiB was answered with {came} octets").into());
        }
    }
    let load = pace.told();
    scene.newcomer()?;
    Ok(Told::new(
        load,
        "a Terminate each (base or bounds), no octet is read",
    ))
}

pub(crate) fn reads_without_reading(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let mut peers = Vec::new();
    for _ in &mut *pace {
        let mut peer = Peer::connect(scene.listener)?;
        for _ in 0..16 {
            let region = scene.region;
            peer.read(u32::try_from(region.len)?, region.rkey, region.addr)?;
        }
        peer.flush()?;
        peers.push(peer);
    }
    scene.newcomer()?;
    // As long as they stall, nothing more is made for them.
    thread::sleep(Duration::from_secs(2));
    let memory = scene.victim.usage()?.memory;
    thread::sleep(Duration::from_secs(1));
    let grown = scene.victim.usage()?.memory.saturating_sub(memory);
    if grown > 8 << 20 {
        return Err(
            format!("the memory of the stalled answers still grows: {grown} octets more").into(),
        );
    }
    for peer in peers {
        reset(peer.stream)?;
    }
    Ok(Told::new(
        format!("{} connections", many(pace.load())),
        "one batch of answers waits for each; the rest is read from memory when they take it",
    ))
}

pub(crate) fn stag_guessing(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    /// On each connection; the first one ends it.
    const EACH: usize = 50;
    let before = scene.canary()?;
    let mut peer = None;
    for number in &mut *pace {
        let mut guessing = match peer.take() {
            Some(peer) => peer,
            None => Peer::connect(scene.listener)?,
        };
        // No two are alike, and none is near another.
        let stag = crc32c(&(number as u64).to_be_bytes());
        guessing.write(true, stag, scene.region.addr, &[0xEE; 8])?;
        if number % EACH < EACH - 1 {
            peer = Some(guessing);
        } else {
            let _ = guessing.flush();
            guessing.drain()?;
        }
    }
    if scene.canary()? != before {
        return Err("a guess has changed memory of the application".into());
    }
    let load = pace.told();
    scene.newcomer()?;
    Ok(Told::new(
        format!("{load}; {EACH} on each connection"),
        "the first one ends its connection, and the others behind it are not looked at; no octet changed",
    ))
}

pub(crate) fn zero_length_flood(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let half = pace.load() / 2;
    let mut peer = Peer::connect(scene.listener)?;
    for number in &mut *pace {
        // Nobody looks at STag and TO of no octets (RFC 5041 section 5.2).
        peer.write(true, number as u32, number as u64, &[])?;
        if peer.staged() > 65_000 {
            peer.flush()?;
        }
        if number == half {
            scene.newcomer()?;
        }
    }
    // The answer to a Read of no octets says that all of it was taken in.
    peer.read(0, 0, 0)?;
    peer.flush()?;
    let mut answer = [0; 20];
    peer.stream.read_exact(&mut answer)?;
    // Tagged and last, RDMA Read Response (RFC 5041 section 4.1, RFC 5040 section 4.1).
    if answer[2..4] != [0xC1, 0x42] {
        return Err(format!("not a Read Response: {answer:02x?}").into());
    }
    let load = pace.told();
    reset(peer.stream)?;
    Ok(Told::new(load, "legal; all of them are taken"))
}
