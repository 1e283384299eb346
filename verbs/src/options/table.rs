//! The table of the options, in the order of help texts and of `dropin/README.md`.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use uwarp_mpa::Revision;
use uwarp_rdmap::Peer;

use super::{Chosen, DEFAULT_NAME, Kind, ReadText, UserOption, Words};

const ON_OFF: Words = &[("on", ""), ("off", "")];
const PEERS: Words = &[
    ("rfc", "A peer that follows the RFCs"),
    ("siw", "Linux siw (Soft-iWARP)"),
];
const PERSONAS: Words = &[
    ("iwarp", "An iWARP RNIC"),
    (
        "roce",
        "A RoCE v2 adapter; queue pairs are connected by librdmacm or by number",
    ),
];

const MILLISECONDS: &str = "a number of milliseconds";

/// Every option that concerns a device.
pub const OPTIONS: &[UserOption] = &[
    variable("UWARP_DEVICE")
        .text(
            "a device ('uwarp run --help' lists them)",
            |chosen, text| parse(text).map(|device| chosen.device = device),
        )
        .default("tcp")
        .flag("device", "DEVICE")
        .help(DEVICE_HELP)
        .run_help(
            "The network: tcp, tcp:ADDR, tap:NAME,ip=ADDR, raw:INTERFACE,ip=ADDR or \
             unix:LOCAL,REMOTE,ip=ADDR ('uwarp rping --help' explains them)",
        ),
    variable("UWARP_PCAP")
        .path(|chosen, path| chosen.pcap = Some(path.to_owned()))
        .flag("pcap", "FILE")
        .help("Capture all traffic to FILE in pcapng format; `-` is stdout")
        .run_help("Capture all traffic to FILE in pcapng format"),
    variable("UWARP_CRC")
        .words(ON_OFF, |chosen, word| chosen.settings.crc = word == "on")
        .default("on")
        .flag("crc", "CRC")
        .help("CRC32C on every FPDU; it is used when either side asks for it"),
    variable("UWARP_MARKERS")
        .words(ON_OFF, |chosen, word| {
            chosen.settings.markers = word == "on";
        })
        .default("off")
        .flag("markers", "MARKERS")
        .help("Ask the peer to insert Markers into the data it sends"),
    variable("UWARP_FPDU_SEGMENTS")
        .text("a number of TCP segments", |chosen, text| {
            parse(text).map(|count| chosen.settings.fpdu_segments = count)
        })
        .default("1")
        .flag("fpdu-segments", "COUNT")
        .help(
            "Maximum number of TCP segments that an outgoing FPDU may span, 1 to 506. Above 1, \
             FPDUs are fewer and longer, but not aligned with segments (RFC 5044 section 4.5). \
             That helps where segments are cut below TCP. 506 means as many as there is room for. \
             Some adapters refuse such FPDUs (docs/links.md)",
        )
        .run_help(
            "Maximum number of TCP segments that an outgoing FPDU may span, 1 to 506. Above 1, \
             FPDUs are not aligned with segments ('uwarp rping --help' says more)",
        ),
    variable("UWARP_SEND_IN_PLACE")
        .switch(|chosen, on| chosen.settings.send_in_place = on)
        .default("0")
        .flag("send-in-place", "")
        .help(
            "Send payloads of 8 KiB and more directly from the program's memory when the CRC is \
             on, without a copy. They must stay unchanged until the request completes. Up to 12 % \
             faster at 64 KiB, up to 6 % slower at 1 MiB (docs/performance.md)",
        )
        .run_help(
            "Send payloads of 8 KiB and more directly from the program's memory when the CRC is \
             on, without a copy. Only for programs that leave this memory unchanged until the \
             request completes; others lose the connection by a wrong CRC",
        ),
    variable("UWARP_MPA")
        .words(&[("1", ""), ("2", "")], |chosen, word| {
            let revision = match word {
                "1" => Revision::One,
                _ => Revision::Two,
            };
            (chosen.settings.revision, chosen.settings.accept_revision) = (revision, revision);
        })
        .default("2")
        .flag("mpa", "MPA")
        .help("MPA revision: 2 is RFC 6581; 1 is RFC 5044 alone, for a server too")
        .run_help("MPA revision"),
    variable("UWARP_PEER")
        .words(PEERS, |chosen, word| {
            chosen.settings.peer = if word == "siw" { Peer::Siw } else { Peer::Rfc };
        })
        .default("rfc")
        .flag("peer", "PEER")
        .help(
            "Profile of the peer. For `siw`, the Linux driver: reads Terminate Messages by siw's \
             layout, states IRD as a power of two, refuses private data that siw cannot take, and \
             holds the first FPDU back for 200 ms",
        )
        .run_help("Profile of the peer"),
    variable("UWARP_PERSONA")
        .words(PERSONAS, |chosen, word| chosen.roce = Some(word == "roce"))
        .flag("persona", "PERSONA")
        .run_help(
            "Kind of device that the program sees. Queue pairs are connected by number with \
             'roce' only [default: roce, or iwarp with '--peer siw' or '--mpa 1', which exclude \
             roce]",
        ),
    variable("UWARP_OOB_PORTS").text(
        "two ports from 1024 on, such as 20000-20099",
        |chosen, text| ports(text).map(|ports| chosen.oob_ports = Some(ports)),
    ),
    variable("UWARP_OOB_SOURCE")
        .words(&[("check", ""), ("any", "")], |chosen, word| {
            chosen.oob_any_source = word == "any";
        })
        .default("check"),
    // Programs choose some two seconds for hardware, which does not stall as long as a busy machine
    // does.
    variable("UWARP_OOB_TIMEOUT")
        .text(
            "a number of milliseconds, or the minimum and the maximum, such as 1000-5000",
            oob_timeout,
        )
        .default("5000"),
    variable("UWARP_NAME")
        .text("names of devices, separated by commas", |chosen, text| {
            parse(text).map(|names| chosen.names = names)
        })
        .default(DEFAULT_NAME)
        .flag("name", "NAME")
        .run_help(
            "Name of the device, 1 to 63 letters, digits, _ or -. Given several times: names of \
             several devices, which are all the same RNIC",
        ),
    variable("UWARP_STRICT")
        .switch(|chosen, on| chosen.strict = on)
        .default("0")
        .flag("strict", "")
        .run_help(
            "End a connection whose message finds no receive posted, as the RFC says, instead of \
             holding the message",
        ),
    // InfiniBand retransmits such a message up to seven times, or without limit. iWARP has no
    // counterpart. Most programs that rely on these retries post a receive within milliseconds.
    variable("UWARP_HOLD")
        .text(MILLISECONDS, |chosen, text| {
            milliseconds(text).map(|time| chosen.hold = time)
        })
        .default("10000")
        .flag("hold", "MS")
        .run_help(
            "Milliseconds to hold a message that finds no receive posted. If its sender closes \
             meanwhile, the message is held for at most two more seconds",
        ),
    // perftest's `ib_send_bw -e` waits for these events.
    variable("UWARP_WRITE_EVENTS")
        .switch(|chosen, on| chosen.settings.event_on_write = on)
        .default("1"),
    variable("UWARP_PLACED_WRITES").switch(|chosen, on| chosen.placed_writes = Some(on)),
    // A client and a server are often started at the same time. InfiniBand's connection manager
    // repeats the request until the server listens, but TCP refuses the connection immediately.
    variable("UWARP_CONNECT_RETRY")
        .text(MILLISECONDS, |chosen, text| {
            milliseconds(text).map(|time| chosen.settings.timeouts.refused = time)
        })
        .default("3000")
        .flag("connect-retry", "MS")
        .run_help(
            "Milliseconds for which a connection attempt is repeated if the peer's TCP refuses \
             it; 0 tries once",
        ),
    variable("UWARP_PORT_OFFSET")
        .text("a number up to 65535", |chosen, text| {
            port_offset(text).map(|offset| chosen.port_offset = offset)
        })
        .default("0")
        .flag("port-offset", "PORTS")
        .run_help(
            "Number to add to every port of librdmacm, on both sides, for programs that use one \
             port number in TCP and in RDMA",
        ),
    variable("UWARP_QUIET")
        .switch(|chosen, on| chosen.quiet = on)
        .default("0")
        .flag("quiet", "")
        .run_help("Do not explain on stderr why a connection ended"),
];

