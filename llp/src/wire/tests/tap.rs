//! A TAP device, with the kernel at the other end.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use uwarp_testkit::netns::{has_tun, in_namespace, ip, ip_succeeds};

use super::frames::*;
use crate::wire::tap::TapWire;
use crate::wire::{AttachError, InterfaceName, MAX_MTU, OpenError, Wire};
use crate::{LlpError, wire::random_mac};

const FOREVER: Duration = Duration::from_secs(1 << 30);

fn uw0() -> InterfaceName {
    "uw0".parse().unwrap()
}

fn open() -> TapWire {
    open_with(None, None).unwrap()
}

fn open_with(mac: Option<[u8; 6]>, mtu: Option<usize>) -> Result<TapWire, OpenError> {
    TapWire::open(uw0(), mac, mtu, &[(IpAddr::V4(US), 24)], false)
}

#[track_caller]
fn refused(result: Result<TapWire, OpenError>) -> AttachError {
    match result.map(|wire| wire.describe()) {
        Err(OpenError::Attach(why)) => why,
        other => panic!("{other:?}"),
    }
}

in_namespace! {
    fn frames_pass_to_and_from_the_kernel() {
        if !has_tun("frames_pass_to_and_from_the_kernel") {
            return;
        }
        let wire = open();
        assert_eq!((wire.describe().as_str(), wire.mtu()), ("TAP uw0", 1500));
        assert_eq!(wire.mac()[0] & 0b11, 0b10, "unicast, locally administered");
        ip("addr add 192.0.2.2/24 dev uw0");
        let socket = UdpSocket::bind((KERNEL, 5000)).unwrap();
        socket.send_to(b"to us", (US, 6000)).unwrap();
        let kernel = answer_arp(&wire);
        let (port, data) = receive(&wire, |frame| {
            assert_eq!(frame.source(), kernel);
            frame.udp()
        });
        assert_eq!((port, data.as_slice()), (6000, &b"to us"[..]));

        let packet = udp(US, KERNEL, 5000, b"to the kernel");
        assert!(wire.send(&header(kernel, wire.mac(), IPV4), &packet).unwrap());
        let mut bytes = [0; 100];
        let (len, from) = socket.recv_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..len], from.ip()), (&b"to the kernel"[..], IpAddr::V4(US)));
    }

    fn a_created_device_is_up_has_the_mtu_asked_for_and_goes_away_with_the_wire() {
        if !has_tun("a_created_device_is_up") {
            return;
        }
        let wire = open_with(Some([2, 0, 0, 0, 0, 7]), Some(9000)).unwrap();
        assert_eq!((wire.mac(), wire.mtu()), ([2, 0, 0, 0, 0, 7], 9000));
        let shown = ip("link show uw0");
        assert!(shown.contains(",UP") && shown.contains("mtu 9000"), "{shown}");
        drop(wire);
        assert!(!ip_succeeds("link show uw0"));
        let largest = open_with(None, Some(MAX_MTU)).unwrap();
        assert_eq!(largest.mtu(), MAX_MTU);
    }

    fn an_existing_device_is_brought_up_used_by_one_at_a_time_and_left() {
        if !has_tun("an_existing_device") {
            return;
        }
        ip("tuntap add uw0 mode tap");
        let wire = open();
        assert!(ip("link show uw0").contains(",UP"));
        let busy = refused(open_with(None, None));
        assert_eq!(busy, AttachError::TapBusy { name: uw0() });
        drop(wire);
        assert!(ip_succeeds("link show uw0"));
        open();
        let mtu = AttachError::Mtu { name: uw0(), has: 1500, wanted: 1501 };
        assert_eq!(refused(open_with(None, Some(1501))), mtu);
        assert_eq!(open_with(None, Some(1400)).unwrap().mtu(), 1500);
        let mac = [2, 1, 1, 1, 1, 1];
        ip("link set uw0 address 02:01:01:01:01:01");
        assert_eq!(refused(open_with(Some(mac), None)), AttachError::SameMac { name: uw0() });
        ip("link set uw0 mtu 1400");
        assert_eq!(open().mtu(), 1400);
    }

    fn an_interface_that_is_no_tap_is_refused() {
        if !has_tun("an_interface_that_is_no_tap") {
            return;
        }
        ip("link add uw0 type veth peer name other");
        assert_eq!(refused(open_with(None, None)), AttachError::NotTap { name: uw0() });
        ip("link del uw0");
        ip("tuntap add uw0 mode tun");
        assert_eq!(refused(open_with(None, None)), AttachError::NotTap { name: uw0() });
    }

    fn an_address_of_the_kernel_is_refused_and_nothing_is_created() {
        ip("link set lo up");
        ip("link add veth0 type veth peer name veth1");
        ip("addr add 192.0.2.1/25 dev veth0");
        let owned = AttachError::KernelOwns {
            addr: US.into(),
            prefix: 25,
            name: "veth0".parse().unwrap(),
        };
        assert_eq!(refused(open_with(None, None)), owned);
        // With this option any address can be bound. Such an address must not count as an address
        // of the kernel.
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "1").unwrap();
        assert_eq!(refused(open_with(None, None)), owned);
        ip("addr del 192.0.2.1/25 dev veth0");
        if has_tun("an_address_of_the_kernel") {
            open();
        }
        std::fs::write("/proc/sys/net/ipv4/ip_nonlocal_bind", "0").unwrap();
        ip("route add local 192.0.2.0/24 dev lo");
        assert_eq!(refused(open_with(None, None)), AttachError::KernelRoutes { addr: US.into() });
        ip("addr add 2001:db8::1/64 dev veth0 nodad");
        let v6 = (IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]), 64);
        let refused = refused(TapWire::open(uw0(), None, None, &[v6], false));
        let name = "veth0".parse().unwrap();
        assert_eq!(refused, AttachError::KernelOwns { addr: v6.0, prefix: 64, name });
        assert!(!ip_succeeds("link show uw0"));
    }

    fn a_deleted_interface_is_an_error_of_both_directions() {
        if !has_tun("a_deleted_interface") {
            return;
        }
        let wire = open();
        ip("link del uw0");
        wait_readable(&wire);
        let error = receive_error(&wire);
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
        assert!(error.to_string().contains("was deleted"), "{error}");
        let error = wire.send(&[0xff; 14], &[0; 46]).unwrap_err();
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
        assert!(wire.mtu() > 0);
    }

    fn frames_are_lost_while_the_interface_is_down_and_pass_when_it_is_up_again() {
        if !has_tun("frames_are_lost_while_the_interface_is_down") {
            return;
        }
        let mut wire = open();
        wire.interface_mut().set_patience(FOREVER);
        ip("addr add 192.0.2.2/24 dev uw0");
        let socket = UdpSocket::bind((KERNEL, 5000)).unwrap();
        socket.send_to(b"?", (US, 6000)).unwrap();
        let kernel = answer_arp(&wire);
        let header = header(kernel, wire.mac(), IPV4);
        ip("link set uw0 down");
        for _ in 0..3 {
            assert!(wire.send(&header, &udp(US, KERNEL, 5000, b"lost")).unwrap());
        }
        ip("link set uw0 up");
        assert!(wire.send(&header, &udp(US, KERNEL, 5000, b"arrives")).unwrap());
        let mut bytes = [0; 100];
        let len = socket.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"arrives");
    }

    fn an_interface_that_stays_down_is_an_error_that_says_what_to_do() {
        if !has_tun("an_interface_that_stays_down") {
            return;
        }
        let mut wire = open();
        wire.interface_mut().set_patience(Duration::ZERO);
        ip("link set uw0 down");
        let error = wire.send(&[0xff; 14], &[0; 46]).unwrap_err();
        assert!(matches!(error, LlpError::LinkDown { .. }), "{error:?}");
        assert!(error.to_string().contains("ip link set INTERFACE up"), "{error}");
    }

    fn a_renamed_interface_goes_on() {
        if !has_tun("a_renamed_interface") {
            return;
        }
        let wire = open();
        ip("link set uw0 down");
        ip("link set uw0 name uw9");
        ip("link set uw9 mtu 1300 up");
        assert_eq!(wire.mtu(), 1300);
        assert!(wire.send(&[0xff; 14], &[0; 46]).unwrap());
    }
}

#[test]
fn random_mac_addresses_are_local_and_those_of_single_hosts() {
    let drawn: Vec<[u8; 6]> = (0..100).map(|_| random_mac()).collect();
    assert!(drawn.iter().all(|mac| mac[0] & 0b11 == 0b10));
    assert!(
        drawn
            .iter()
            .all(|mac| drawn.iter().filter(|other| *other == mac).count() == 1)
    );
}
