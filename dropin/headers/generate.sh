#!/usr/bin/env bash
# Writes src/abi/generated.rs from the installed headers of rdma-core. Run it by hand to support a
# newer rdma-core; a build never runs it. Needs libibverbs-dev, librdmacm-dev,
# libc6-dev-arm64-cross, linux-libc-dev-arm64-cross, perl and bindgen. Assertions in the generated
# file check the layouts for both processors. A C test repeats them with the headers of the machine
# that runs the test.
set -euo pipefail
cd "$(dirname "$0")"
version=$(dpkg-query -W -f '${Version}' libibverbs-dev 2>/dev/null || echo unknown)
out=../src/abi/generated.rs
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

layouts() { # CLANG-OPTION...
    bindgen all.h \
        --use-core --rust-target 1.85 --rust-edition 2024 --disable-header-comment --no-doc-comments \
        --default-enum-style consts --no-prepend-enum-name --default-non-copy-union-style manually_drop \
        --allowlist-type '_?ibv_(device|context|context_ops|pd|mr|mw|mw_bind|mw_bind_info|cq|cq_ex|cq_init_attr_ex|comp_channel|qp|qp_ex|qp_cap|qp_attr|qp_init_attr|qp_init_attr_ex|qp_open_attr|srq|srq_attr|srq_init_attr|srq_init_attr_ex|wc|wc_.*|send_wr|recv_wr|sge|data_buf|device_attr|device_attr_ex|query_device_ex_input|port_attr|gid|gid_entry|async_event|values_ex|poll_cq_attr|modify_cq_attr|moderate_cq|ece|ah_attr|ah|global_route|ops_wr|.*_type|.*_flags|.*_state|.*_cap|.*_opcode|.*_status|.*_mask|mtu|fork_status)' \
        --allowlist-type 'verbs_context' --allowlist-type '_compat_ibv_port_attr' \
        --allowlist-type 'rdma_.*' \
        --allowlist-var 'IBV_.*' --allowlist-var 'RDMA_.*' --allowlist-var 'RAI_.*' \
        --blocklist-type '(__)?pthread_.*|sockaddr|sockaddr_in6?|sockaddr_storage|socklen_t|__socklen_t|timespec|__atomic_wide_counter.*|__(time|syscall_slong)_t|in6?_addr.*|sa_family_t|in_(addr|port)_t|__kernel_.*' \
        --blocklist-type 'ibv_(flow|wq|rwq|dm|xrcd|td|counter|parent_domain|ah_attr_ex|nic_flow|vf).*' \
        --opaque-type 'ibv_(flow|wq|counter).*' \
        --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t, timespec};' \
        --raw-line 'const MUTEX: usize = size_of::<pthread_mutex_t>() - 40;' \
        --raw-line 'macro_rules! opaque { ($($name:ident)*) => { $(#[repr(C)] #[derive(Debug, Copy, Clone)] pub struct $name([u8; 0]);)* } }' \
        --raw-line 'opaque! { ibv_counter_attach_attr ibv_counters_init_attr ibv_counters ibv_dm ibv_flow_action_esp_attr ibv_flow_action ibv_flow_attr ibv_flow ibv_parent_domain_init_attr ibv_rwq_ind_table_init_attr ibv_rwq_ind_table ibv_td_init_attr ibv_td ibv_wq_attr ibv_wq_init_attr ibv_wq ibv_xrcd_init_attr ibv_xrcd }' \
        -- "$@" |
        sed 's/extern "C" fn/extern "C-unwind" fn/'
}

layouts --target=x86_64-linux-gnu >"$made/x86_64"
layouts --target=aarch64-linux-gnu -I/usr/aarch64-linux-gnu/include -I/usr/include >"$made/aarch64"
{
    printf '//! Layouts of libibverbs and librdmacm for x86-64 and aarch64. Do not edit: headers/generate.sh\n//! generates this file from rdma-core %s.\n\n' "$version"
    ./merge.pl "$made/x86_64" "$made/aarch64"
} >"$out"
rustfmt --edition 2024 "$out"
