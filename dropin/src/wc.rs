//! Converts completions to `ibv_wc`.

use core::ffi::c_uint;

use uwarp_verbs::{CauseCode, Completion, DatagramSource, Status, WcOpcode};

use crate::abi::{self, ibv_wc, ibv_wc__bindgen_ty_1, ibv_wc_opcode, ibv_wc_status};
use crate::persona::Persona;

/// Converts the status. Each one has a counterpart in libibverbs.
pub(crate) fn status(status: Status) -> ibv_wc_status {
    match status {
        Status::Success => abi::IBV_WC_SUCCESS,
        Status::LocalLength => abi::IBV_WC_LOC_LEN_ERR,
        Status::LocalQpOperation => abi::IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => abi::IBV_WC_LOC_PROT_ERR,
        Status::WrFlush => abi::IBV_WC_WR_FLUSH_ERR,
        Status::WindowBind => abi::IBV_WC_MW_BIND_ERR,
        Status::BadResponse => abi::IBV_WC_BAD_RESP_ERR,
        Status::LocalAccess => abi::IBV_WC_LOC_ACCESS_ERR,
        Status::RemoteInvalidRequest => abi::IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => abi::IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => abi::IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => abi::IBV_WC_RETRY_EXC_ERR,
        Status::ReceiverNotReady => abi::IBV_WC_RNR_RETRY_EXC_ERR,
        Status::RemoteAbort => abi::IBV_WC_REM_ABORT_ERR,
        Status::Fatal => abi::IBV_WC_FATAL_ERR,
        Status::ResponseTimeout => abi::IBV_WC_RESP_TIMEOUT_ERR,
        // Includes statuses that the verbs crate may add later.
        Status::General | _ => abi::IBV_WC_GENERAL_ERR,
    }
}

/// Returns the status of a completion as a device of this kind reports it. A responder on
/// InfiniBand answers an unaligned atomic, and a message that is longer than its receive, with the
/// NAK "invalid request". iWARP has Terminate Messages of other kinds for them.
#[inline]
pub(crate) fn status_of(done: &Completion, persona: Persona) -> ibv_wc_status {
    match (done.status, persona) {
        (Status::RemoteOperation, Persona::Roce) if is_invalid_request(done) => {
            abi::IBV_WC_REM_INV_REQ_ERR
        }
        (status, _) => self::status(status),
    }
}

/// Returns true if the peer's Terminate Message reports an unaligned atomic (RFC 7306 section 8.2),
/// or a message that is too long for its receive (RFC 5041 section 7.2). A peer that is no uwarp
/// may mean a failure of its own by code 7 (RFC 5040 section 4.8).
#[cold]
fn is_invalid_request(done: &Completion) -> bool {
    let Some(CauseCode::Terminate(code)) = done.cause.and_then(|cause| cause.code()) else {
        return false;
    };
    match (code.layer, code.etype, code.code) {
        (0, 2, 0x07) => matches!(done.opcode, WcOpcode::CompareSwap | WcOpcode::FetchAdd),
        (1, 2, 0x05) => true,
        _ => false,
    }
}

/// Converts the opcode. Fast registration, which a program cannot post through libibverbs, has no
/// number there.
pub(crate) fn opcode(opcode: WcOpcode) -> ibv_wc_opcode {
    match opcode {
        WcOpcode::Send => abi::IBV_WC_SEND,
        WcOpcode::RdmaWrite => abi::IBV_WC_RDMA_WRITE,
        WcOpcode::RdmaRead => abi::IBV_WC_RDMA_READ,
        WcOpcode::CompareSwap => abi::IBV_WC_COMP_SWAP,
        WcOpcode::FetchAdd => abi::IBV_WC_FETCH_ADD,
        WcOpcode::BindWindow => abi::IBV_WC_BIND_MW,
        WcOpcode::LocalInvalidate => abi::IBV_WC_LOCAL_INV,
        WcOpcode::Recv => abi::IBV_WC_RECV,
        WcOpcode::RecvImmediate => abi::IBV_WC_RECV_RDMA_WITH_IMM,
        WcOpcode::Register | _ => abi::IBV_WC_DRIVER1,
    }
}

