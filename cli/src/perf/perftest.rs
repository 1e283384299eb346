//! Options of perftest that have no effect here, and options that are refused. Each option of
//! perftest is an option of `uwarp perf` or is in one of the two tables.
//!
//! The list is that of perftest's `parser()`. It covers version 6.06, the development branch of
//! 2026, and every option that this branch ever had.

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options that users of perftest type by habit. They have no effect.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of perftest without effect")]
pub(super) struct Ignored {
    /// No figure depends on the frequency of the processors
    #[arg(short = 'F', long = "CPU-freq")]
    cpu_freq: bool,
    /// QPs are always connected as with rdma_cm
    #[arg(short = 'R', long = "rdma_cm")]
    rdma_cm: bool,
    /// Client and server always use a connection like that of rdma_cm
    #[arg(short = 'z', long = "comm_rdma_cm", alias = "com_rdma_cm")]
    comm_rdma_cm: bool,
    /// iWARP connections have no GID
    #[arg(
        short = 'x',
        long = "gid-index",
        value_name = "INDEX",
        allow_negative_numbers = true
    )]
    gid_index: Option<String>,
    /// --device selects the network
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    ib_dev: Option<String>,
    /// The device has one port
    #[arg(short = 'i', long = "ib-port", value_name = "PORT")]
    ib_port: Option<String>,
    /// TCP chooses the size of segments
    #[arg(short = 'm', long, value_name = "SIZE")]
    mtu: Option<String>,
    /// Connections are always reliable (RC)
    #[arg(short = 'c', long, value_name = "TYPE")]
    connection: Option<String>,
}

impl Ignored {
    /// Returns a message if a value was given that is not supported.
    pub(super) fn refusal(&self) -> Option<String> {
        let kind = self.connection.as_ref()?;
        (!kind.eq_ignore_ascii_case("RC")).then(|| {
            format!(
                "perftest's -c {kind} is not supported: iWARP has reliable connections only (RC)"
            )
        })
    }

    /// Returns a message about the given options that have no effect, if there are any.
    pub(super) fn notice(&self) -> Option<String> {
        let given = [
            (self.cpu_freq, "-F"),
            (self.rdma_cm, "-R"),
            (self.comm_rdma_cm, "-z"),
            (self.gid_index.is_some(), "-x"),
            (self.ib_dev.is_some(), "-d"),
            (self.ib_port.is_some(), "-i"),
            (self.mtu.is_some(), "-m"),
            (self.connection.is_some(), "-c"),
        ];
        let names = given
            .iter()
            .filter_map(|(given, name)| given.then_some(*name));
        let names: Vec<_> = names.collect();
        no_effect(&names, "here", "perftest has")
    }
}

/// Returns a message about options without effect at this side, if there are any. `reason`: why
/// they are accepted.
pub(super) fn no_effect(names: &[&str], side: &str, reason: &str) -> Option<String> {
    let (has, it_is, it) = match names.len() {
        0 => return None,
        1 => ("has", "it is", "it"),
        _ => ("have", "they are", "them"),
    };
    let names = names.join(", ");
    Some(format!(
        "uwarp perf: {names} {has} no effect {side}; {it_is} accepted because {reason} {it}"
    ))
}

const GPU: &str = "messages are in the memory of this process, not of an accelerator";
const RAW_ETHERNET: &str = "it belongs to perftest's raw Ethernet tests";
const INFINIBAND: &str = "it belongs to InfiniBand or RoCE, and iWARP has no equivalent";
const ADAPTER: &str = "it is a feature of an adapter, and uwarp uses none";
const RATE: &str = "TCP determines the rate, and no limit can be set";
const ENCRYPTION: &str = "it is a feature of an adapter; uwarp encrypts nothing";
const EXPERIMENTAL: &str = "it belongs to the experimental verbs of older libraries";

