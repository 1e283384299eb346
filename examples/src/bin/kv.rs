//! A key-value store that clients read while the server's program sleeps.
//!
//! ```text
//!  client                                      server
//!    │ ◄── accept: "my table: address, key" ──── │  ┌────────────── slot ──────────────┐
//!    │ ◄══ Read: the slot of the key ═══════════ │  │ checksum │ version │ key │ value │
//!                                     all asleep   └──────────────────────────────────┘
//! ```
//!
//! The client finds the slot by itself (hash of the key) and fetches it with a one-sided Read. No
//! code of the server's program runs for the Read: on RDMA hardware the NIC answers, here the
//! library's progress thread does. Type `put KEY VALUE` in the server's terminal to change the
//! table.
//!
//! **Torn reads.** A Read is not atomic. While the server stores a new value, a Read may return
//! half of the old and half of the new value. A lock at the server does not help, because the
//! server does not know who reads. So each slot has a checksum. A client that finds a wrong
//! checksum reads again. A version at the front, or at each end, would not be enough: the order in
//! which bytes are read and stored is undefined. The version distinguishes two stores of the same
//! value.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use uwarp_examples::{Result, checksum, close, done, run, serve};
use uwarp_verbs::{
    AcceptOptions, Access, ConnectOptions, Device, MemoryRegion, Qp, QpCaps, RemoteBuffer, SendWr,
};

/// Bytes of a slot: checksum, version, key and value (8 + 8 + 48 + 192).
const SLOT: usize = 256;
const SLOTS: usize = 1024;

fn main() -> ExitCode {
    let about = "A key-value store that clients Read while the server sleeps.";
    run(about, "KEY,KEY,...", server, client)
}

/// Returns version, key and value of a slot, or `None` if it was torn. An empty slot has version 0.
fn parse(slot: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (sum, rest) = slot.split_first_chunk::<8>()?;
    let (version, text) = rest.split_first_chunk::<8>()?;
    let (key, value) = text.split_at_checked(48)?;
    let whole = *sum == checksum(rest).to_be_bytes() || slot.iter().all(|byte| *byte == 0);
    let version = u64::from_be_bytes(*version);
    whole.then_some((version, key.trim_ascii_end(), value.trim_ascii_end()))
}

fn emit(version: u64, key: &str, value: &str) -> Vec<u8> {
    let text = format!("{key:48}{value:192}");
    let rest = [&version.to_be_bytes(), text.as_bytes()].concat();
    [&checksum(&rest).to_be_bytes(), &rest[..]].concat()
}

/// Returns the offset of a key's slot. (If another key occupies the slot, `put` fails. Real tables
/// try another slot.)
fn place(key: &str) -> usize {
    checksum(key.as_bytes()) as usize % SLOTS * SLOT
}

fn client(server: SocketAddr, keys: Option<String>) -> Result {
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;
    let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
    let sink = pd.register(vec![0; SLOT], Access::LOCAL_WRITE)?;
    let connected = qp.connect(server, &ConnectOptions::default())?;
    let table = RemoteBuffer::from_bytes(&connected.private_data).ok_or("no table was offered")?;
    for key in keys.as_deref().unwrap_or("apple,cherry,durian").split(',') {
        match get(&qp, &sink, &table, key)? {
            Some((version, value)) => println!("{key} = {value} (version {version})"),
            None => println!("{key} not found"),
        }
    }
    close(&qp)
}

type Found = Option<(u64, String)>;
fn get(qp: &Qp, sink: &MemoryRegion, table: &RemoteBuffer, key: &str) -> Result<Found> {
    let slot = table.slice(place(key) as u64, SLOT as u64)?;
    for _ in 0..1000 {
        let read = [sink.sge(0, SLOT as u32)];
        qp.post_send(&SendWr::read(1, &read, slot))?;
        done(qp.send_cq())?;
        let mut bytes = [0; SLOT];
        sink.read_at(0, &mut bytes)?;
        match parse(&bytes) {
            Some((version, found, value)) if version > 0 && found == key.as_bytes() => {
                return Ok(Some((version, String::from_utf8_lossy(value).into())));
            }
            Some(_) => return Ok(None),
            None => {} // torn: the server is storing this slot; read again
        }
    }
    Err(format!("{key}: torn a thousand times in a row").into())
}

fn server(addr: SocketAddr) -> Result {
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    // Every client may read the table, but may not write to it.
    let table = pd.register(vec![0; SLOT * SLOTS], Access::REMOTE_READ)?;
    put(&table, "apple", "a round fruit")?;
    put(&table, "cherry", "a small red one")?;
    let options = AcceptOptions::default().private_data(table.remote().to_bytes());
    // One thread accepts connections. One more thread for each client waits until the client
    // disconnects. Reads need no thread here.
    std::thread::spawn(move || {
        serve(&device, addr, |device, request| {
            let cq = device.create_cq(1)?;
            let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
            request.accept(&qp, &options)?;
            let _ = qp.wait_closed(Duration::MAX);
            Ok(())
        })
    });
    // The main thread sleeps until a line is typed.
    for line in std::io::stdin().lines() {
        match line?.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["put", key, value] => match put(&table, key, value) {
                Ok(version) => println!("version {version} of {key}"),
                Err(error) => eprintln!("{error}"),
            },
            _ => eprintln!("usage: put KEY VALUE"),
        }
    }
    std::thread::sleep(Duration::MAX); // no more input
    Ok(())
}

fn put(table: &MemoryRegion, key: &str, value: &str) -> Result<u64> {
    if key.len() > 48 || value.len() > 192 || !key.is_ascii() || !value.is_ascii() {
        return Err("a key has up to 48 ASCII characters, a value up to 192".into());
    }
    let mut slot = [0; SLOT];
    table.read_at(place(key), &mut slot)?;
    let (version, found, _) = parse(&slot).ok_or("a slot is damaged")?;
    if version > 0 && found != key.as_bytes() {
        return Err(format!("the slot of {key} is taken by another key").into());
    }
    table.write_at(place(key), &emit(version + 1, key, value))?;
    Ok(version + 1)
}

#[cfg(test)]
#[path = "../kv_tests.rs"]
mod tests;
