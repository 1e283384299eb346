//! Contents of the files, in the kernel's words (`drivers/infiniband/core/sysfs.c`). On a device of
//! the persona iwarp they are those of the kernel's iWARP drivers, such as siw.

use std::ffi::CStr;

use uwarp_verbs::PortAttr;

use crate::persona::Persona;
use crate::rnic::Rnic;

/// Version of the interface between libibverbs and the kernel (`IB_USER_VERBS_ABI_VERSION`).
const VERBS_ABI: u32 = 6;
/// Version of the interface between the driver and its provider. There is none.
const DRIVER_ABI: u32 = 1;

const IB: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const DEV: &str = "/dev/infiniband";
/// Directories that have the files.
pub(super) const DIRECTORIES: [&str; 3] = [IB, VERBS, DEV];

/// Kind of a directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// A file with this text. A newline follows it.
    File(String),
    /// A symbolic link to this path.
    Link(String),
}

/// Returns the absolute paths of all entries. Those of a directory exist as well if they are not in
/// the list.
pub(crate) fn entries(rnic: &Rnic) -> Vec<(String, Entry)> {
    let mut all = vec![(
        format!("{VERBS}/abi_version"),
        Entry::File(VERBS_ABI.to_string()),
    )];
    for (index, name) in rnic.devices.names().enumerate() {
        let mut add = |path: String, entry: Entry| all.push((path, entry));
        let uverbs = format!("uverbs{index}");
        for (file, entry) in of_device(rnic, index) {
            add(format!("{IB}/{name}/{file}"), entry);
        }
        for (file, entry) in of_parent(rnic) {
            add(format!("{IB}/{name}/device/{file}"), entry.clone());
            add(format!("{VERBS}/{uverbs}/device/{file}"), entry);
        }
        let shown = [
            ("ibdev", name.to_owned()),
            ("abi_version", DRIVER_ABI.to_string()),
        ];
        for (file, text) in shown {
            add(format!("{VERBS}/{uverbs}/{file}"), Entry::File(text));
        }
        add(format!("{DEV}/{uverbs}"), Entry::Link("/dev/null".into()));
    }
    all
}

/// Returns the text of a file, for `ibv_read_sysfs_file`.
pub(crate) fn text(rnic: &Rnic, path: &[u8]) -> Option<String> {
    let mut all = entries(rnic).into_iter();
    let (_, found) = all.find(|(name, _)| name.as_bytes() == path)?;
    match found {
        Entry::File(text) => Some(text),
        _ => None,
    }
}

/// Returns true for the paths of the character devices.
pub(crate) fn is_character_device(rnic: &Rnic, path: &[u8]) -> bool {
    let number = path
        .strip_prefix(DEV.as_bytes())
        .and_then(|name| name.strip_prefix(b"/uverbs"));
    let number = number.and_then(|number| str::from_utf8(number).ok());
    number.is_some_and(|number| (0..rnic.devices.len()).any(|index| number == index.to_string()))
}

/// Returns the files of counters that `path` names, with their texts now: one file, or all of a
/// directory.
pub(crate) fn counters_at(rnic: &Rnic, path: &[u8]) -> Vec<(String, String)> {
    let mut devices = rnic.devices.names();
    let found = devices.find_map(|device| {
        let port = format!("{IB}/{device}/ports/1/");
        let asked = path.strip_prefix(port.as_bytes())?;
        Some((port, str::from_utf8(asked).ok()?.trim_end_matches('/')))
    });
    let Some((port, asked)) = found else {
        return Vec::new();
    };
    let is_asked = |file: &str| {
        let below = file.strip_prefix(asked);
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    };
    let all = counters(rnic)
        .into_iter()
        .filter(|(file, _)| is_asked(file));
    all.map(|(file, number)| (format!("{port}{file}"), number.to_string()))
        .collect()
}

