//! Attacks on what stands before a connection: TCP's accept, and MPA's startup.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::attacks::{Pace, Told, many};
use crate::raw::{ATTACKER, Peer, drain, initiator, reset, tcp, tcp_from};
use crate::scene::Scene;
use crate::{PATIENCE, Result};

/// How many connections one address may have in startup, unless the settings say otherwise.
const OF_ONE_ADDRESS: u64 = 2_048;
/// How many a listener may have.
const OF_A_LISTENER: u64 = 4_096;

/// The most memory that the second half of many connections may add to the first one: a leak of 64 bytes for each of 50,000
/// is more.
const ONCE_MORE: u64 = 2 << 20;

/// A connection, or none where the victim has reset it already.
fn open(from: Ipv4Addr, to: SocketAddr) -> io::Result<Option<TcpStream>> {
    match tcp_from(from, to) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(None),
        other => other.map(Some),
    }
}

/// Whether the other side has closed or reset it.
fn is_closed(stream: &mut TcpStream) -> io::Result<bool> {
    stream.set_nonblocking(true)?;
    let closed = match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    stream.set_nonblocking(false)?;
    Ok(closed)
}

/// Waits until the victim has closed all of them; how long that took.
fn all_closed(mut streams: Vec<TcpStream>) -> Result<Duration> {
    let start = Instant::now();
    while !streams.is_empty() {
        let mut open = Vec::new();
        for mut stream in streams {
            if !is_closed(&mut stream)? {
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

pub(crate) fn half_open(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let before = scene.victim.usage()?.descriptors;
    let mut streams = Vec::new();
    for _ in &mut *pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let load = pace.told();
    scene.newcomer()?;
    let held = scene.victim.usage()?.descriptors.saturating_sub(before);
    if held > OF_ONE_ADDRESS + 64 {
        return Err(format!("one address holds {held} descriptors of the victim").into());
    }
    let after = all_closed(streams)?.as_secs_f64();
    Ok(Told::new(
        load,
        &format!(
            "those beyond the limit of their address (2,048) are reset at once; {after:.1} s after the attack the last one is closed (limit: 5 s)"
        ),
    ))
}

pub(crate) fn half_open_from_many_addresses(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let before = scene.victim.usage()?.descriptors;
    let mut streams = Vec::new();
    for number in &mut *pace {
        let from = Ipv4Addr::new(127, 0, 1, u8::try_from(number % 8)?);
        streams.extend(open(from, scene.listener)?);
    }
    let load = pace.told();
    scene.newcomer_at(scene.elsewhere)?;
    scene.newcomer()?;
    let held = scene.victim.usage()?.descriptors.saturating_sub(before);
    if held > OF_A_LISTENER + 64 {
        return Err(format!("{held} descriptors are held at one listener").into());
    }
    let after = all_closed(streams)?.as_secs_f64();
    Ok(Told::new(
        load,
        &format!(
            "when all places of the listener (4,096) are taken, the oldest is reset for each that comes, so honest peers are served at \
             once; {after:.1} s after the attack the last one is closed (limit: 5 s)"
        ),
    ))
}

pub(crate) fn accepted_and_silent(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let before = scene.victim.usage()?;
    let mut peers = Vec::new();
    for _ in &mut *pace {
        peers.push(Peer::connect(scene.listener)?);
    }
    let load = pace.told();
    scene.newcomer()?;
    let during = scene.victim.usage()?;
    let held = during.descriptors.saturating_sub(before.descriptors);
    // A visitor may have gone meanwhile.
    if held + 8 < pace.load() as u64 {
        return Err(format!("{held} connections are held, of {} accepted", pace.load()).into());
    }
    let each = during.memory.saturating_sub(before.memory) / pace.load() as u64;
    for mut peer in peers {
        if is_closed(&mut peer.stream)? {
            return Err("a connection that was accepted did not stay".into());
        }
        reset(peer.stream)?;
    }
    Ok(Told::new(
        load,
        &format!(
            "legal: all stay, {:.1} KiB of memory each, until they are reset (the agent takes 1,024 of one application, uwarp 32,768 of one address)",
            each as f64 / 1024.0
        ),
    ))
}

pub(crate) fn out_of_descriptors(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let mut streams = Vec::new();
    for _ in &mut *pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let deadline = Instant::now() + PATIENCE;
    while scene.victim.said().is_empty() {
        if Instant::now() > deadline {
            return Err("the victim does not say that it has no more descriptors".into());
        }
        thread::sleep(Duration::from_millis(10));
    }
    let load = pace.told();
    // It tries twenty times a second, and says so once.
    scene.honest.goes_on()?;
    thread::sleep(Duration::from_millis(200));
    let said = scene.victim.said();
    if said.lines().count() != 1 || !said.contains("descriptors") {
        return Err(format!("the victim says more or other than that once:\n{said}").into());
    }
    drop(streams);
    scene.newcomer()?;
    Ok(Told::new(
        load,
        "told once; one is closed every 50 ms, the others wait in TCP. Connections that stand go on, and new ones are served when \
         there are descriptors again",
    ))
}

pub(crate) fn slow_startup(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let load = pace.load();
    let mut streams = Vec::new();
    for _ in pace {
        streams.extend(open(ATTACKER, scene.listener)?);
    }
    let mut sent = 0;
    for octet in initiator()?.request() {
        let mut open = Vec::new();
        for mut stream in streams {
            // A write after the victim's end fails, which is what is waited for.
            if !is_closed(&mut stream)? && stream.write_all(&[*octet]).is_ok() {
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
        return Err(format!("{} slow startups were waited for to the end", streams.len()).into());
    }
    Ok(Told::new(
        format!("{} at once", many(load)),
        &format!(
            "closed before byte {} (limit: 5 s, of the whole startup, not of each byte)",
            sent + 1
        ),
    ))
}

pub(crate) fn oversized_private_data(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    let load = pace.load();
    for number in &mut *pace {
        let mut stream = tcp(scene.listener)?;
        let mut request = initiator()?.request()[..20].to_vec();
        let len = u16::try_from(513 + number * 65_022 / load)?;
        request[18..20].copy_from_slice(&len.to_be_bytes());
        request.resize(20 + usize::from(len), 0x55);
        // The victim need not wait for all of it.
        let _ = stream.write_all(&request);
        drain(&mut stream)?;
    }
    Ok(Told::new(
        pace.told(),
        "closed as soon as the length is there",
    ))
}

pub(crate) fn connect_and_reset(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
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
    let load = pace.told();
    let added = scene.victim.usage()?.memory.saturating_sub(first);
    if added > ONCE_MORE {
        return Err(format!("the second half of it adds {added} bytes of memory").into());
    }
    Ok(Told::new(
        load,
        &format!(
            "forgotten; the second half adds {} KiB of memory",
            added >> 10
        ),
    ))
}
