//! Attacks of peers that have a connection: messages that are wrong, too many, or answered in vain.

use std::thread;
use std::time::Duration;

use uwarp_mpa::crc32c;

use crate::Result;
use crate::attacks::{Pace, Told, many};
use crate::raw::{Peer, reset};
use crate::scene::Scene;

/// DDP, tagged buffer error.
const INVALID_STAG: [u8; 3] = [1, 1, 0x00];
/// RDMAP, remote protection error.
const BASE_OR_BOUNDS: [u8; 3] = [0, 1, 0x01];

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
            return Err(format!("a Terminate was answered with {came} bytes").into());
        }
    }
    Ok(Told::new(
        pace.told(),
        "the first one ends the connection, without an answer; the others are not looked at",
    ))
}

pub(crate) fn reads_of_4_gib(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    for _ in &mut *pace {
        let mut peer = Peer::connect(scene.listener)?;
        peer.read(u32::MAX, scene.region.rkey, scene.region.addr)?;
        peer.flush()?;
        peer.is_terminated(BASE_OR_BOUNDS)?;
    }
    Ok(Told::new(
        pace.told(),
        "a Terminate each (base or bounds), no byte is read",
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
            format!("the memory of the stalled answers still grows: {grown} bytes more").into(),
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
    let before = scene.canary()?;
    for number in &mut *pace {
        // No two are alike, and none is near another.
        let guess = crc32c(&(number as u64).to_be_bytes());
        if scene.stags().contains(&guess) {
            continue;
        }
        // It ends the connection, so each has one of its own; what comes behind it may be as right as it likes.
        let mut guessing = Peer::connect(scene.listener)?;
        for stag in [guess, scene.region.rkey] {
            guessing.write(true, stag, scene.region.addr, &[0xEE; 8])?;
        }
        guessing.flush()?;
        guessing.is_terminated(INVALID_STAG)?;
    }
    if scene.canary()? != before {
        return Err("a guess has changed memory of the application".into());
    }
    let load = pace.told();
    right_guess(scene, before)?;
    Ok(Told::new(
        format!("{load}, each on a connection of its own"),
        "each ends its connection with a Terminate (invalid STag); a Write with the right STag right behind it is not looked at; no byte \
         changed. (On a new connection that Write changes them.)",
    ))
}

/// What a right guess would do, so that it would have been noticed.
fn right_guess(scene: &mut Scene, before: u64) -> Result<()> {
    let mut peer = Peer::connect(scene.listener)?;
    peer.write(true, scene.region.rkey, scene.region.addr, &[0xEE; 8])?;
    peer.is_taken()?;
    if scene.canary()? == before {
        return Err("not even the right STag changes memory".into());
    }
    scene.fill()?;
    reset(peer.stream)?;
    Ok(())
}

pub(crate) fn zero_length_flood(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    // A Send takes a receive, and `rping -s` has posted some.
    let mut writer = Peer::connect(scene.listener)?;
    let mut sender = Peer::connect(scene.victim.rdma)?;
    for number in &mut *pace {
        let peer = if number % 2 == 0 {
            // Nobody looks at STag and TO of no bytes (RFC 5041 section 5.2).
            writer.write(true, number as u32, number as u64, &[])?;
            &mut writer
        } else {
            sender.nothing_of_a_send()?;
            &mut sender
        };
        if peer.staged() > 65_000 {
            peer.flush()?;
        }
    }
    for peer in [&mut writer, &mut sender] {
        peer.is_taken()?;
    }
    let load = pace.told();
    for peer in [writer, sender] {
        reset(peer.stream)?;
    }
    Ok(Told::new(load, "legal; all of them are taken"))
}
