//! `--out_json`: writes the last row in the format of perftest's `--out_json`.

use std::path::Path;

use serde_json::{Map, Value, json};
use uwarp_perf::{Atomic, Figures, Plan, Row, Test};

use super::table::scale;
use super::{both, messages};
use crate::failure::{Failure, Report};

/// Writes this row to the file and replaces its old content.
pub(super) fn save(file: &Path, plan: &Plan, row: &Row, gigabits: bool) -> Result<(), Failure> {
    let text = format!("{:#}\n", report(plan, row, gigabits));
    std::fs::write(file, text).map_err(|error| {
        Report::new(format!("{} cannot be written: {error}", file.display()))
            .advice("use --out_json_file with an existing directory that you may write to")
            .into()
    })
}

/// Builds perftest's two objects, with its field names.
fn report(plan: &Plan, row: &Row, gigabits: bool) -> Value {
    json!({
        "test_info": info(plan),
        "results": results(row, gigabits),
    })
}

fn info(plan: &Plan) -> Value {
    let on = |on: bool| if on { "ON" } else { "OFF" };
    let mut info = Map::new();
    let mut set = |name: &str, value: Value| {
        info.insert(name.to_owned(), value);
    };
    set("test", test_name(plan).into());
    set("Dual_port", "OFF".into());
    set("Device", "uwarp".into());
    set("Number_of_qps", plan.qps.into());
    set("Transport_type", "IW".into());
    set("Connection_type", "RC".into());
    set("Using_SRQ", on(plan.srq).into());
    set("TX_depth", plan.tx_depth.into());
    if plan.post_list > 1 {
        set("Post_List", plan.post_list.into());
    }
    if plan.test.takes_receives() {
        set("RX_depth", plan.rx_depth.into());
    }
    if !plan.test.is_latency() {
        set("CQ_Moderation", plan.cq_moderation.into());
    }
    set("Link_type", "Ethernet".into());
    if plan.test.has_responses() {
        set("Outstand_reads", plan.reads.into());
    } else {
        set("Max_inline_data", plan.inline.into());
    }
    set("rdma_cm_QPs", "ON".into());
    set("Data_ex_method", "rdma_cm".into());
    info.into()
}

/// Returns perftest's name of the test: verb, variant and measurement.
fn test_name(plan: &Plan) -> String {
    let verb = match plan.test {
        Test::WriteBandwidth | Test::WriteLatency => "RDMA_Write",
        Test::WriteImmBandwidth | Test::WriteImmLatency => "RDMA_Write_With_Immediate",
        Test::ReadBandwidth | Test::ReadLatency => "RDMA_Read",
        Test::SendBandwidth | Test::SendLatency => "Send",
        Test::AtomicBandwidth | Test::AtomicLatency => match plan.atomic {
            Atomic::FetchAdd => "Atomic_FETCH_AND_ADD",
            Atomic::CompareSwap => "Atomic_CMP_AND_SWAP",
        },
    };
    let both = if plan.bidirectional {
        "_Bidirectional"
    } else {
        ""
    };
    let list = if plan.post_list > 1 { "_Post_List" } else { "" };
    let what = if plan.test.is_latency() {
        "Latency"
    } else {
        "BW"
    };
    format!("{verb}{both}{list}_{what}_Test")
}

fn results(row: &Row, gigabits: bool) -> Value {
    let mut results = match &row.figures {
        Figures::Bandwidth(_) => {
            let both = both(row);
            let of = |figure: fn(&uwarp_perf::Bandwidth) -> f64| both.as_ref().map_or(0.0, figure);
            let scale = scale(gigabits);
            json!({
                "MsgSize": row.size,
                "n_iterations": messages(row),
                "BW_peak": of(|both| both.peak.unwrap_or(0.0)) / scale,
                "BW_average": of(|both| both.average) / scale,
                "MsgRate": of(|both| both.rate) / 1e6,
            })
        }
        Figures::Latency(latency) => json!({
            "MsgSize": row.size,
            "n_iterations": row.messages,
            "t_min": latency.min,
            "t_max": latency.max,
            "t_typical": latency.p50,
            "t_avg": latency.mean,
            "t_stdev": latency.deviation,
            "percentile_99": latency.p99,
            "percentile_99.9": latency.p999,
        }),
    };
    if let (Some(percent), Some(results)) = (row.machine_cpu, results.as_object_mut()) {
        results.insert("CPU_util".into(), percent.into());
    }
    results
}
