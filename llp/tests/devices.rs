//! Transfers over the devices `tap`, `raw` and `unix` of a [`DeviceSpec`]. The peer is a second
//! device, or the kernel's TCP; tests with the kernel run in a network namespace of their own.

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use uwarp_llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_llp::{DeviceSpec, Llp, LlpError, Network, Recv};
use uwarp_testkit::netns::{has_tun, in_namespace, ip};

fn open(spec: &str) -> Arc<dyn Network> {
    let spec: DeviceSpec = spec.parse().unwrap();
    spec.open(None, KernelSettings::default())
        .unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn at(addr: &str) -> SocketAddr {
    addr.parse().unwrap()
}

/// Runs the scenarios between the tested network `ours`, at the address `here`, and `other`, at
/// `there`.
fn everything(ours: &dyn Network, here: &str, other: &dyn Network, there: &str) {
    let (here, there) = (at(here), at(there));
    random_data_crosses_in_random_pieces(other, ours, here, 300_000);
    random_data_crosses_in_random_pieces(ours, other, there, 300_000);
    both_directions_at_once_from_two_threads(other, ours, here, 4 << 20);
    both_directions_at_once_from_two_threads(ours, other, there, 4 << 20);
    small_messages_go_there_and_back(ours, other, there, 200);
    an_abort_is_a_reset_at_the_peer(ours, other, there);
    an_abort_is_a_reset_at_the_peer(other, ours, here);
    flushed_waits_for_the_peers_acknowledgement(ours, other, there);
    nobody_listens_is_refused(ours, SocketAddr::new(there.ip(), 9));
    nobody_listens_is_refused(other, SocketAddr::new(here.ip(), 9));
}

/// Creates a veth pair. The kernel gets addresses on `veth1`.
fn veth() {
    ip("link add veth0 type veth peer name veth1");
    ip("link set veth0 up");
    ip("link set veth1 up");
    ip("addr add 192.0.2.2/24 dev veth1");
    ip("addr add 2001:db8::2/64 dev veth1 nodad");
}

const ADDRESSES: &str = "ip=192.0.2.1/24,ip=2001:db8::1/64";

in_namespace! {
    fn tap_against_the_kernels_tcp() {
        if !has_tun("tap_against_the_kernels_tcp") {
            return;
        }
        let ours = open(&format!("tap:uw0,{ADDRESSES}"));
        assert_eq!(ours.describe(), "smoltcp over TAP uw0, MTU 1500");
        ip("addr add 192.0.2.2/24 dev uw0");
        ip("addr add 2001:db8::2/64 dev uw0 nodad");
        let kernel = KernelNetwork::default();
        everything(&*ours, "192.0.2.1:7174", &kernel, "192.0.2.2:7174");
        everything(&*ours, "[2001:db8::1]:7174", &kernel, "[2001:db8::2]:7174");
    }

    fn tap_with_large_packets() {
        if !has_tun("tap_with_large_packets") {
            return;
        }
        let ours = open("tap:uw0,ip=192.0.2.1/24,mtu=9000");
        ip("addr add 192.0.2.2/24 dev uw0");
        let kernel = KernelNetwork::default();
        let (a, _b) = connected(&*ours, &kernel, at("192.0.2.2:7174"));
        assert_eq!(a.emss(), 9000 - 40);
        both_directions_at_once_from_two_threads(&*ours, &kernel, at("192.0.2.2:7175"), 4 << 20);
    }

    fn raw_against_the_kernels_tcp() {
        veth();
        let ours = open(&format!("raw:veth0,{ADDRESSES}"));
        assert_eq!(ours.describe(), "smoltcp over raw socket on veth0, MTU 1500");
        let kernel = KernelNetwork::default();
        everything(&*ours, "192.0.2.1:7174", &kernel, "192.0.2.2:7174");
        everything(&*ours, "[2001:db8::1]:7174", &kernel, "[2001:db8::2]:7174");
    }

    fn many_connections_at_once_over_a_tap() {
        if !has_tun("many_connections_at_once_over_a_tap") {
            return;
        }
        let ours = open("tap:uw0,ip=192.0.2.1/24");
        ip("addr add 192.0.2.2/24 dev uw0");
        let kernel = KernelNetwork::default();
        let mut listener = ours.listen(at("192.0.2.1:7174"), 64).unwrap();
        // All attempts are in progress before the first connection is accepted.
        let mut clients: Vec<Box<dyn Llp>> = (0..40)
            .map(|_| kernel.connect(None, listener.local_addr()).unwrap())
            .collect();
        let mut servers = Vec::new();
        while servers.len() < clients.len() {
            listener.clear_readiness();
            match listener.try_accept().unwrap() {
                Some(server) => servers.push(server),
                None => wait(&[Wait::listener(&*listener)]),
            }
        }
        for client in &mut clients {
            while !client.connect_progress().unwrap() {
                wait(&[Wait::connection(&**client, true)]);
            }
        }
    }

    fn an_mtu_that_is_lowered_stops_no_transfer() {
        veth();
        let ours = open(&format!("raw:veth0,{ADDRESSES}"));
        let kernel = KernelNetwork::default();
        for (to, mtu) in [("192.0.2.2:7174", 1400), ("[2001:db8::2]:7174", 1300)] {
            let (a, b) = connected(&*ours, &kernel, at(to));
            ip(&format!("link set veth0 mtu {mtu}"));
            let mut a = End::new(a, vec![7; 300_000], 1);
            let mut b = End::new(b, Vec::new(), 2);
            run_both(&mut a, &mut b);
            assert_eq!(b.got.len(), 300_000);
        }
    }

    fn an_interface_that_is_deleted_while_it_is_down_ends_connections_that_send_nothing() {
        veth();
        let ours = open("raw:veth0,ip=192.0.2.1/24");
        let kernel = KernelNetwork::default();
        let (mut a, _b) = connected(&*ours, &kernel, at("192.0.2.2:7174"));
        ip("link set veth0 down");
        // The link has to notice the outage before the interface is deleted.
        std::thread::sleep(Duration::from_millis(200));
        ip("link del veth0");
        let error = ended(&mut *a);
        assert!(error.to_string().contains("was deleted"), "{error}");
    }

    fn a_deleted_interface_ends_connections_and_tells_the_network() {
        if !has_tun("a_deleted_interface_ends_connections") {
            return;
        }
        let ours = open("tap:uw0,ip=192.0.2.1/24");
        ip("addr add 192.0.2.2/24 dev uw0");
        let kernel = KernelNetwork::default();
        let (mut a, _b) = connected(&*ours, &kernel, at("192.0.2.2:7174"));
        assert_eq!(ours.fault(), None);
        ip("link del uw0");
        let error = ended(&mut *a);
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
        assert_eq!(ours.fault(), Some(error));
        let again = ours.connect(None, at("192.0.2.2:7174")).map(|_| ());
        assert_eq!(again, Err(error));
    }
}

/// Waits until a connection ends, and returns its error.
fn ended(llp: &mut dyn Llp) -> LlpError {
    let limit = Instant::now() + Duration::from_secs(300);
    loop {
        llp.clear_readiness();
        llp.drive();
        match llp.try_recv(&mut [0; 9]) {
            Ok(Recv::WouldBlock) => wait(&[Wait::connection(llp, false)]),
            Ok(other) => panic!("{other:?}"),
            Err(error) => return error,
        }
        assert!(Instant::now() < limit, "the connection does not end");
    }
}

/// A directory for two socket paths. Dropping the value removes the directory.
struct Paths(PathBuf);

impl Paths {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("uwarp-devices-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Returns the device specification of one end.
    fn spec(&self, local: &str, remote: &str, keys: &str) -> String {
        let path = self.0.display();
        format!("unix:{path}/{local},{path}/{remote},{keys}")
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn unix_datagrams_between_two_of_us() {
    let paths = Paths::new("two");
    let one = open(&paths.spec("a", "b", ADDRESSES));
    let other = open(&paths.spec("b", "a", "ip=192.0.2.2/24,ip=2001:db8::2/64"));
    everything(&*one, "192.0.2.1:7174", &*other, "192.0.2.2:7174");
    everything(&*one, "[2001:db8::1]:7174", &*other, "[2001:db8::2]:7174");
    drop((one, other));
    let left: Vec<_> = std::fs::read_dir(&paths.0).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_device_with_early_recovery_loses_nothing() {
    let paths = Paths::new("early");
    let keys = "recovery=early,loss=0.01,seed=5";
    let one = open(&paths.spec("a", "b", &format!("ip=192.0.2.1,{keys}")));
    let other = open(&paths.spec("b", "a", &format!("ip=192.0.2.2,{keys}")));
    both_directions_at_once_from_two_threads(&*one, &*other, at("192.0.2.2:7174"), 4 << 20);
}

#[test]
fn unix_datagrams_with_the_largest_packets() {
    let paths = Paths::new("large");
    let one = open(&paths.spec("a", "b", "ip=192.0.2.1,mtu=65521,congestion=none"));
    let other = open(&paths.spec("b", "a", "ip=192.0.2.2,mtu=65521,congestion=none"));
    let (a, _b) = connected(&*one, &*other, at("192.0.2.2:7174"));
    assert_eq!(a.emss(), 65521 - 40);
    random_data_crosses_in_random_pieces(&*one, &*other, at("192.0.2.2:7175"), 1 << 20);
}
