//! Parsing of device specifications, and the messages for invalid ones.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::ethernet::Offload;
use crate::smol::{Congestion, FaultSettings};

fn parse(text: &str) -> DeviceSpec {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn link(spec: &DeviceSpec) -> &LinkKeys {
    match &spec.0 {
        Kind::Tap { link, .. } | Kind::Raw { link, .. } | Kind::Unix { link, .. } => link,
        Kind::Tcp { .. } => panic!("{spec} has no link"),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_kernels_tcp_may_name_an_address() {
    assert_eq!(parse("tcp"), DeviceSpec::default());
    assert!(parse("tcp").addresses().is_empty());
    assert_eq!(parse("tcp:127.0.0.1").addresses(), [ip("127.0.0.1")]);
    for v6 in ["tcp:::1", "tcp:[::1]"] {
        assert_eq!(parse(v6).addresses(), [ip("::1")]);
    }
    assert!(!parse("tcp").is_user_space());
}

#[test]
fn the_kernels_tcp_may_name_a_congestion_control() {
    let spec = parse("tcp:127.0.0.1,congestion=reno");
    assert_eq!(spec.addresses(), [ip("127.0.0.1")]);
    assert_eq!(spec.to_string(), "tcp:127.0.0.1,congestion=reno");
    let network = spec.open(None, KernelSettings::default()).unwrap();
    assert_eq!(network.describe(), "kernel TCP, reno");
}

#[test]
fn every_key_is_understood() {
    let spec = parse(
        "tap:uw0,ip=192.0.2.1/25,ip=2001:db8::1/48,gw=192.0.2.126,gw=2001:db8::ff,mtu=9000,\
         mac=02:0:aB:00:00:01,congestion=cubic,recovery=early,offload=off,loss=0.25,duplicate=1,reorder=0,corrupt=1e-3,seed=7",
    );
    assert!(spec.is_user_space());
    assert_eq!(spec.addresses(), [ip("192.0.2.1"), ip("2001:db8::1")]);
    assert_eq!(
        link(&spec),
        &LinkKeys {
            addresses: vec![(ip("192.0.2.1"), 25), (ip("2001:db8::1"), 48)],
            gateways: vec![ip("192.0.2.126"), ip("2001:db8::ff")],
            mtu: Some(9000),
            mac: Some([2, 0, 0xab, 0, 0, 1]),
            congestion: Some(Congestion::Cubic),
            early_recovery: Some(true),
            offload: Some(Offload::Off),
            faults: FaultSettings {
                seed: 7,
                loss: 0.25,
                duplicate: 1.0,
                reorder: 0.0,
                corrupt: 0.001,
            },
        }
    );
}

#[test]
fn an_address_without_a_prefix_gets_the_usual_one_of_its_family() {
    let spec = parse("raw:veth0,ip=192.0.2.1,ip=2001:db8::1");
    assert_eq!(
        link(&spec).addresses,
        [(ip("192.0.2.1"), 24), (ip("2001:db8::1"), 64)]
    );
}

#[test]
fn the_settings_of_the_link_are_what_was_written() {
    let of = |text: &str| link(&parse(text)).settings(None, None, Congestion::Reno);
    let settings =
        of("unix:/a,/b,ip=192.0.2.1,gw=192.0.2.9,mtu=1400,congestion=none,recovery=early");
    assert_eq!(settings.addresses, [(ip("192.0.2.1"), 24)]);
    assert_eq!(settings.gateways, [ip("192.0.2.9")]);
    assert_eq!(settings.mtu, Some(1400));
    assert_eq!(settings.congestion, Congestion::None);
    assert!(settings.early_recovery);
    assert!(!of("unix:/a,/b,ip=192.0.2.1,recovery=timer").early_recovery);
    let default = of("unix:/a,/b,ip=192.0.2.1");
    assert_eq!(default.mtu, None);
    assert_eq!(default.congestion, Congestion::Reno);
    assert!(!default.early_recovery);
}

#[test]
fn recovery_is_early_only_where_no_kernel_cuts_segments() {
    for device in ["tap:uw0", "raw:veth0"] {
        for plain in ["offload=off", "corrupt=0.1", "offload=auto,corrupt=0.1"] {
            let spec = parse(&format!("{device},ip=192.0.2.1,recovery=early,{plain}"));
            let settings = link(&spec).settings(None, None, Congestion::Reno);
            assert!(settings.early_recovery && !settings.offloads(), "{spec}");
        }
        for offload in ["", ",offload=auto", ",loss=0.1", ",corrupt=0"] {
            let text = format!("{device},ip=192.0.2.1,recovery=early{offload}");
            let said = text.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(said.contains("with offload the kernel cuts"), "{said}");
            assert!(said.contains("; expected offload=off"), "{said}");
            parse(&text.replace("early", "timer"));
        }
    }
}

#[test]
fn paths_and_abstract_names_are_taken_as_they_are() {
    let spec = parse("unix:@one,dir with blank/x:y=z,ip=192.0.2.1");
    let Kind::Unix { local, remote, .. } = &spec.0 else {
        panic!("{spec:?}")
    };
    assert_eq!(
        (local.as_str(), remote.as_str()),
        ("@one", "dir with blank/x:y=z")
    );
    let longest = "x".repeat(MAX_PATH);
    parse(&format!("unix:{longest},b,ip=192.0.2.1"));
}

/// Invalid texts, and words that their messages must contain.
const WRONG: &[(&str, &[&str])] = &[
    ("", &["there is no device ``", "tap:NAME,ip=ADDR/PREFIX"]),
    ("udp", &["there is no device `udp`"]),
    ("TCP", &["there is no device `TCP`"]),
    ("tcp:", &["`` is not an IP address"]),
    (
        "tcp:localhost",
        &["`localhost` is not an IP address", "127.0.0.1"],
    ),
    ("tcp:[::1", &["not an IP address"]),
    (
        "tcp:127.0.0.1:7174",
        &["`127.0.0.1:7174` has a port; expected an address of this machine"],
    ),
    ("tcp:[::1]:7174", &["`[::1]:7174` has a port"]),
    ("tcp:fe80::1", &["a link-local address of IPv6 cannot be"]),
    (
        "tcp:fe80::1%eth0",
        &["a link-local address of IPv6 cannot be"],
    ),
    (
        "tcp:127.0.0.1,mtu=1500",
        &[
            "`mtu=1500` is no key of the kernel's TCP",
            "congestion=NAME",
        ],
    ),
    ("tcp:127.0.0.1,congestion=", &["is no key"]),
    ("tcp:127.0.0.1,congestion=a,b", &["is no key"]),
    (
        "tcp:127.0.0.1,recovery=early",
        &["`recovery=early` is no key of the kernel's TCP"],
    ),
    ("tcp:,congestion=reno", &["`` is not an IP address"]),
    ("tap", &["`tap` says neither where nor with which address"]),
    ("unix", &["`unix` says neither"]),
    ("tap:", &["empty", "`uw0`"]),
    ("tap:,ip=192.0.2.1", &["empty"]),
    ("tap:uw0", &["the address is missing", "ip=192.0.2.1/24"]),
    ("tap:uw0,mtu=1500", &["the address is missing"]),
    (
        "tap:ip=192.0.2.1",
        &["stands where the name of the interface belongs"],
    ),
    ("tap:tap%d,ip=192.0.2.1", &["tap%d", "no blank"]),
    ("tap:0123456789abcdef,ip=192.0.2.1", &["at most 15 bytes"]),
    (
        "tap:uw0,192.0.2.1",
        &["`192.0.2.1` is not of the form key=value"],
    ),
    ("tap:uw0,", &["`` is not of the form key=value"]),
    ("tap:uw0,ip=192.0.2.1,", &["not of the form key=value"]),
    (
        "tap:uw0,ip=192.0.2.1,los=0.1",
        &["there is no key `los`", "loss="],
    ),
    (
        "tap:uw0,ip=192.0.2.1,IP=192.0.2.2",
        &["there is no key `IP`"],
    ),
    ("tap:uw0,ip=", &["ip=: it is not an IP address"]),
    ("tap:uw0,ip=host", &["it is not an IP address"]),
    ("tap:uw0,ip=192.0.2.1/", &["from 1 to 32"]),
    ("tap:uw0,ip=192.0.2.1/0", &["from 1 to 32"]),
    ("tap:uw0,ip=192.0.2.1/33", &["from 1 to 32"]),
    ("tap:uw0,ip=192.0.2.1/-1", &["from 1 to 32"]),
    ("tap:uw0,ip=192.0.2.1/24/24", &["from 1 to 32"]),
    ("tap:uw0,ip=2001:db8::1/129", &["from 1 to 128"]),
    ("tap:uw0,ip=2001:db8::1/0", &["from 1 to 128"]),
    ("tap:uw0,ip=0.0.0.0", &["any address"]),
    ("tap:uw0,ip=0.1.2.3", &["any address"]),
    ("tap:uw0,ip=::", &["any address"]),
    ("tap:uw0,ip=224.0.0.1", &["a group"]),
    ("tap:uw0,ip=ff02::1", &["a group"]),
    ("tap:uw0,ip=255.255.255.255", &["broadcast address"]),
    ("tap:uw0,ip=240.0.0.1", &["reserved"]),
    ("tap:uw0,ip=127.0.0.1", &["loopback"]),
    ("tap:uw0,ip=::1", &["loopback"]),
    (
        "tap:uw0,ip=::ffff:192.0.2.1",
        &["IPv4 address in IPv6 form"],
    ),
    ("tap:uw0,ip=192.0.2.0/24", &["the address of the network"]),
    ("tap:uw0,ip=192.0.2.255", &["broadcast address"]),
    ("tap:uw0,ip=192.0.2.127/25", &["broadcast address"]),
    (
        "tap:uw0,ip=192.0.2.1,ip=192.0.2.1/25",
        &["192.0.2.1 is given twice"],
    ),
    ("tap:uw0,ip=192.0.2.1,mtu=575", &["mtu=575", "576 to 65521"]),
    ("tap:uw0,ip=192.0.2.1,mtu=65522", &["mtu=65522"]),
    ("tap:uw0,ip=192.0.2.1,mtu=big", &["mtu=big"]),
    (
        "tap:uw0,ip=192.0.2.1,mtu=1500,mtu=1500",
        &["mtu= is given twice"],
    ),
    (
        "tap:uw0,ip=2001:db8::1,mtu=1279",
        &["mtu=1279 is too small for the IPv6 address", "1280"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,gw=192.0.3.1",
        &["gw=192.0.3.1 is in none of the networks"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,gw=2001:db8::1",
        &["is in none of the networks"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,gw=192.0.2.1",
        &["an address of this side"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,gw=192.0.2.2,gw=192.0.2.3",
        &["second router of its family"],
    ),
    ("tap:uw0,ip=192.0.2.1,gw=0.0.0.0", &["any address"]),
    (
        "tap:uw0,ip=192.0.2.1,mac=02:00:00:00:00",
        &["not a MAC address", "02:00:00:00:00:01"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,mac=02:00:00:00:00:00:01",
        &["not a MAC address"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,mac=02:00:00:00:00:0g",
        &["not a MAC address"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,mac=02:00:00:00:00:+1",
        &["not a MAC address"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,mac=02:00:00:00:00:001",
        &["not a MAC address"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,mac=03:00:00:00:00:01",
        &["the address of a group"],
    ),
    ("tap:uw0,ip=192.0.2.1,mac=0:0:0:0:0:0", &["all-zero"]),
    (
        "raw:veth0,ip=192.0.2.1,mac=02:00:00:00:00:01",
        &["mac= cannot be given"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,congestion=bbr",
        &["none, reno or cubic"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,offload=off,recovery=fast",
        &["recovery=fast", "early or timer"],
    ),
    ("unix:/a,/b,ip=192.0.2.1,recovery=", &["early or timer"]),
    (
        "unix:/a,/b,ip=192.0.2.1,recovery=early,recovery=early",
        &["recovery= is given twice"],
    ),
    ("tap:uw0,ip=192.0.2.1,offload=on", &["auto or off"]),
    (
        "unix:/a,/b,ip=192.0.2.1,offload=off",
        &["offload= cannot be given"],
    ),
    (
        "tap:uw0,ip=192.0.2.1,loss=1.1",
        &["loss=1.1 is not a probability"],
    ),
    ("tap:uw0,ip=192.0.2.1,loss=-0.1", &["not a probability"]),
    ("tap:uw0,ip=192.0.2.1,corrupt=NaN", &["not a probability"]),
    ("tap:uw0,ip=192.0.2.1,reorder=10%", &["not a probability"]),
    ("tap:uw0,ip=192.0.2.1,duplicate=", &["not a probability"]),
    ("tap:uw0,ip=192.0.2.1,seed=-1", &["seed=-1"]),
    ("unix:", &["the path LOCAL is missing"]),
    ("unix:/a", &["the path REMOTE is missing"]),
    (
        "unix:/a,ip=192.0.2.1",
        &["the path REMOTE is missing", "unix:/tmp/a,/tmp/b,"],
    ),
    ("unix:ip=192.0.2.1", &["the path LOCAL is missing"]),
    ("unix:/a,,ip=192.0.2.1", &["the path REMOTE is missing"]),
    ("unix:/a,@,ip=192.0.2.1", &["the path REMOTE is missing"]),
    ("unix:/a,/a,ip=192.0.2.1", &["the same path `/a`"]),
    ("unix:/a,/b", &["the address is missing"]),
    (
        "unix:/a,/b,/c,ip=192.0.2.1",
        &["`/c` is not of the form key=value", "no comma"],
    ),
];

#[test]
fn every_wrong_text_is_refused_with_what_was_expected() {
    for (text, words) in WRONG {
        let Err(error) = text.parse::<DeviceSpec>() else {
            panic!("`{text}` is taken")
        };
        let said = error.to_string();
        for word in *words {
            assert!(said.contains(word), "`{text}`: {said}");
        }
        assert!(said.contains("; expected "), "`{text}`: {said}");
    }
}

#[test]
fn a_path_too_long_for_a_socket_address_is_refused() {
    let path = "x".repeat(MAX_PATH + 1);
    for text in [
        format!("unix:{path},b,ip=192.0.2.1"),
        format!("unix:a,{path},ip=192.0.2.1"),
    ] {
        let said = text.parse::<DeviceSpec>().unwrap_err().to_string();
        assert!(
            said.contains("has 108 bytes; expected at most 107"),
            "{said}"
        );
    }
}

#[test]
fn networks_of_one_or_two_hosts_have_no_special_addresses() {
    for text in [
        "192.0.2.0/31",
        "192.0.2.1/31",
        "192.0.2.255/32",
        "2001:db8::/127",
    ] {
        parse(&format!("tap:uw0,ip={text}"));
    }
}

#[test]
fn a_router_may_be_known_by_its_link_local_address() {
    parse("tap:uw0,ip=2001:db8::1,gw=fe80::1");
}

proptest! {
    #[test]
    fn any_text_is_parsed_or_refused_without_a_panic(text in ".{0,60}") {
        let _ = text.parse::<DeviceSpec>();
    }

    #[test]
    fn any_fields_are_parsed_or_refused_without_a_panic(
        kind in "(tap:u|raw:v|unix:/a,/b|tcp)",
        fields in proptest::collection::vec("(ip|gw|mtu|mac|seed|loss|congestion|recovery)=[0-9a-f.:/-]{0,20}", 0..4),
    ) {
        let text = format!("{kind},{}", fields.join(","));
        if let Ok(spec) = text.parse::<DeviceSpec>() {
            prop_assert_eq!(spec.to_string().parse::<DeviceSpec>().unwrap(), spec);
        }
    }

    #[test]
    fn what_is_displayed_parses_to_the_same(
        kind in "(tap:uw0|raw:veth-1|unix:/a b,@c)",
        host in 1u8..127,
        v6 in any::<bool>(),
        gw in any::<bool>(),
        mtu in proptest::option::of(1280usize..=65521),
        mac in proptest::option::of(any::<[u8; 5]>()),
        congestion in proptest::option::of("(none|reno|cubic)"),
        offload in proptest::option::of("(auto|off)"),
        recovery in proptest::option::of("(early|timer)"),
        (loss, corrupt) in (0.0f64..=1.0, 0.0f64..=1.0),
        seed in any::<u64>(),
    ) {
        let mut text = format!("{kind},ip=192.0.2.{host}/25");
        if v6 {
            text += ",ip=2001:db8::7";
        }
        if gw && host != 9 {
            text += ",gw=192.0.2.9";
        }
        if let Some(mtu) = mtu {
            text += &format!(",mtu={mtu}");
        }
        if let (Some([a, b, c, d, e]), false) = (mac, kind.starts_with("raw")) {
            text += &format!(",mac=2:{a:x}:{b:x}:{c:x}:{d:x}:{e:x}");
        }
        if let Some(name) = congestion {
            text += &format!(",congestion={name}");
        }
        if let (Some(offload), false) = (&offload, kind.starts_with("unix")) {
            text += &format!(",offload={offload}");
        }
        let plain = kind.starts_with("unix") || corrupt > 0.0 || offload.as_deref() == Some("off");
        if let Some(recovery) = recovery.filter(|how| plain || how == "timer") {
            text += &format!(",recovery={recovery}");
        }
        text += &format!(",corrupt={corrupt},seed={seed},loss={loss}");
        let spec: DeviceSpec = text.parse().unwrap();
        prop_assert_eq!(spec.to_string().parse::<DeviceSpec>().unwrap(), spec);
    }
}
