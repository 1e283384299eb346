//! A listener in a process without free descriptors. The limit applies to the whole process, so
//! this test has a binary of its own.

mod common;

use std::fs::File;
use std::net::SocketAddr;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uwarp_llp::kernel::KernelNetwork;
use uwarp_llp::{LlpError, Network};

#[test]
fn a_listener_without_descriptors_refuses_one_connection_and_lives_on() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(64),
            maximum: limit.maximum,
        },
    )
    .unwrap();
    let network = KernelNetwork::default();
    let mut listener = network
        .listen(SocketAddr::from(([127, 0, 0, 1], 0)), 8)
        .unwrap();
    let mut client = network.connect(None, listener.local_addr()).unwrap();
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    let error = loop {
        match listener.try_accept() {
            Ok(None) => wait(&[Wait::listener(&*listener)]),
            Ok(Some(_)) => panic!("there is no descriptor for it"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LlpError::Exhausted { .. }), "{error}");
    assert!(error.to_string().contains("file descriptors"), "{error}");
    assert!(
        matches!(listener.try_accept(), Ok(None)),
        "the waiting connection is gone"
    );
    drop(hoard);
    while client
        .try_recv(&mut [0; 1])
        .is_ok_and(|got| got == uwarp_llp::Recv::WouldBlock)
    {
        wait(&[Wait::connection(&*client, false)]);
    }
    let mut again = network.connect(None, listener.local_addr()).unwrap();
    accept_and_connect(&mut *listener, &mut *again);
}