/// Help of `--device`, with the lines as they are printed.
const DEVICE_HELP: &str = "\
The network: tcp, tcp:ADDR, tap:NAME,ip=ADDR, raw:INTERFACE,ip=ADDR or
unix:LOCAL,REMOTE,ip=ADDR (--help explains them)

tcp:127.0.0.1
  The kernel's TCP, with the local address to use (optional).
  congestion=NAME may follow the address: a congestion control of the
  kernel. The default is the system's, but reno within this host if
  the system's is BBR. Needs no privilege.
tap:uw0,ip=192.0.2.1/24
  TCP/IP in this process on a TAP device, which exists or is created;
  the kernel is the other end. Needs /dev/net/tun, and CAP_NET_ADMIN
  or a device that root has created for you.
raw:veth0,ip=192.0.2.1/24
  The same on a raw socket on an interface, best one end of a veth
  pair. The kernel must not have the address. Needs CAP_NET_RAW.
unix:/tmp/a,/tmp/b,ip=192.0.2.1/24
  The same on Ethernet frames in Unix datagrams, received at the
  first path and sent to the second. The other end is QEMU's
  -netdev dgram or another uwarp. Needs no privilege.

The last three take more keys, in any order: ip= again (IPv6 too),
gw=ADDR, mtu=BYTES, mac=XX:XX:XX:XX:XX:XX (not raw),
congestion=none|reno|cubic, offload=auto|off (not unix),
recovery=timer|early (retransmit lost data after a second, or as soon
as the loss shows; on tap and raw only with offload=off). For tests:
loss=, duplicate=, reorder=, corrupt= (probabilities, 0 to 1) and
seed=NUMBER.";

