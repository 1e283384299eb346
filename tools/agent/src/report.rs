//! Reports completions and events of the device as lines.

use uwarp_verbs::{AsyncEvent, Completion, Status, WcOpcode};

use crate::endpoint::{Connection, Endpoint};
use crate::json::{Fields, Line};
use crate::refusal::Refusal;
use crate::session::Session;

/// Value of `IBV_WC_WITH_IMM` in libibverbs.
const WITH_IMM: u32 = 1 << 1;
/// Value of `IBV_WC_WITH_INV` in libibverbs.
const WITH_INV: u32 = 1 << 3;

/// Names of the values of `ibv_wc_status`, in the order of the values.
const STATUS_NAMES: [&str; 22] = [
    "success",
    "loc_len_err",
    "loc_qp_op_err",
    "loc_eec_op_err",
    "loc_prot_err",
    "wr_flush_err",
    "mw_bind_err",
    "bad_resp_err",
    "loc_access_err",
    "rem_inv_req_err",
    "rem_access_err",
    "rem_op_err",
    "retry_exc_err",
    "rnr_retry_exc_err",
    "loc_rdd_viol_err",
    "rem_inv_rd_req_err",
    "rem_abort_err",
    "inv_eecn_err",
    "inv_eec_state_err",
    "fatal_err",
    "resp_timeout_err",
    "general_err",
];

fn status_name(status: Status) -> &'static str {
    let names = STATUS_NAMES.get(status.code() as usize);
    names.copied().unwrap_or("other")
}

fn opcode_name(opcode: WcOpcode) -> &'static str {
    match opcode {
        WcOpcode::Send => "send",
        WcOpcode::RdmaWrite => "write",
        WcOpcode::RdmaRead => "read",
        WcOpcode::CompareSwap => "cas",
        WcOpcode::FetchAdd => "fadd",
        WcOpcode::BindWindow => "bind_mw",
        WcOpcode::LocalInvalidate => "local_inv",
        WcOpcode::Recv => "recv",
        WcOpcode::RecvImmediate => "recv_write_imm",
        _ => "other",
    }
}

fn completion_line(number: u64, completion: &Completion) -> Line {
    let mut line = Line::new();
    line.number("wc", number);
    line.number("wr_id", completion.wr_id);
    line.number("st", completion.status.code());
    line.text("status", status_name(completion.status));
    if completion.status != Status::Success {
        if let Some(cause) = completion.cause {
            line.text("cause", &cause.to_string());
        }
        return line;
    }
    line.text("op", opcode_name(completion.opcode));
    line.number("len", completion.byte_len);
    let imm = completion.immediate.map_or(0, |_| WITH_IMM);
    let inv = completion.invalidated.map_or(0, |_| WITH_INV);
    if imm | inv != 0 {
        line.number("flags", imm | inv);
    }
    if let Some(bytes) = completion.immediate {
        line.hex("imm", &bytes);
    }
    if let Some(rkey) = completion.invalidated {
        line.number("inv", rkey);
    }
    line
}

/// Returns the name and number of an event in libibverbs. Returns `None` for events that libibverbs
/// lacks, such as a graceful end.
fn event_name(event: &AsyncEvent) -> Option<(&'static str, u32)> {
    match event {
        AsyncEvent::Ended { reason, .. } if reason.is_orderly() => None,
        AsyncEvent::Ended { .. } => Some(("local work queue catastrophic error", 1)),
        AsyncEvent::CqOverflow { .. } => Some(("CQ error", 0)),
        AsyncEvent::Established { .. } => Some(("communication established", 4)),
        AsyncEvent::DeviceFatal { .. } => Some(("local catastrophic error", 8)),
        AsyncEvent::SrqLimitReached { .. } => Some(("SRQ limit reached", 15)),
        AsyncEvent::LastWqeReached { .. } => Some(("last WQE reached", 16)),
        AsyncEvent::AddressConflict { .. } => Some(("GID table change", 18)),
        _ => None,
    }
}

impl Session {
    /// Polls the CQ of a connection until it is empty, and reports the completions. Returns the
    /// number of completions.
    pub(crate) fn report_completions(&mut self, number: u64) -> u64 {
        let Some(cq) = self.cq(number) else {
            return 0;
        };
        let (mut some, mut total) = ([Completion::default(); 16], 0);
        loop {
            let count = cq.poll(&mut some);
            if count == 0 {
                return total;
            }
            total += count as u64;
            for completion in &some[..count] {
                self.write(completion_line(number, completion));
            }
        }
    }

    fn cq(&self, number: u64) -> Option<uwarp_verbs::Cq> {
        let queues = self.connection_of(number).ok()?.queues.as_ref()?;
        Some(queues.cq.clone())
    }