/// Refused options: short name, long name and reason.
const REFUSED: &[(&str, &str, &str)] = &[
    ("-u", "--qp-timeout", "TCP has its own timeouts"),
    ("-S", "--sl", INFINIBAND),
    ("-X", "--vector", "a device has one completion vector"),
    ("-g", "--mcg", "iWARP has no multicast"),
    ("-M", "--MGID", "iWARP has no multicast"),
    ("-T", "--tos", "the type of service cannot be set"),
    ("-L", "--hop_limit", RAW_ETHERNET),
    (
        "-C",
        "--report-cycles",
        "times are in microseconds; --json prints them unrounded",
    ),
    ("-O", "--dualport", "a device has one port"),
    ("-B", "--source_mac", RAW_ETHERNET),
    ("-E", "--dest_mac", RAW_ETHERNET),
    ("-J", "--dest_ip", RAW_ETHERNET),
    (
        "-j",
        "",
        "it belongs to perftest's raw Ethernet tests; --bind sets the address of this side",
    ),
    ("-K", "--dest_port", RAW_ETHERNET),
    ("-k", "--source_port", RAW_ETHERNET),
    ("", "--ethertype", RAW_ETHERNET),
    (
        "-Z",
        "--server",
        "a server is uwarp perf without an address",
    ),
    (
        "",
        "--client",
        "a client is uwarp perf with the address of its server",
    ),
    ("-v", "--mac_fwd", RAW_ETHERNET),
    ("", "--use_rss", RAW_ETHERNET),
    ("-W", "--report-counters", "there are no hardware counters"),
    ("", "--force-link", INFINIBAND),
    ("", "--remote_mac", RAW_ETHERNET),
    ("", "--local_mac", RAW_ETHERNET),
    ("", "--remote_ip", RAW_ETHERNET),
    ("", "--local_ip", RAW_ETHERNET),
    ("", "--remote_port", RAW_ETHERNET),
    ("", "--local_port", RAW_ETHERNET),
    (
        "",
        "--no_lock",
        "it belongs to thread domains of libibverbs",
    ),
    ("", "--use-null-mr", "there are no null memory regions here"),
    (
        "",
        "--report-both",
        "--json prints both directions separately",
    ),
    ("", "--reversed", "start the client on the other side"),
    ("", "--pkey_index", INFINIBAND),
    ("", "--tcp", RAW_ETHERNET),
    ("", "--burst_size", RATE),
    ("", "--typical_pkt_size", RATE),
    ("", "--rate_limit", RATE),
    ("", "--rate_limit_type", RATE),
    ("", "--rate_units", RATE),
    ("", "--output", "--json prints each figure with its name"),
    (
        "",
        "--latency_gap",
        "a latency test has no pause between messages",
    ),
    ("", "--flow_label", INFINIBAND),
    ("", "--retry_count", "a connection is tried once"),
    (
        "",
        "--dont_xchg_versions",
        "client and server always exchange their versions",
    ),
    ("", "--payload_file_path", "the payload cannot be chosen"),
    ("", "--use_cuda", GPU),
    ("", "--use_cuda_bus_id", GPU),
    ("", "--use_cuda_dmabuf", GPU),
    ("", "--use_cuda_pcie_mapping", GPU),
    ("", "--use_data_direct", GPU),
    ("", "--cuda_mem_type", GPU),
    ("", "--use_musa", GPU),
    ("", "--use_musa_bus_id", GPU),
    ("", "--use_musa_dmabuf", GPU),
    ("", "--use_musa_pcie_mapping", GPU),
    ("", "--use_rocm", GPU),
    ("", "--use_rocm_dmabuf", GPU),
    ("", "--use_neuron", GPU),
    ("", "--use_neuron_dmabuf", GPU),
    ("", "--use_hl", GPU),
    ("", "--use_mlu", GPU),
    ("", "--use_mlu_dmabuf", GPU),
    ("", "--use_opencl", GPU),
    ("", "--opencl_platform_id", GPU),
    ("", "--use_ib_dm_dmabuf", GPU),
    ("", "--gpu_touch", GPU),
    (
        "",
        "--mmap",
        "messages are in the memory of this process, not in a file",
    ),
    (
        "",
        "--mmap-offset",
        "messages are in the memory of this process, not in a file",
    ),
    ("", "--ipv6", "the address of the server selects the family"),
    (
        "",
        "--ipv6-addr",
        "the address of the server selects the family",
    ),
    ("", "--raw_ipv6", RAW_ETHERNET),
    ("", "--report-per-port", "a device has one port"),
    ("", "--odp", ADAPTER),
    ("", "--use_hugepages", "the memory comes from the allocator"),
    ("", "--use_old_post_send", "there is one way to post"),
    ("", "--promiscuous", RAW_ETHERNET),
    ("", "--sniffer", RAW_ETHERNET),
    ("", "--raw_mcast", RAW_ETHERNET),
    ("", "--mr_per_qp", "all QPs of a side share one region"),
    ("", "--dlid", INFINIBAND),
    ("", "--tclass", INFINIBAND),
    (
        "",
        "--wait_destroy",
        "connections are closed after the last row",
    ),
    ("", "--flows", RAW_ETHERNET),
    ("", "--flows_burst", RAW_ETHERNET),
    ("", "--reply_every", RAW_ETHERNET),
    (
        "",
        "--perform_warm_up",
        "there is always a warm-up; --warm-up sets its length",
    ),
    ("", "--vlan_en", RAW_ETHERNET),
    ("", "--vlan_pcp", RAW_ETHERNET),
    (
        "",
        "--recv_post_list",
        "receives are posted in lists of up to 64",
    ),
    (
        "",
        "--inline_recv",
        "receives are always placed in their buffer",
    ),
    ("", "--aes_xts", ENCRYPTION),
    ("", "--encrypt_on_tx", ENCRYPTION),
    ("", "--sig_before", ENCRYPTION),
    ("", "--sig_offload", ENCRYPTION),
    ("", "--aes_block_size", ENCRYPTION),
    ("", "--kek_path", ENCRYPTION),
    ("", "--credentials_path", ENCRYPTION),
    ("", "--data_enc_keys_number", ENCRYPTION),
    ("", "--data_enc_key_app_path", ENCRYPTION),
    ("", "--log_dci_streams", INFINIBAND),
    ("", "--log_active_dci_streams", INFINIBAND),
    ("", "--disable_pcie_relaxed", ADAPTER),
    ("", "--use_ooo", ADAPTER),
    (
        "",
        "--congest_type",
        "--device tcp:ADDR,congestion=NAME sets the congestion control",
    ),
    (
        "",
        "--send_with_imm",
        "an iWARP message is a Send or Immediate Data; write_imm_bw sends the latter after a Write",
    ),
    ("", "--no_enhanced_reorder", ADAPTER),
    ("", "--no_ddp", ADAPTER),
    ("", "--unsolicited_write", ADAPTER),
    ("", "--connectionless", "iWARP has connections only"),
    ("", "--cqe_poll", "up to 64 completions are polled at once"),
    ("", "--tph_mem", ADAPTER),
    ("", "--cpu_id", ADAPTER),
    ("", "--ph", ADAPTER),
    (
        "",
        "--disable_dynamic_polling",
        "--wait selects how a side waits",
    ),
    (
        "",
        "--data_validation",
        "only the CRC32C of each FPDU is verified, not the data",
    ),
    (
        "",
        "--data_validation_debug",
        "only the CRC32C of each FPDU is verified, not the data",
    ),
    ("", "--pin_cores", "start it with taskset"),
    ("", "--numa_node", "start it with numactl"),
    ("", "--disable_numa", "nothing is bound to a NUMA node"),
    ("", "--server_ip", RAW_ETHERNET),
    ("", "--client_ip", RAW_ETHERNET),
    ("", "--server_port", RAW_ETHERNET),
    ("", "--client_port", RAW_ETHERNET),
    ("", "--disable_fcs", RAW_ETHERNET),
    ("", "--use_exp", EXPERIMENTAL),
    ("", "--use_res_domain", EXPERIMENTAL),
    ("", "--verb_type", EXPERIMENTAL),
];

