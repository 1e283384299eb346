//! Functions that return the name of a number, and functions that convert rates.

use core::ffi::CStr;
use core::ffi::{c_char, c_int};

fn word(words: &'static [&'static CStr], number: c_int) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|at| words.get(at));
    found.unwrap_or(&c"unknown").as_ptr()
}

/// `ibv_node_type_str`
pub(crate) extern "C-unwind" fn node_type_str(number: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    word(WORDS, number)
}

/// `ibv_port_state_str`
pub(crate) extern "C-unwind" fn port_state_str(number: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    word(WORDS, number)
}

/// `ibv_event_type_str`
pub(crate) extern "C-unwind" fn event_type_str(number: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    word(WORDS, number)
}

/// `ibv_wr_opcode_str`, which rdma-core has since version 56.
pub(crate) extern "C-unwind" fn wr_opcode_str(number: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"rdma-write",
        c"rdma-write-with-imm",
        c"send",
        c"send-with-imm",
        c"rdma-read",
        c"atomic-cmp-and-swp",
        c"atomic-fetch-and-add",
        c"local-inv",
        c"bind-mw",
        c"send-with-inv",
        c"tso",
        c"driver1",
        c"unknown",
        c"unknown",
        c"flush",
        c"atomic-write",
    ];
    word(WORDS, number)
}

/// `ibv_wc_status_str`
pub(crate) extern "C-unwind" fn wc_status_str(number: c_int) -> *const c_char {
    const WORDS: &[&CStr] = &[
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory management operation error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"aborted error",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    word(WORDS, number)
}

/// Values of `enum ibv_rate`, each with its rate in Mbit/s. Rates up to value 10 are multiples of
/// 2.5 Gbit/s. Later ones follow from the number of lanes and the rate of a lane.
const RATES: [(c_int, c_int); 22] = [
    (2, 2500),
    (3, 10000),
    (4, 30000),
    (5, 5000),
    (6, 20000),
    (7, 40000),
    (8, 60000),
    (9, 80000),
    (10, 120000),
    (11, 14062),
    (12, 56250),
    (13, 112500),
    (14, 168750),
    (15, 25781),
    (16, 103125),
    (17, 206250),
    (18, 309375),
    (19, 28125),
    (20, 50000),
    (21, 400000),
    (22, 600000),
    (23, 800000),
];

/// `ibv_rate_to_mbps`; -1 for an unknown rate.
pub(crate) extern "C-unwind" fn rate_to_mbps(rate: c_int) -> c_int {
    let found = RATES.iter().find(|(number, _)| *number == rate);
    found.map_or(-1, |(_, mbps)| *mbps)
}

/// `mbps_to_ibv_rate`; 0, which means the maximum, for an unknown rate.
pub(crate) extern "C-unwind" fn mbps_to_rate(mbps: c_int) -> c_int {
    let found = RATES.iter().find(|(_, rate)| *rate == mbps);
    found.map_or(0, |(number, _)| *number)
}

/// `ibv_rate_to_mult`: multiples of 2.5 Gbit/s; -1 for other rates.
pub(crate) extern "C-unwind" fn rate_to_mult(rate: c_int) -> c_int {
    match rate_to_mbps(rate) {
        mbps if mbps > 0 && mbps % 2500 == 0 && rate <= 10 => mbps / 2500,
        _ => -1,
    }
}

/// `mult_to_ibv_rate`
pub(crate) extern "C-unwind" fn mult_to_rate(mult: c_int) -> c_int {
    let rate = mult.checked_mul(2500).map_or(0, |mbps| mbps_to_rate(mbps));
    if rate <= 10 { rate } else { 0 }
}
