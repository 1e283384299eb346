//! Text output of `uwarp dump`.

use std::time::Duration;

use uwarp_capture::decode::{ConnectionSummary, Direction, Field, Frame, Totals, Value};

/// Number of bytes in a line of a hexdump.
const WIDTH: usize = 16;

/// Formats the line of a frame. `since`: time since the first packet.
pub(super) fn frame(frame: &Frame, since: Duration) -> String {
    format!("{:>11.6} {frame}", since.as_secs_f64())
}

/// Formats the bytes of a frame, field by field, 16 bytes per line.
pub(super) fn fields(frame: &Frame) -> Vec<String> {
    frame.fields().iter().flat_map(field).collect()
}

fn field(field: &Field) -> Vec<String> {
    let is_plain = field.value == Value::Bytes;
    let mut lines = Vec::new();
    for (index, chunk) in field.bytes.chunks(WIDTH).enumerate() {
        let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let says = match (index, is_plain) {
            (0, false) => format!("{}: {}", field.name, value(&field.value)),
            (0, true) => format!("{}  {}", field.name, characters(chunk)),
            (_, true) => format!("{:len$}  {}", "", characters(chunk), len = field.name.len()),
            (_, false) => String::new(),
        };
        let at = field.at + index * WIDTH;
        let line = format!("    {at:04x}  {:<47}  {says}", hex.join(" "));
        lines.push(line.trim_end().to_owned());
    }
    lines
}

fn value(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Name(number) => format!("{number:#x}"),
        Value::Words(words) => words.clone(),
        Value::Bytes => String::new(),
    }
}

fn characters(bytes: &[u8]) -> String {
    let shown = bytes.iter().map(|byte| match byte {
        0x20..=0x7E => char::from(*byte),
        _ => '.',
    });
    shown.collect()
}

/// Returns the lines of the summary: the connections, and the totals of the file.
pub(super) fn summary<'a>(
    totals: Option<&Totals>,
    connections: impl Iterator<Item = &'a ConnectionSummary>,
) -> Vec<String> {
    let mut lines = vec![String::new()];
    for connection in connections {
        lines.push(self::connection(connection));
        lines.extend(connection.directions.iter().filter_map(direction));
    }
    lines.extend(totals.map_or_else(Vec::new, whole));
    lines
}

/// Returns the last lines of the summary, with the totals of all connections.
fn whole(totals: &Totals) -> Vec<String> {
    let mut lines = Vec::new();
    let (with, others) = (totals.connections, totals.others);
    lines.push(format!(
        "{} ({} without TCP), {} with MPA, {others} without: {} with {} of ULPDU",
        many(totals.packets, "packet"),
        totals.packets - totals.tcp_packets,
        many(with, "connection"),
        many(totals.fpdus, "FPDU"),
        many(totals.bytes, "byte"),
    ));
    if totals.fragments > 0 {
        lines.push(format!(
            "{} not reassembled: the bytes in them are missing",
            many(totals.fragments, "IP fragment")
        ));
    }
    if totals.dropped > 0 {
        lines.push(format!(
            "{} dropped before the end, because too many were open at once; later packets of one count as a new connection",
            many(totals.dropped, "connection")
        ));
    }
    for (id, count) in &totals.by_id {
        lines.push(format!("  {count:>6} x {id}"));
    }
    lines.push(match totals.findings {
        0 if with == 0 => "no connection with MPA was found: nothing was checked".to_owned(),
        0 => "nothing breaks the RFCs".to_owned(),
        count => format!("{} that break the RFCs", many(count, "finding")),
    });
    lines
}

fn connection(connection: &ConnectionSummary) -> String {
    let [first, second] = &connection.directions;
    let mut line = format!("#{} {} > {}", connection.number, first.from, second.from);
    match (&connection.request, &connection.reply) {
        (Some(request), Some(reply)) if reply.rejected() => {
            line.push_str(&format!(": revision {}, rejected", request.revision));
        }
        (Some(request), Some(reply)) => {
            let crc = request.crc() || reply.crc();
            line.push_str(&format!(
                ": revision {}, {}, Markers {}",
                reply.revision,
                if crc { "CRC" } else { "no CRC" },
                match (reply.markers(), request.markers()) {
                    (false, false) => "none",
                    (true, false) => "to the responder",
                    (false, true) => "to the initiator",
                    (true, true) => "both ways",
                }
            ));
        }
        (Some(_), None) => line.push_str(": no Reply in the capture"),
        (None, _) => line.push_str(": no Request in the capture"),
    }
    line.push_str(&format!("; {}", many(connection.findings, "finding")));
    line
}

/// Formats the line of one direction of a connection, or returns `None` if it carried nothing.
fn direction(direction: &Direction) -> Option<String> {
    let segments = &direction.segments;
    let odd = segments.repeated + segments.early + segments.stray + segments.missing;
    if direction.fpdus + odd == 0 {
        return None;
    }
    let mut line = format!(
        "   {}: {} with {} in {}",
        direction.from,
        many(direction.fpdus, "FPDU"),
        many(direction.bytes, "byte"),
        many(segments.segments, "segment"),
    );
    for (count, what) in [
        (segments.repeated, "sent again"),
        (segments.early, "out of order"),
        (segments.stray, "outside the window"),
    ] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    if segments.missing > 0 {
        let missing = many(segments.missing, "byte");
        line.push_str(&format!("; {missing} not in the capture"));
    }
    Some(line)
}

fn many(count: u64, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{} {what}s", crate::output::grouped(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_bytes_shows_them_as_characters_and_a_number_says_it() {
        let mut payload = Field {
            name: "payload",
            at: 16,
            bytes: b"0123456789abcdefgh\0".to_vec(),
            value: Value::Bytes,
        };
        assert_eq!(
            field(&payload),
            [
                "    0010  30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66  payload  0123456789abcdef",
                "    0020  67 68 00                                                  gh."
            ]
        );
        payload.bytes.truncate(4);
        payload.value = Value::Name(0x3031_3233);
        assert!(field(&payload)[0].ends_with("  payload: 0x30313233"));
    }
}