const fn variable(name: &'static str) -> UserOption {
    UserOption {
        variable: name,
        flag: None,
        value_name: "",
        kind: Kind::Switch(|_, _| ()),
        default: None,
        help: None,
        run_help: None,
    }
}

/// Builder of the rows.
impl UserOption {
    const fn words(mut self, words: Words, set: fn(&mut Chosen, &str)) -> Self {
        self.kind = Kind::Word(words, set);
        self
    }

    const fn switch(mut self, set: fn(&mut Chosen, bool)) -> Self {
        self.kind = Kind::Switch(set);
        self
    }

    const fn path(mut self, set: fn(&mut Chosen, &Path)) -> Self {
        self.kind = Kind::Path(set);
        self
    }

    const fn text(mut self, expected: &'static str, read: ReadText) -> Self {
        self.kind = Kind::Text(expected, read);
        self
    }

    const fn default(mut self, value: &'static str) -> Self {
        self.default = Some(value);
        self
    }

    const fn flag(mut self, name: &'static str, value_name: &'static str) -> Self {
        self.flag = Some(name);
        self.value_name = value_name;
        self
    }

    const fn help(mut self, text: &'static str) -> Self {
        self.help = Some(text);
        self
    }

    const fn run_help(mut self, text: &'static str) -> Self {
        self.run_help = Some(text);
        self
    }
}

fn parse<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    parse(text).map(Duration::from_millis)
}

/// Reads a minimum, or a minimum and a maximum.
fn oob_timeout(chosen: &mut Chosen, text: &str) -> Result<(), String> {
    let time = |text: &str| milliseconds(text).map_err(|error| format!("'{text}': {error}"));
    let (least, most) = match text.split_once('-') {
        None => (time(text)?, None),
        Some((least, most)) => (time(least)?, Some(time(most)?)),
    };
    if most.is_some_and(|most| least > most) {
        return Err("the minimum is above the maximum".to_owned());
    }
    (chosen.oob_timeout, chosen.oob_max_timeout) = (least, most);
    Ok(())
}

fn port_offset(text: &str) -> Result<u16, String> {
    let number: i64 = parse(text)?;
    u16::try_from(number).map_err(|_| format!("{number} is not in 0..=65535"))
}

/// Reads a range of ports, both ends included.
fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let (first, last) = text.split_once('-').ok_or("there is no '-'")?;
    let port = |text: &str| text.parse::<u16>().map_err(|_| "an end is no port");
    match (port(first)?, port(last)?) {
        (first, last) if first > last => Err("the first is above the last".to_owned()),
        (first, _) if first < 1024 => Err("the first is below 1024".to_owned()),
        (first, last) => Ok(first..=last),
    }
}