/// Counters of the device, by their files in the directory of the port.
///
/// `hw_counters` has a driver's own names. Those of `counters` are defined by InfiniBand. Its
/// counters of data are in words of 32 bits. Those of packets and of errors of the link are
/// missing, because TCP's segments are not known here.
fn counters(rnic: &Rnic) -> [(&'static str, u64); 13] {
    let (usage, traffic) = (rnic.device.usage(), rnic.device.traffic());
    [
        ("counters/port_xmit_data", traffic.sent_bytes / 4),
        ("counters/port_rcv_data", traffic.received_bytes / 4),
        ("hw_counters/qps", usage.qps.into()),
        ("hw_counters/cqs", usage.cqs.into()),
        ("hw_counters/srqs", usage.srqs.into()),
        ("hw_counters/pds", usage.pds.into()),
        ("hw_counters/stags", usage.stags as u64),
        ("hw_counters/half_open", usage.half_open),
        ("hw_counters/accepted_connections", usage.connections),
        ("hw_counters/ird", usage.ird),
        ("hw_counters/receive_memory", usage.receive_memory),
        ("hw_counters/send_memory", usage.send_memory),
        (
            "hw_counters/displaced_startups",
            rnic.device.displaced_startups(),
        ),
    ]
}

/// Entries of the directory of a device, but without the directory `device`.
fn of_device(rnic: &Rnic, index: usize) -> Vec<(String, Entry)> {
    let attr = rnic.device.query();
    let persona = rnic.devices.persona();
    let mut all = Vec::new();
    let mut file = |name: String, text: String| all.push((name, Entry::File(text)));
    file("node_type".into(), persona.node_type_file().into());
    file("node_desc".into(), "uwarp".into());
    file("fw_ver".into(), attr.fw_ver.into());
    file("hca_type".into(), "uwarp".into());
    file("board_id".into(), "uwarp".into());
    file("hw_rev".into(), attr.hw_ver.to_string());
    let guid = rnic.node_guid(index).to_ne_bytes();
    file("node_guid".into(), groups(&guid));
    file("sys_image_guid".into(), groups(&attr.sys_image_guid));
    if let Ok(attr) = rnic.device.query_port(1) {
        for (name, text) in of_port(&attr) {
            file(format!("ports/1/{name}"), text);
        }
    }
    file("ports/1/pkeys/0".into(), "0xffff".into());
    for (index, entry) in rnic.gids.iter().enumerate() {
        file(format!("ports/1/gids/{index}"), groups(&entry.gid.0));
        let kind = gid_type(persona).to_owned();
        file(format!("ports/1/gid_attrs/types/{index}"), kind);
        // In the kernel, reading the file fails if the address has no interface.
        if let Some(interface) = interface(entry.interface) {
            file(format!("ports/1/gid_attrs/ndevs/{index}"), interface);
        }
    }
    for (name, number) in counters(rnic) {
        file(format!("ports/1/{name}"), number.to_string());
    }
    all
}

/// Entries of the directory of the hardware to which a device belongs. Programs look there for the
/// place of a PCI device. There is no hardware, so there is no `subsystem`, and no NUMA node.
fn of_parent(rnic: &Rnic) -> Vec<(String, Entry)> {
    let attr = rnic.device.query();
    // The identifiers of PCI have 16 bits. The vendor is the lower part of the OUI.
    let pci = |id: u32| Entry::File(format!("0x{:04x}", id & 0xFFFF));
    let mut all = vec![
        ("numa_node".to_owned(), Entry::File("-1".into())),
        ("vendor".to_owned(), pci(attr.vendor_id)),
        ("device".to_owned(), pci(attr.vendor_part_id)),
    ];
    let mut interfaces: Vec<_> = rnic.gids.iter().map(|entry| entry.interface).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    for name in interfaces.into_iter().filter_map(interface) {
        let target = format!("/sys/class/net/{name}");
        all.push((format!("net/{name}"), Entry::Link(target)));
    }
    all
}

/// Files of the port that come from its attributes.
fn of_port(attr: &PortAttr) -> [(&'static str, String); 9] {
    [
        ("state", state(attr.state as u32).into()),
        ("phys_state", phys_state(attr.phys_state).into()),
        ("rate", rate(attr.active_width, attr.active_speed)),
        ("link_layer", "Ethernet".into()),
        ("lid", "0x0".into()),
        ("lid_mask_count", "0".into()),
        ("sm_lid", "0x0".into()),
        ("sm_sl", "0".into()),
        ("cap_mask", format!("0x{:08x}", attr.port_cap_flags)),
    ]
}

fn state(number: u32) -> &'static str {
    match number {
        1 => "1: DOWN",
        2 => "2: INIT",
        3 => "3: ARMED",
        4 => "4: ACTIVE",
        _ => "0: NOP",
    }
}

fn phys_state(number: u8) -> &'static str {
    match number {
        1 => "1: Sleep",
        2 => "2: Polling",
        5 => "5: LinkUp",
        _ => "3: Disabled",
    }
}