/// Returns a message if the unknown option is an option of perftest.
pub(crate) fn refusal(error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let ContextValue::String(given) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let name = given.split('=').next().unwrap_or(given);
    let is_it = |(short, long, _): &&(&str, &str, &str)| name == *short || name == *long;
    let (_, _, why) = REFUSED.iter().find(is_it)?;
    Some(format!(
        "uwarp perf: perftest's {name} is not supported: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// Names of perftest's options. They are every `long_options` entry that `git log -p
    /// src/perftest_parameters.c` shows, and the option string of `getopt_long`.
    const OF_PERFTEST: &str = include_str!("perftest_options.txt");

    #[test]
    fn every_option_of_perftest_is_taken_or_refused_in_a_line() {
        let root = crate::Cli::command();
        let perf = root.find_subcommand("perf").unwrap();
        let mut ours = Vec::new();
        for arg in perf.get_arguments() {
            ours.extend(arg.get_short().map(|short| format!("-{short}")));
            let long = arg.get_long().into_iter();
            let longs = long.chain(arg.get_all_aliases().into_iter().flatten());
            ours.extend(longs.map(|long| format!("--{long}")));
        }
        // clap adds these options only when it parses.
        ours.extend(["-h", "--help", "-V", "--version"].map(str::to_owned));
        for name in OF_PERFTEST.split_whitespace() {
            let is_refused = REFUSED
                .iter()
                .any(|(short, long, _)| [*short, *long].contains(&name));
            let is_ours = ours.iter().any(|our| our == name);
            assert!(is_ours != is_refused, "{name}: {is_ours}, {is_refused}");
        }
        for (short, long, _) in REFUSED {
            for name in [short, long] {
                let is_known = OF_PERFTEST.split_whitespace().any(|known| known == *name);
                assert!(name.is_empty() || is_known, "perftest has no {name}");
            }
        }
    }
}
