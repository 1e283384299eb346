//! One HTML file: a matrix of cases and targets, and behind each case that did not pass its wire log. It needs nothing else
//! to be shown.

use serde_json::Value;

const PAGE: &str = include_str!("page.html");

/// Digits of octets without names that the page shows, and one octet more, by which it knows that there are more.
const DIGITS: usize = 2 * 257;
/// Digits of a field that it shows.
const FIELD: usize = 48;

/// The page of some runs, each a document of [`json`](super::json); the targets stand side by side.
#[must_use]
pub fn html(runs: &[Value]) -> String {
    let mut runs = runs.to_vec();
    for run in &mut runs {
        for case in run["cases"].as_array_mut().into_iter().flatten() {
            if case["verdict"] == "pass" {
                // The logs of passed cases would be most of the page; the JSON document has them.
                case["log"] = Value::Array(Vec::new());
            }
            for entry in case["log"].as_array_mut().into_iter().flatten() {
                slim(entry);
            }
        }
    }
    // In a script, `</` would end it, whatever the quotes around it.
    let data = Value::Array(runs).to_string().replace("</", "<\\/");
    PAGE.replacen("\"RUNS\"", &data, 1)
}

/// What is not shown is not there: a page has the logs of thousands of cases.
fn slim(entry: &mut Value) {
    let fields = entry["fields"].as_array_mut();
    let named = fields.as_ref().is_some_and(|fields| !fields.is_empty());
    for field in fields.into_iter().flatten() {
        cut(&mut field["octets"], FIELD);
    }
    cut(&mut entry["octets"], if named { 0 } else { DIGITS });
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

    #[test]
    fn data_cannot_end_the_script() {
        let page = html(&[json!({"target": "</script><b>", "cases": []})]);
        assert!(!page.contains("</script><b>"));
        assert!(page.contains("<\\/script><b>"));
        assert!(!page.contains("\"RUNS\""));
    }

    #[test]
    fn a_passed_case_has_no_log_and_another_one_has() {
        let entry = json!({"text": "Send on QN 0", "octets": "ab", "fields": []});
        let of = |verdict: &str| json!({"verdict": verdict, "log": [entry]});
        let page = |case| html(&[json!({"target": "t", "cases": [case]})]);
        assert!(!page(of("pass")).contains("Send on QN 0"));
        assert!(page(of("fail")).contains("Send on QN 0"));
    }

    #[test]
    fn octets_that_are_not_shown_are_left_out() {
        let entry = |fields| json!({"octets": "ab".repeat(1000), "fields": fields});
        let mut named = entry(json!([{"name": "payload", "octets": "ab".repeat(1000)}]));
        slim(&mut named);
        assert_eq!(named["octets"], "");
        assert_eq!(named["fields"][0]["octets"], "ab".repeat(FIELD / 2));
        let mut bare = entry(json!([]));
        slim(&mut bare);
        assert_eq!(bare["octets"], "ab".repeat(DIGITS / 2));
    }
}