/// Returns `imm_data` or `invalidated_rkey`, and the flags: which of them it is, and whether there
/// is a Global Route Header.
///
/// Immediate Data has eight bytes on the wire (RFC 7306 section 6). `imm_data` has the first four,
/// in the same order.
pub(crate) fn extra(done: &Completion) -> (u32, c_uint) {
    let grh = done.datagram.map_or(0, |_| abi::IBV_WC_GRH);
    let (extra, flag) = match (done.immediate, done.invalidated) {
        (Some([a, b, c, d, ..]), _) => (u32::from_ne_bytes([a, b, c, d]), abi::IBV_WC_WITH_IMM),
        (None, Some(stag)) => (stag, abi::IBV_WC_WITH_INV),
        (None, None) => (0, 0),
    };
    (extra, flag | grh)
}

/// Returns the number of the queue pair that sent a datagram.
pub(crate) fn src_qp(done: &Completion) -> u32 {
    done.datagram.map_or(0, DatagramSource::qp_num)
}

/// Returns the service level. That of a datagram tells the kind of its packet, as with mlx5 over
/// RoCE v2: 2 is IPv4, and 1 is IPv6. UCX drops all others (`uct_ud_iface_check_grh`).
pub(crate) fn sl(done: &Completion) -> u8 {
    match done.datagram.map(DatagramSource::is_ipv6) {
        None => 0,
        Some(false) => 2,
        Some(true) => 1,
    }
}

/// Returns the number of bytes. For a Write with Immediate Data, this is the length of the Write,
/// although the receive contains none of its bytes.
pub(crate) fn byte_len(done: &Completion) -> u32 {
    match done.opcode {
        WcOpcode::RecvImmediate => done.written,
        _ => done.byte_len,
    }
}

/// Converts the four bytes of `imm_data` to the eight bytes on the wire.
pub(crate) fn immediate(imm_data: u32) -> [u8; 8] {
    let [a, b, c, d] = imm_data.to_ne_bytes();
    [a, b, c, d, 0, 0, 0, 0]
}

/// Converts a completion of a device of this kind.
pub(crate) fn convert(done: &Completion, persona: Persona) -> ibv_wc {
    let (imm_data, wc_flags) = extra(done);
    ibv_wc {
        wr_id: done.wr_id,
        status: status_of(done, persona),
        opcode: opcode(done.opcode),
        vendor_err: 0,
        byte_len: byte_len(done),
        __bindgen_anon_1: ibv_wc__bindgen_ty_1 { imm_data },
        qp_num: done.qp_num,
        src_qp: src_qp(done),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: sl(done),
        dlid_path_bits: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_number_of_libibverbs() {
        let all = [
            Status::Success,
            Status::LocalLength,
            Status::LocalQpOperation,
            Status::LocalProtection,
            Status::WrFlush,
            Status::WindowBind,
            Status::BadResponse,
            Status::LocalAccess,
            Status::RemoteInvalidRequest,
            Status::RemoteAccess,
            Status::RemoteOperation,
            Status::RetryExceeded,
            Status::ReceiverNotReady,
            Status::RemoteAbort,
            Status::Fatal,
            Status::ResponseTimeout,
            Status::General,
        ];
        for one in all {
            assert_eq!(status(one), one.code(), "{one:?}");
        }
    }

    #[test]
    fn every_opcode_has_the_number_of_libibverbs_except_fast_registration() {
        let all = [
            WcOpcode::Send,
            WcOpcode::RdmaWrite,
            WcOpcode::RdmaRead,
            WcOpcode::CompareSwap,
            WcOpcode::FetchAdd,
            WcOpcode::BindWindow,
            WcOpcode::LocalInvalidate,
            WcOpcode::Recv,
            WcOpcode::RecvImmediate,
        ];
        for one in all {
            assert_eq!(opcode(one), one.code(), "{one:?}");
        }
        assert_eq!(opcode(WcOpcode::Register), abi::IBV_WC_DRIVER1);
    }

    #[test]
    fn immediate_data_keeps_the_order_of_the_wire_both_ways() {
        let data = u32::from_be_bytes([0, 0, 0, 7]).to_be();
        let wire = immediate(data);
        assert_eq!(wire, [0, 0, 0, 7, 0, 0, 0, 0]);
        let done = {
            let mut completion = Completion::default();
            completion.immediate = Some(wire);
            completion
        };
        assert_eq!(extra(&done), (data, abi::IBV_WC_WITH_IMM));
    }

    #[test]
    fn the_stag_that_a_send_invalidated_is_told() {
        let done = {
            let mut completion = Completion::default();
            completion.invalidated = Some(0x1234_5601);
            completion
        };
        assert_eq!(extra(&done), (0x1234_5601, abi::IBV_WC_WITH_INV));
    }
}