/// Returns the rate of a link as the kernel writes it. `width` and `speed`: `active_width` and
/// `active_speed` of the port.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // Tenths of Gbit/s of a lane.
    let (name, tenths) = match speed {
        2 => (" DDR", 50),
        4 => (" QDR", 100),
        8 => (" FDR10", 100),
        16 => (" FDR", 140),
        32 => (" EDR", 250),
        64 => (" HDR", 500),
        128 => (" NDR", 1000),
        _ => ("", 25),
    };
    let tenths = lanes * tenths;
    let half = if tenths % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X{name})", tenths / 10)
}

/// Returns the kernel's name of the type of all GIDs. Every type other than RoCE v2 has the same
/// name, and so have the GIDs of iWARP drivers.
fn gid_type(persona: Persona) -> &'static str {
    match persona {
        Persona::Iwarp => "IB/RoCE v1",
        Persona::Roce => "RoCE v2",
    }
}

/// Returns groups of four hexadecimal digits, separated by colons.
fn groups(bytes: &[u8]) -> String {
    let pairs = bytes.chunks(2);
    let groups: Vec<_> = pairs
        .map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect::<Vec<String>>();
    groups.join(":")
}

/// Returns the name of an interface of the kernel.
#[expect(unsafe_code, reason = "a function of the C library")]
fn interface(index: u32) -> Option<String> {
    let mut name = [0_u8; libc::IF_NAMESIZE];
    // SAFETY: the array has the required length.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr().cast()) };
    let name = (!found.is_null()).then(|| CStr::from_bytes_until_nul(&name).ok())??;
    Some(name.to_str().ok()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;

    fn rnic(variables: &'static [(&'static str, &'static str)]) -> Rnic {
        let var = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).into())
        };
        Rnic::open(Environment::from(var).unwrap(), None, None).unwrap()
    }

    fn read(rnic: &Rnic, path: &str) -> Option<String> {
        text(rnic, path.as_bytes())
    }

    #[test]
    fn a_roce_device_has_the_words_of_a_roce_driver() {
        let rnic = rnic(&[
            ("UWARP_PERSONA", "roce"),
            ("UWARP_DEVICE", "tcp:127.0.0.1"),
            ("UWARP_NAME", "mlx5_0,mlx5_1"),
        ]);
        for (file, due) in [
            ("node_type", "1: CA"),
            ("hca_type", "uwarp"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/phys_state", "5: LinkUp"),
            ("ports/1/rate", "40 Gb/sec (4X FDR10)"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/lid", "0x0"),
            ("ports/1/cap_mask", "0x00000000"),
            ("ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0001"),
            ("ports/1/gid_attrs/types/0", "RoCE v2"),
            ("ports/1/gid_attrs/ndevs/0", "lo"),
            ("ports/1/pkeys/0", "0xffff"),
            ("device/numa_node", "-1"),
            ("device/vendor", "0x7577"),
            ("device/device", "0x0001"),
        ] {
            for name in ["mlx5_0", "mlx5_1"] {
                let path = format!("/sys/class/infiniband/{name}/{file}");
                assert_eq!(read(&rnic, &path).as_deref(), Some(due), "{path}");
            }
        }
        let guid = |name: &str| read(&rnic, &format!("/sys/class/infiniband/{name}/node_guid"));
        assert_eq!(guid("mlx5_0").map(|guid| guid.len()), Some(19));
        assert_ne!(guid("mlx5_0"), guid("mlx5_1"));
        let verbs = "/sys/class/infiniband_verbs";
        let ibdev = |index| read(&rnic, &format!("{verbs}/uverbs{index}/ibdev"));
        assert_eq!(ibdev(1).as_deref(), Some("mlx5_1"));
        assert_eq!(ibdev(2), None);
        let version = read(&rnic, "/sys/class/infiniband_verbs/abi_version");
        assert_eq!(version.as_deref(), Some("6"));
    }

    #[test]
    fn an_iwarp_device_has_the_words_of_an_iwarp_driver() {
        let rnic = rnic(&[("UWARP_PERSONA", "iwarp")]);
        let of = |file: &str| read(&rnic, &format!("/sys/class/infiniband/uwarp0/{file}"));
        assert_eq!(of("node_type").as_deref(), Some("4: RNIC"));
        assert_eq!(of("ports/1/link_layer").as_deref(), Some("Ethernet"));
        let first = of("ports/1/gids/0").unwrap();
        assert!(first.ends_with(":0000:0000:0000:0000:0000"), "{first}");
        for index in 0..rnic.gids.len() {
            let kind = of(&format!("ports/1/gid_attrs/types/{index}"));
            assert_eq!(kind.as_deref(), Some("IB/RoCE v1"));
        }
    }

    #[test]
    fn a_counter_has_its_number_of_now() {
        let rnic = rnic(&[]);
        let pds = || {
            read(
                &rnic,
                "/sys/class/infiniband/uwarp0/ports/1/hw_counters/pds",
            )
        };
        assert_eq!(pds().as_deref(), Some("0"));
        let _pd = rnic.device.alloc_pd().unwrap();
        assert_eq!(pds().as_deref(), Some("1"));
    }

    #[test]
    fn the_path_of_a_directory_names_all_its_counters() {
        let rnic = rnic(&[]);
        let named = |path: &str| {
            let path = format!("/sys/class/infiniband/uwarp0/ports/1/{path}");
            counters_at(&rnic, path.as_bytes()).len()
        };
        for (path, due) in [
            ("counters", 2),
            ("counters/", 2),
            ("counters/port_rcv_data", 1),
            ("hw_counters", 11),
            ("hw_counters/qps", 1),
            ("hw_counters/qps/x", 0),
            ("hw_counters/none", 0),
            ("hw_count", 0),
            ("", 0),
        ] {
            assert_eq!(named(path), due, "{path}");
        }
    }

    #[test]
    fn only_the_devices_that_exist_are_character_devices() {
        let rnic = rnic(&[("UWARP_NAME", "a,b")]);
        for (path, due) in [
            ("/dev/infiniband/uverbs0", true),
            ("/dev/infiniband/uverbs1", true),
            ("/dev/infiniband/uverbs2", false),
            ("/dev/infiniband/uverbs01", false),
            ("/dev/infiniband/rdma_cm", false),
            ("/dev/infiniband", false),
        ] {
            assert_eq!(is_character_device(&rnic, path.as_bytes()), due, "{path}");
        }
    }

    #[test]
    fn rates_are_those_of_the_lanes_together() {
        for (width, speed, due) in [
            (1, 1, "2.5 Gb/sec (1X)"),
            (2, 4, "40 Gb/sec (4X QDR)"),
            (2, 32, "100 Gb/sec (4X EDR)"),
            (16, 16, "28 Gb/sec (2X FDR)"),
        ] {
            assert_eq!(rate(width, speed), due);
        }
    }
}
