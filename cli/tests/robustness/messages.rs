//! Attacks over an established connection: wrong messages, too many messages, and messages whose
//! responses are never read.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use uwarp_mpa::crc32c;

use crate::Result;
use crate::attacks::{AttackOutcome, Pace, many};
use crate::raw::{ATTACKER, Peer, reset, tcp_from};
use crate::scene::Scene;

/// Terminate of DDP: tagged buffer error, invalid STag.
const INVALID_STAG: [u8; 3] = [1, 1, 0x00];
/// Terminate of RDMAP: remote protection error, base or bounds violation.
const BASE_OR_BOUNDS: [u8; 3] = [0, 1, 0x01];

pub(crate) fn terminate_storm(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    for _ in &mut *pace {
        let mut peer = Peer::connect(scene.listener)?;
        for number in 1..=100 {
            peer.terminate(number)?;
        }
        // The victim closes after the first Terminate Message, so sending the rest may fail.
        let _ = peer.flush();
        let came = peer.drain()?;
        if came > 0 {
            return Err(format!("a Terminate was answered with {came} bytes").into());
        }
    }
    Ok(AttackOutcome::new(
        pace.summary(),
        "the first one ends the connection, without an answer; the others are ignored",
    ))
}

/// Returns an address for the next connection of an attack whose accesses are refused.
///
/// The victim delays an address after 4,096 refusals (`max_stag_errors`), so each address makes
/// 2,000, whatever the number of rounds.
fn refused_source() -> Ipv4Addr {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let number = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = (number / 2_000).to_be_bytes();
    Ipv4Addr::new(127, 2, high, low)
}

pub(crate) fn reads_of_4_gib(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    for _ in &mut *pace {
        let mut peer = Peer::connect_from(refused_source(), scene.listener)?;
        peer.read(u32::MAX, scene.region.rkey, scene.region.addr)?;
        peer.flush()?;
        peer.expect_terminate(BASE_OR_BOUNDS)?;
    }
    Ok(AttackOutcome::new(
        pace.summary(),
        "a Terminate for each (base or bounds); no byte is read",
    ))
}

/// Connects from this address, and requests the region sixteen times.
fn reading_nothing(scene: &Scene, from: Ipv4Addr) -> Result<Peer> {
    let mut peer = Peer::connect_from(from, scene.listener)?;
    for _ in 0..16 {
        let region = scene.region;
        peer.read(u32::try_from(region.len)?, region.rkey, region.addr)?;
    }
    peer.flush()?;
    Ok(peer)
}

/// Connects from this address, and sends an FPDU without its last byte.
fn with_unfinished_fpdu(scene: &Scene, from: Ipv4Addr) -> Result<Peer> {
    let mut peer = Peer::connect_from(from, scene.listener)?;
    peer.write(true, scene.region.rkey, scene.region.addr, &[0xEE; 60_000])?;
    peer.flush_but_one()?;
    Ok(peer)
}

pub(crate) fn unfinished_fpdus(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let mut peers = Vec::new();
    for number in &mut *pace {
        let from = Ipv4Addr::new(127, 4, 0, if number % 2 == 0 { 1 } else { 2 });
        peers.push(with_unfinished_fpdu(scene, from)?);
    }
    let load = pace.summary();
    scene.newcomer()?;
    for peer in peers {
        reset(peer.stream)?;
    }
    Ok(AttackOutcome::new(
        load,
        "what has arrived is kept until the limit of its address; honest peers are served at once",
    ))
}

pub(crate) fn all_together(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let from = |host| Ipv4Addr::new(127, 5, 0, host);
    let (mut silent, mut peers) = (Vec::new(), Vec::new());
    for number in &mut *pace {
        match number % 4 {
            0 => silent.push(tcp_from(from(1), scene.listener)?),
            1 => peers.push(Peer::connect_from(from(2), scene.listener)?),
            2 => peers.push(reading_nothing(scene, from(3))?),
            _ => peers.push(with_unfinished_fpdu(scene, from(4))?),
        }
    }
    let load = pace.summary();
    scene.newcomer()?;
    for stream in silent
        .into_iter()
        .chain(peers.into_iter().map(|peer| peer.stream))
    {
        reset(stream)?;
    }
    Ok(AttackOutcome::new(
        load,
        "each stays within the limits of its address; honest peers are served at once",
    ))
}

