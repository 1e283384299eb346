//! `uwarp devinfo`: shows the device as `ibv_devinfo -v` does, and the networks that this machine
//! allows.

mod networks;

use std::fmt::Write as _;

use clap::Args;
use uwarp_verbs::{
    AtomicCap, Device, DeviceAttr, PortAttr, PortState, QueryError, Settings, device_cap,
};

use crate::device::DeviceOption;
use crate::failure::{Failure, Report};
use crate::output::{Output, wrapped};
use crate::run;

/// Options of `uwarp devinfo`.
#[derive(Args, Debug)]
#[command(
    after_help = "The second part lists the kinds of --device: whether this machine and this user may use \
    each, and what is missing if not.\n\
    Exit codes: 0 the device of --device opens, 1 it does not, 2 wrong usage."
)]
pub(crate) struct Options {
    /// Accepted for compatibility with ibv_devinfo; the output is always complete
    #[arg(short = 'v', long)]
    verbose: bool,
    #[command(flatten)]
    device: DeviceOption,
}

/// Prints both parts. The second part is printed even if the device cannot be opened, because it
/// explains why.
///
/// # Errors
/// The device cannot be opened, or the output cannot be written.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let opened = options.device.open(Settings::default(), None);
    if let Ok(device) = &opened {
        Output::Stdout.line(description(device)?)?;
    }
    let mut text = String::from("networks of this machine (--device):\n");
    for network in networks::all() {
        let head = format!(
            "  {:<5} {:<4}",
            network.name,
            if network.usable { "yes" } else { "no" }
        );
        let _ = writeln!(text, "{}", wrapped(&head, &network.words));
    }
    let (usable, words) = match run::library() {
        Ok(directory) => (
            "yes",
            format!(
                "unmodified programs load the library in {}",
                directory.display()
            ),
        ),
        Err(failure) => (
            "no",
            failure.report().map(Report::one_line).unwrap_or_default(),
        ),
    };
    text.push_str(&wrapped(&format!("  run   {usable:<4}"), &words));
    Output::Stdout.line(text)?;
    opened.map(drop)
}

/// Appends a line of the table: name, tabs up to the column of values, value.
fn field(text: &mut String, depth: usize, name: &str, value: impl std::fmt::Display) {
    // Values of the device start in column 40, values of the port in column 48.
    const TAB: usize = 8;
    let column = if depth == 1 { 5 * TAB } else { 6 * TAB };
    let from = depth * TAB + name.len() + 1;
    let tabs = column.saturating_sub(from).div_ceil(TAB).max(1);
    let (indent, gap) = ("\t".repeat(depth), "\t".repeat(tabs));
    let _ = writeln!(text, "{indent}{name}:{gap}{value}");
}

fn description(device: &Device) -> Result<String, Failure> {
    let broken = |error: QueryError| Failure::because(error.to_string());
    let port = device.query_port(1).map_err(broken)?;
    let mut text = format!("hca_id:\t{}\n", device.name());
    field(&mut text, 1, "network", device.describe());
    device_fields(&mut text, &device.query());
    port_fields(&mut text, &port);
    for index in 0..port.gid_tbl_len {
        // An address may have been removed since the length was read.
        let Ok(gid) = device.gid(index) else { break };
        field(&mut text, 3, &format!("GID[{index:3}]"), gid);
    }
    Ok(text)
}

fn device_fields(text: &mut String, attr: &DeviceAttr) {
    let mut line = |name: &str, value: &dyn std::fmt::Display| field(text, 1, name, value);
    line("transport", &"iWARP (1)");
    line("fw_ver", &attr.fw_ver);
    line("node_guid", &guid(attr.node_guid));
    line("sys_image_guid", &guid(attr.sys_image_guid));
    line("vendor_id", &format_args!("0x{:04x}", attr.vendor_id));
    line("vendor_part_id", &attr.vendor_part_id);
    line("hw_ver", &format_args!("0x{:X}", attr.hw_ver));
    line("phys_port_cnt", &attr.phys_port_cnt);
    line("max_mr_size", &format_args!("0x{:x}", attr.max_mr_size));
    line("page_size_cap", &format_args!("0x{:x}", attr.page_size_cap));
    line("max_qp", &attr.max_qp);
    line("max_qp_wr", &attr.max_qp_wr);
    line("max_inline_data", &attr.max_inline_data);
    line(
        "device_cap_flags",
        &format_args!("0x{:08x}", attr.device_cap_flags),
    );
    for (bit, name) in CAPABILITIES {
        if attr.device_cap_flags & bit != 0 {
            let _ = writeln!(text, "\t\t\t\t\t{name}");
        }
    }
    let mut line = |name: &str, value: &dyn std::fmt::Display| field(text, 1, name, value);
    line("max_sge", &attr.max_sge);
    line("max_sge_rd", &attr.max_sge_rd);
    line("max_cq", &attr.max_cq);
    line("max_cqe", &attr.max_cqe);
    line("max_mr", &attr.max_mr);
    line("max_pd", &attr.max_pd);
    line("max_qp_rd_atom", &attr.max_qp_rd_atom);
    line("max_res_rd_atom", &attr.max_res_rd_atom);
    line("max_qp_init_rd_atom", &attr.max_qp_init_rd_atom);
    line(
        "atomic_cap",
        &match attr.atomic_cap {
            AtomicCap::None => "ATOMIC_NONE (0)",
            AtomicCap::Device => "ATOMIC_HCA (1)",
            AtomicCap::Global => "ATOMIC_GLOB (2)",
        },
    );
    line("max_mw", &attr.max_mw);
    line("max_srq", &attr.max_srq);
    line("max_srq_wr", &attr.max_srq_wr);
    line("max_srq_sge", &attr.max_srq_sge);
    line("max_pkeys", &attr.max_pkeys);
    line("local_ca_ack_delay", &attr.local_ca_ack_delay);
}

