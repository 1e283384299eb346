//! Attacks before a connection is established: TCP accept and MPA startup.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::{AttackOutcome, Pace, many};
use crate::raw::{ATTACKER, Peer, drain, initiator, reset, tcp, tcp_from};
use crate::scene::Scene;
use crate::{PATIENCE, Result};

/// Default maximum number of connections in startup from one address.
const OF_ONE_ADDRESS: u64 = 1_024;
/// Default maximum number of connections in startup at one listener.
const OF_A_LISTENER: u64 = 4_096;

/// Maximum growth of the memory, in bytes, during the second half of many connections. A leak of 64
/// bytes for each of 50,000 connections exceeds it.
const ONCE_MORE: u64 = 2 << 20;

/// Opens a connection. Returns `None` if the victim has already reset it.
fn open(from: Ipv4Addr, to: SocketAddr) -> io::Result<Option<TcpStream>> {
    match tcp_from(from, to) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        other => other.map(Some),
    }
}

/// Checks whether the other side has closed or reset the connection. Discards up to 64 bytes.
pub(crate) fn poll_closed(stream: &mut TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let closed = match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false)?;
    Ok(closed)
}

/// Waits until the victim has closed all these connections. Returns the time that this took.
fn wait_all_closed(mut streams: Vec<TcpStream>) -> Result<Duration> {
    let start = Instant::now();
    while !streams.is_empty() {
        let mut open = Vec::new();
        for mut stream in streams {
            if !poll_closed(&mut stream)? {
                open.push(stream);
            }
        }
        streams = open;
        if start.elapsed() > PATIENCE {
            return Err(format!("{} connections are still open", streams.len()).into());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(start.elapsed())
}

pub(crate) fn half_open(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let before = scene.victim.usage()?.descriptors;
    let mut streams = Vec::new();
    for _ in &mut *pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let load = pace.summary();
    scene.newcomer()?;
    let held = scene.victim.usage()?.descriptors.saturating_sub(before);
    if held > OF_ONE_ADDRESS + 64 {
        return Err(format!("one address holds {held} descriptors of the victim").into());
    }
    let after = wait_all_closed(streams)?.as_secs_f64();
    Ok(AttackOutcome::new(
        load,
        &format!(
            "connections beyond the limit of one address (1,024) are reset at once; {after:.1} s after the attack the last one is closed (limit: 5 s)"
        ),
    ))
}

pub(crate) fn half_open_from_many_addresses(
    scene: &mut Scene,
    pace: &mut Pace,
) -> Result<AttackOutcome> {
    let before = scene.victim.usage()?.descriptors;
    let mut streams = Vec::new();
    for number in &mut *pace {
        let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 8)?);
        streams.extend(open(from, scene.listener)?);
    }
    let load = pace.summary();
    scene.newcomer_at(scene.elsewhere)?;
    scene.newcomer()?;
    let held = scene.victim.usage()?.descriptors.saturating_sub(before);
    if held > OF_A_LISTENER + 64 {
        return Err(format!("{held} descriptors are held at one listener").into());
    }
    let after = wait_all_closed(streams)?.as_secs_f64();
    Ok(AttackOutcome::new(
        load,
        &format!(
            "when all places of the listener (4,096) are taken, each new connection resets the oldest, so honest peers are served at \
             once; {after:.1} s after the attack the last one is closed (limit: 5 s)"
        ),
    ))
}

pub(crate) fn accepted_and_silent(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let before = scene.victim.usage()?;
    let mut peers = Vec::new();
    for _ in &mut *pace {
        peers.push(Peer::connect(scene.listener)?);
    }
    let load = pace.summary();
    scene.newcomer()?;
    let during = scene.victim.usage()?;
    let held = during.descriptors.saturating_sub(before.descriptors);
    // Up to 8 connections, for example a visitor's, may have ended meanwhile.
    if held + 8 < pace.load() as u64 {
        return Err(format!(
            "the victim holds {held} connections, of {} accepted",
            pace.load()
        )
        .into());
    }
    let each = during.memory.saturating_sub(before.memory) / pace.load() as u64;
    for mut peer in peers {
        if poll_closed(&mut peer.stream)? {
            return Err("the victim closed an accepted connection".into());
        }
        reset(peer.stream)?;
    }
    Ok(AttackOutcome::new(
        load,
        &format!(
            "legal: all stay, with {:.1} KiB of memory each, until they are reset (limits: 1,024 for one application of the agent, 32,768 for one address)",
            each as f64 / 1024.0
        ),
    ))
}

pub(crate) fn out_of_descriptors(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let mut streams = Vec::new();
    for _ in &mut *pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let deadline = Instant::now() + PATIENCE;
    while scene.victim.said().is_empty() {
        if Instant::now() > deadline {
            return Err("the victim does not report that it has no descriptors left".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let load = pace.summary();
    // The victim retries twenty times a second, but must report the shortage only once.
    scene.honest.wait_round()?;
    thread::sleep(Duration::from_millis(200));
    let said = scene.victim.said();
    if said.lines().count() != 1 || !said.contains("descriptors") {
        return Err(format!("the victim printed something else:\n{said}").into());
    }
    drop(streams);
    Ok(AttackOutcome::new(
        load,
        "reported once; one connection is closed every 50 ms, the others wait in TCP. Established connections continue, and new \
         ones are served when descriptors are free again",
    ))
}

pub(crate) fn slow_startup(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let load = pace.load();
    let mut streams = Vec::new();
    for _ in pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let mut sent = 0;
    for byte in initiator()?.request() {
        let mut open = Vec::new();
        for mut stream in streams {
            // A write after the victim's close fails, which is the expected end.
            if !poll_closed(&mut stream)? && stream.write_all(&[*byte]).is_ok() {
                open.push(stream);
            }
        }
        streams = open;
        if streams.is_empty() {
            break;
        }
        sent += 1;
        thread::sleep(Duration::from_secs(1));
    }
    if !streams.is_empty() {
        return Err(format!(
            "the victim accepted {} slow startups to their end",
            streams.len()
        )
        .into());
    }
    Ok(AttackOutcome::new(
        format!("{} at once", many(load)),
        &format!(
            "closed before byte {} (limit: 5 s for the whole startup, not for each byte)",
            sent + 1
        ),
    ))
}

pub(crate) fn oversized_private_data(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let load = pace.load();
    for number in &mut *pace {
        let mut stream = tcp(scene.listener)?;
        let mut request = initiator()?.request()[..20].to_vec();
        let len = u16::try_from(513 + number * 65_022 / load)?;
        request[18..20].copy_from_slice(&len.to_be_bytes());
        request.resize(20 + usize::from(len), 0x55);
        // The victim may close before it has received all bytes.
        let _ = stream.write_all(&request);
        drain(&mut stream)?;
    }
    Ok(AttackOutcome::new(
        pace.summary(),
        "closed as soon as the length has arrived",
    ))
}

pub(crate) fn connect_and_reset(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    let half = pace.load() / 2;
    let mut first = 0;
    for number in &mut *pace {
        if number == half {
            first = scene.victim.usage()?.memory;
        }
        if let Some(stream) = open(ATTACKER, scene.listener)? {
            reset(stream)?;
        }
    }
    let load = pace.summary();
    let added = scene.victim.usage()?.memory.saturating_sub(first);
    if added > ONCE_MORE {
        return Err(format!("the second half adds {added} bytes of memory").into());
    }
    Ok(AttackOutcome::new(
        load,
        &format!(
            "nothing remains; the second half adds {} KiB of memory",
            added >> 10
        ),
    ))
}