pub(crate) fn reads_without_reading(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let mut peers = Vec::new();
    for _ in &mut *pace {
        peers.push(reading_nothing(scene, ATTACKER)?);
    }
    scene.newcomer()?;
    // While the connections stall, the victim must not generate more responses for them.
    thread::sleep(Duration::from_secs(2));
    let memory = scene.victim.usage()?.memory;
    thread::sleep(Duration::from_secs(1));
    let grown = scene.victim.usage()?.memory.saturating_sub(memory);
    if grown > 8 << 20 {
        return Err(
            format!("the memory of the stalled responses still grows: {grown} bytes more").into(),
        );
    }
    for peer in peers {
        reset(peer.stream)?;
    }
    Ok(AttackOutcome::new(
        format!("{} connections", many(pace.load())),
        "one batch of responses waits for each; the rest is generated when the peer reads",
    ))
}

pub(crate) fn stag_guessing(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let before = scene.canary()?;
    for number in &mut *pace {
        // All guesses differ, and consecutive guesses are not close to each other.
        let guess = crc32c(&(number as u64).to_be_bytes());
        if scene.stags().contains(&guess) {
            continue;
        }
        // A wrong guess ends its connection, so each guess has its own connection. The second
        // message on the same connection has the right STag and must be ignored.
        let mut guessing = Peer::connect_from(refused_source(), scene.listener)?;
        for stag in [guess, scene.region.rkey] {
            guessing.write(true, stag, scene.region.addr, &[0xEE; 8])?;
        }
        guessing.flush()?;
        guessing.expect_terminate(INVALID_STAG)?;
    }
    if scene.canary()? != before {
        return Err("a guess has changed memory of the application".into());
    }
    let load = pace.summary();
    check_right_guess(scene, before)?;
    Ok(AttackOutcome::new(
        format!("{load}, each on its own connection"),
        "each ends its connection with a Terminate (invalid STag); a Write with the right STag after it is ignored; no byte \
         changed. (On a new connection that Write changes them.)",
    ))
}

/// Checks that the attack would have noticed a right guess.
fn check_right_guess(scene: &mut Scene, before: u64) -> Result<()> {
    let mut peer = Peer::connect(scene.listener)?;
    peer.write(true, scene.region.rkey, scene.region.addr, &[0xEE; 8])?;
    peer.expect_delivery()?;
    if scene.canary()? == before {
        return Err("a Write with the right STag does not change memory".into());
    }
    scene.fill()?;
    reset(peer.stream)?;
    Ok(())
}

pub(crate) fn zero_length_flood(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    // A Send needs a posted receive, and `rping -s` has posted some.
    let mut writer = Peer::connect(scene.listener)?;
    let mut sender = Peer::connect(scene.victim.rdma)?;
    for number in &mut *pace {
        if number % 100_000 == 99_999 {
            // `rping -s` disconnects a client that begins no ping in its time limit.
            sender.expect_delivery()?;
            reset(std::mem::replace(&mut sender, Peer::connect(scene.victim.rdma)?).stream)?;
        }
        let peer = if number % 2 == 0 {
            // STag and TO of an empty message are not checked (RFC 5041 section 5.2).
            writer.write(true, number as u32, number as u64, &[])?;
            &mut writer
        } else {
            sender.empty_send_segment()?;
            &mut sender
        };
        if peer.staged() > 65_000 {
            peer.flush()?;
        }
    }
    for peer in [&mut writer, &mut sender] {
        peer.expect_delivery()?;
    }
    let load = pace.summary();
    for peer in [writer, sender] {
        reset(peer.stream)?;
    }
    Ok(AttackOutcome::new(load, "legal; all of them are accepted"))
}