/// Flags that this device may report, with their names in the output of `ibv_devinfo`.
const CAPABILITIES: [(u32, &str); 5] = [
    (device_cap::PORT_ACTIVE_EVENT, "PORT_ACTIVE_EVENT"),
    (device_cap::SYS_IMAGE_GUID, "SYS_IMAGE_GUID"),
    (device_cap::MEM_WINDOW, "MEM_WINDOW"),
    (device_cap::MEM_MGT_EXTENSIONS, "MEM_MGT_EXTENSIONS"),
    (device_cap::MEM_WINDOW_TYPE_2B, "MEM_WINDOW_TYPE_2B"),
];

fn port_fields(text: &mut String, port: &PortAttr) {
    text.push_str("\t\tport:\t1\n");
    let mut line = |name: &str, value: &dyn std::fmt::Display| field(text, 3, name, value);
    line(
        "state",
        &match port.state {
            PortState::Down => "PORT_DOWN (1)",
            PortState::Active => "PORT_ACTIVE (4)",
        },
    );
    line("max_mtu", &mtu(port.max_mtu));
    line("active_mtu", &mtu(port.active_mtu));
    line("link_mtu", &port.link_mtu);
    line("link_layer", &"Ethernet");
    line("max_msg_sz", &format_args!("0x{:x}", port.max_msg_sz));
    line(
        "port_cap_flags",
        &format_args!("0x{:08x}", port.port_cap_flags),
    );
    line("pkey_tbl_len", &port.pkey_tbl_len);
    line("gid_tbl_len", &port.gid_tbl_len);
    line("active_width", &width(port.active_width));
    line("active_speed", &speed(port.active_speed));
    line("phys_state", &phys_state(port.phys_state));
}

/// Number of lanes for a value of `ibv_port_attr.active_width`.
fn width(value: u8) -> String {
    let lanes = match value {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    };
    format!("{lanes}X ({value})")
}

/// Speed of a lane for a value of `ibv_port_attr.active_speed`.
fn speed(value: u8) -> String {
    let speed = match value {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        _ => "invalid speed",
    };
    format!("{speed} ({value})")
}

/// State of the link for a value of `ibv_port_attr.phys_state`. `ibv_devinfo` shows it for
/// InfiniBand only.
fn phys_state(value: u8) -> String {
    let state = match value {
        3 => "DISABLED",
        5 => "LINK_UP",
        _ => "invalid physical state",
    };
    format!("{state} ({value})")
}

/// Formats an `ibv_mtu` value as `ibv_devinfo` does: the bytes, then the value in parentheses.
fn mtu(name: u32) -> String {
    format!("{} ({name})", 128 << name)
}

fn guid(bytes: [u8; 8]) -> String {
    let parts = bytes
        .chunks(2)
        .map(|part| format!("{:02x}{:02x}", part[0], part[1]));
    parts.collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_in_the_column_of_ibv_devinfo() {
        let mut text = String::new();
        field(&mut text, 1, "fw_ver", "0.1.0");
        field(&mut text, 1, "max_qp_init_rd_atom", 1);
        field(&mut text, 3, "state", "PORT_ACTIVE (4)");
        assert_eq!(
            text,
            "\tfw_ver:\t\t\t\t0.1.0\n\tmax_qp_init_rd_atom:\t\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n"
        );
    }

    #[test]
    fn guids_and_mtus_are_written_as_ibv_devinfo_writes_them() {
        assert_eq!(guid([2, 0, 0, 0xff, 0xfe, 0, 0, 7]), "0200:00ff:fe00:0007");
        assert_eq!(mtu(5), "4096 (5)");
    }

    #[test]
    fn the_nominal_link_is_written_as_ibv_devinfo_writes_it() {
        assert_eq!(width(2), "4X (2)");
        assert_eq!(speed(8), "10.0 Gbps (8)");
        assert_eq!(phys_state(3), "DISABLED (3)");
    }
}