    pub(crate) fn poll(&mut self, fields: &Fields, answer: &mut Line) -> Result<(), Refusal> {
        self.queues(fields)?;
        // The completions are reported before the answer, which contains their count.
        let count = self.report_completions(fields.number("conn", u64::MAX)?);
        answer.number("count", count);
        Ok(())
    }

    /// Handles pending notifications of CQs, arms the CQs again and reports the completions.
    /// Returns false if no notification was pending.
    pub(crate) fn take_completion_events(&mut self) -> bool {
        let mut busy = false;
        while let Some(event) = self.completions.try_get_event() {
            busy = true;
            let number = event.context();
            let Ok(Connection {
                queues: Some(queues),
                params,
                ..
            }) = self.connection_of(number)
            else {
                continue;
            };
            if queues.cq.cq_num() != event.cq_num() {
                continue; // belongs to an earlier connection with this number
            }
            if let Some(notify) = params.notify {
                queues.cq.req_notify(notify);
            }
            self.report_completions(number);
            if self.control.is_full() {
                break; // the queued output must be sent first; the next call continues
            }
        }
        busy
    }

    /// Reports an event that concerns the device as a whole or an object of this controller.
    /// Ignores other events.
    pub(crate) fn report_device_event(&mut self, event: &AsyncEvent) {
        let Some((name, number)) = event_name(event) else {
            return;
        };
        let mut line = Line::new();
        line.text("async", name);
        line.number("type", number);
        let about = match event {
            AsyncEvent::Ended { qp_num, .. }
            | AsyncEvent::Established { qp_num }
            | AsyncEvent::LastWqeReached { qp_num } => {
                let is_it = |queues: &crate::endpoint::Queues| queues.qp.qp_num() == *qp_num;
                self.find(is_it).map(|number| ("conn", number))
            }
            AsyncEvent::CqOverflow { cq_num, .. } => {
                let is_it = |queues: &crate::endpoint::Queues| queues.cq.cq_num() == *cq_num;
                self.find(is_it).map(|number| ("conn", number))
            }
            AsyncEvent::SrqLimitReached { srq_num } => {
                let mut srqs = self.srqs.iter();
                let found = srqs.find(|(_, queue)| queue.srq.srq_num() == *srq_num);
                found.map(|(number, _)| ("srq", number))
            }
            _ => None,
        };
        let is_of_device = matches!(
            event,
            AsyncEvent::DeviceFatal { .. } | AsyncEvent::AddressConflict { .. }
        );
        match about {
            Some((key, number)) => line.number(key, number),
            None if is_of_device => {}
            None => return, // concerns an object of another controller
        }
        let cause = match event {
            AsyncEvent::Ended { reason, .. } => reason.to_string(),
            other => other.cause().to_string(),
        };
        line.text("cause", &cause);
        self.write(line);
    }

    /// Returns the number of the connection whose queues satisfy `is_it`.
    fn find(&self, is_it: impl Fn(&crate::endpoint::Queues) -> bool) -> Option<u64> {
        let mut endpoints = self.endpoints.iter();
        let found = endpoints.find(|(_, endpoint)| match endpoint {
            Endpoint::Connection(connection) => connection.queues.as_ref().is_some_and(&is_it),
            Endpoint::Listener(_) => false,
        });
        found.map(|(number, _)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_told_as_the_c_agent_tells_it() {
        let done = {
            let mut completion = Completion::default();
            completion.wr_id = 7;
            completion.opcode = WcOpcode::RecvImmediate;
            completion.immediate = Some([1, 2, 3, 4, 0, 0, 0, 255]);
            completion.invalidated = Some(9);
            completion
        };
        assert_eq!(
            completion_line(2, &done).finish(),
            "{\"wc\":2,\"wr_id\":7,\"st\":0,\"status\":\"success\",\"op\":\"recv_write_imm\",\"len\":0,\
             \"flags\":10,\"imm\":\"01020304000000ff\",\"inv\":9}\n"
        );
        let failed = {
            let mut completion = Completion::default();
            completion.status = Status::RemoteAccess;
            completion
        };
        assert_eq!(
            completion_line(0, &failed).finish(),
            "{\"wc\":0,\"wr_id\":0,\"st\":10,\"status\":\"rem_access_err\"}\n"
        );
    }

    #[test]
    fn every_status_has_the_name_of_its_number() {
        for (status, name) in [
            (Status::WrFlush, "wr_flush_err"),
            (Status::RemoteOperation, "rem_op_err"),
            (Status::ReceiverNotReady, "rnr_retry_exc_err"),
            (Status::Fatal, "fatal_err"),
            (Status::General, "general_err"),
        ] {
            assert_eq!(status_name(status), name);
        }
    }
}
