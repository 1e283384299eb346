//! Output of `uwarp dump --json`: one object for each frame, and a summary at the end.

use serde_json::{Value as Json, json};
use uwarp_capture::decode::{
    ConnectionSummary, Direction, Field, Finding, Frame, Startup, Totals, Value,
};

/// Returns the object of a frame. With `hex`, it includes the bytes of the frame.
pub(super) fn frame(frame: &Frame, hex: bool) -> Json {
    let fields: Vec<Json> = frame.fields().iter().map(field).collect();
    let findings: Vec<Json> = frame.findings.iter().map(finding).collect();
    let mut object = json!({
        "packet": frame.packet,
        "time": frame.time.as_secs_f64(),
        "connection": frame.connection,
        "from": frame.from.to_string(),
        "to": frame.to.to_string(),
        "offset": frame.offset,
        "what": frame.content.name(),
        "text": frame.content.to_string(),
        "whole": frame.whole,
        "fields": fields,
        "findings": findings,
    });
    if hex {
        object["bytes"] = Json::String(digits(&frame.bytes));
    }
    object
}

/// Payload and Private Data are shown by their length only. The field `bytes` of the frame has
/// their content.
fn field(field: &Field) -> Json {
    let value = match &field.value {
        Value::Number(number) => json!(number),
        Value::Name(number) => json!(format!("{number:#x}")),
        Value::Words(words) => json!(words),
        Value::Bytes if field.bytes.len() <= 4 => json!(digits(&field.bytes)),
        Value::Bytes => Json::Null,
    };
    json!({ "name": field.name, "at": field.at, "len": field.bytes.len(), "value": value })
}

fn finding(finding: &Finding) -> Json {
    let (rfc, section) = finding.section();
    json!({
        "requirement": finding.id(),
        "rfc": rfc,
        "section": section,
        "text": finding.text(),
    })
}

/// Returns the object of the summary: the connections, and the totals of the file.
pub(super) fn summary<'a>(
    totals: Option<&Totals>,
    connections: impl Iterator<Item = &'a ConnectionSummary>,
) -> Json {
    let connections: Vec<Json> = connections.map(connection).collect();
    let mut summary = json!({ "connections": connections });
    if let Some(totals) = totals {
        for (name, count) in [
            ("packets", totals.packets),
            ("tcp_packets", totals.tcp_packets),
            ("ip_fragments", totals.fragments),
            ("mpa_connections", totals.connections),
            ("other_connections", totals.others),
            ("let_go", totals.dropped),
            ("fpdus", totals.fpdus),
            ("bytes", totals.bytes),
            ("findings", totals.findings),
        ] {
            summary[name] = json!(count);
        }
        summary["by_requirement"] = json!(totals.by_id);
    }
    json!({ "summary": summary })
}

fn connection(connection: &ConnectionSummary) -> Json {
    let startup = |frame: &Option<Startup>| frame.map(|frame| frame.to_string());
    let directions: Vec<Json> = connection.directions.iter().map(direction).collect();
    json!({
        "connection": connection.number,
        "request": startup(&connection.request),
        "reply": startup(&connection.reply),
        "directions": directions,
        "findings": connection.findings,
    })
}

fn direction(direction: &Direction) -> Json {
    let segments = &direction.segments;
    json!({
        "from": direction.from.to_string(),
        "fpdus": direction.fpdus,
        "bytes": direction.bytes,
        "segments": segments.segments,
        "sent_again": segments.repeated,
        "out_of_order": segments.early,
        "outside_window": segments.stray,
        "missing_bytes": segments.missing,
    })
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
