//! Local addresses: the source address of a route, and ports that are reserved before use.

use std::net::{IpAddr, SocketAddr};

use uwarp_llp::kernel::KernelNetwork;
use uwarp_llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, LlpError, LlpListener, Network};

/// Two connected networks, and an address of the second one in each family.
type Pair = (Box<dyn Network>, Box<dyn Network>, [IpAddr; 2]);

fn networks() -> Vec<Pair> {
    let (first, second) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let addrs = |v4: &str, v6: &str| [v4.parse().unwrap(), v6.parse().unwrap()];
    vec![
        (
            Box::new(KernelNetwork::default()),
            Box::new(KernelNetwork::default()),
            addrs("127.0.0.1", "::1"),
        ),
        (
            Box::new(first),
            Box::new(second),
            addrs("192.0.2.2", "2001:db8::2"),
        ),
    ]
}

fn accept(listener: &mut dyn LlpListener, client: &mut dyn Llp) -> Box<dyn Llp> {
    loop {
        client.drive();
        if let Some(accepted) = listener.try_accept().unwrap() {
            return accepted;
        }
    }
}

#[test]
fn a_reserved_port_is_kept_and_used() {
    for (first, second, addrs) in networks() {
        for addr in addrs {
            let at = SocketAddr::new(addr, 0);
            let port = second.reserve(at).unwrap();
            let local = port.local_addr();
            assert_ne!(local.port(), 0);
            let again = second.reserve(local).err();
            assert!(
                matches!(again, Some(LlpError::AddressInUse { .. })),
                "{again:?}"
            );
            let mut listener = port.listen(8).unwrap();
            assert_eq!(listener.local_addr(), local);

            let source = SocketAddr::new(first.source_for(local).unwrap(), 0);
            let port = first.reserve(source).unwrap();
            let from = port.local_addr();
            let mut client = port.connect(local).unwrap();
            assert_eq!(client.local_addr(), from);
            let server = accept(&mut *listener, &mut *client);
            assert_eq!(server.peer_addr(), from);
        }
    }
}

#[test]
fn a_reserved_port_that_is_dropped_is_free_again() {
    for (_, second, addrs) in networks() {
        let port = second.reserve(SocketAddr::new(addrs[0], 0)).unwrap();
        let local = port.local_addr();
        drop(port);
        drop(second.reserve(local).unwrap().listen(1).unwrap());
        drop(second.listen(local, 1).unwrap());
    }
}

#[test]
fn nobody_is_served_at_a_port_that_is_only_reserved() {
    for (first, second, addrs) in networks() {
        let port = second.reserve(SocketAddr::new(addrs[0], 0)).unwrap();
        let error = match first.connect(None, port.local_addr()) {
            Err(error) => error,
            Ok(mut client) => loop {
                client.drive();
                match client.connect_progress() {
                    Ok(done) => assert!(!done),
                    Err(error) => break error,
                }
            },
        };
        assert!(matches!(error, LlpError::Refused { .. }), "{error}");
    }
}

#[test]
fn the_source_address_is_of_the_family_of_the_destination() {
    for (first, _, addrs) in networks() {
        for addr in addrs {
            let source = first.source_for(SocketAddr::new(addr, 0)).unwrap();
            assert_eq!(source.is_ipv4(), addr.is_ipv4());
            assert!(!source.is_unspecified());
        }
    }
    let (first, ..) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let nowhere = "203.0.113.1:1".parse().unwrap();
    let error = first.source_for(nowhere).unwrap_err();
    assert!(matches!(error, LlpError::Unreachable { .. }), "{error}");
}
