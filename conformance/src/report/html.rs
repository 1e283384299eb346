//! Report as one self-contained HTML file: a matrix of cases and targets, and the wire log of each
//! case that did not pass.

use serde_json::Value;

const PAGE: &str = include_str!("page.html");

/// Maximum number of hexadecimal digits that are kept for data without fields. The page shows 256
/// bytes; one more byte lets it detect that the data is longer.
const DIGITS: usize = 2 * 257;
/// Maximum number of hexadecimal digits that the page shows for a field.
const FIELD: usize = 48;

/// Builds the page for one or more runs, with the targets side by side. Each run is a document from
/// [`json`](super::json).
#[must_use]
pub fn html(runs: &[Value]) -> String {
    let mut runs = runs.to_vec();
    for run in &mut runs {
        for case in run["cases"].as_array_mut().into_iter().flatten() {
            if case["verdict"] == "pass" {
                // Logs of passed cases would be the largest part of the page. The JSON document
                // keeps them.
                case["log"] = Value::Array(Vec::new());
            }
            for entry in case["log"].as_array_mut().into_iter().flatten() {
                slim(entry);
            }
        }
    }
    // `</` would end the script element, even inside a string.
    let data = Value::Array(runs).to_string().replace("</", "<\\/");
    PAGE.replacen("\"RUNS\"", &data, 1)
}

/// Removes data that the page does not show, because a page contains the logs of thousands of
/// cases.
fn slim(entry: &mut Value) {
    let fields = entry["fields"].as_array_mut();
    let named = fields.as_ref().is_some_and(|fields| !fields.is_empty());
    for field in fields.into_iter().flatten() {
        cut(&mut field["bytes"], FIELD);
    }
    cut(&mut entry["bytes"], if named { 0 } else { DIGITS });
}

fn cut(digits: &mut Value, to: usize) {
    if let Value::String(digits) = digits
        && digits.is_char_boundary(to.min(digits.len()))
    {
        digits.truncate(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Checks only that the style rules for a narrow page are present, because no browser is
    /// available.
    #[test]
    fn at_the_width_of_a_phone_the_verdict_is_beside_the_id() {
        assert!(
            PAGE.contains(
                "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
            )
        );
        // The cells have the class names that the style rules refer to.
        for class in ["id", "level", "rule", "verdict "] {
            assert!(
                PAGE.contains(&format!("element(\"td\", {{ class: \"{class}\"")),
                "{class}"
            );
        }
        let (_, narrow) = PAGE.split_once("@media (max-width: 45rem) {\n").unwrap();
        let (narrow, _) = narrow.split_once("\n}\n").unwrap();
        for rule in [
            "body { padding: .6rem; overflow-wrap: anywhere; }",
            "tr.case { display: grid; grid-template-columns: 1fr auto; }",
            "td.id { grid-area: 1 / 1; white-space: normal; }",
            "td.verdict { grid-area: 1 / 2; text-align: right; }",
            ".many td.verdict { grid-area: auto; grid-column: 1 / -1; text-align: left; }",
        ] {
            assert!(narrow.contains(rule), "{rule}");
        }
    }

    #[test]
    fn data_cannot_end_the_script() {
        let page = html(&[json!({"target": "</script><b>", "cases": []})]);
        assert!(!page.contains("</script><b>"));
        assert!(page.contains("<\\/script><b>"));
        assert!(!page.contains("\"RUNS\""));
    }

    #[test]
    fn a_passed_case_has_no_log_and_another_one_has() {
        let entry = json!({"text": "Send on QN 0", "bytes": "ab", "fields": []});
        let of = |verdict: &str| json!({"verdict": verdict, "log": [entry]});
        let page = |case| html(&[json!({"target": "t", "cases": [case]})]);
        assert!(!page(of("pass")).contains("Send on QN 0"));
        assert!(page(of("fail")).contains("Send on QN 0"));
    }

    #[test]
    fn bytes_that_are_not_shown_are_left_out() {
        let entry = |fields| json!({"bytes": "ab".repeat(1000), "fields": fields});
        let mut named = entry(json!([{"name": "payload", "bytes": "ab".repeat(1000)}]));
        slim(&mut named);
        assert_eq!(named["bytes"], "");
        assert_eq!(named["fields"][0]["bytes"], "ab".repeat(FIELD / 2));
        let mut bare = entry(json!([]));
        slim(&mut bare);
        assert_eq!(bare["bytes"], "ab".repeat(DIGITS / 2));
    }
}
