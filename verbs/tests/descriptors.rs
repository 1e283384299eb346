//! A process without free descriptors. The limit applies to the whole process, so this is a
//! separate test binary.

use std::fs::File;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use uwarp_verbs::{Arrival, AsyncEvent, Device};

/// Time limit of every wait. Only a hang takes this long.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn a_listener_without_descriptors_says_so_once_and_serves_when_there_are_some() {
    let current = Some(64);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let device = Device::tcp().unwrap();
    let listener = device
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
        .unwrap();
    let clients: Vec<Socket> = (0..4)
        .map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
        .collect();
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    for client in &clients {
        client.connect(&listener.local_addr().into()).unwrap();
    }
    let event = device.wait_event(LIMIT).unwrap();
    let said = event.cause().to_string();
    assert!(said.contains("no more file descriptors"), "{said}");
    assert!(
        matches!(event, AsyncEvent::ListenerShort { local, .. } if local == listener.local_addr())
    );

    drop(hoard);
    drop(clients);
    let mut client = TcpStream::connect(listener.local_addr()).unwrap();
    let addr = client.local_addr().unwrap();
    client
        .write_all(b"what this is, is no MPA Request")
        .unwrap();
    while !matches!(
        listener.wait_arrival(LIMIT).unwrap(),
        Arrival::Failed { peer, .. } if peer == addr
    ) {}
    // The listener tried more than once, but raised no further event.
    assert!(device.poll_event().is_none());
}
