//! One HTML file: a matrix of cases and targets, and behind each case its wire log. It needs nothing else to be shown.

use serde_json::Value;

const PAGE: &str = include_str!("page.html");

/// The page of some runs, each a document of [`json`](super::json); the targets stand side by side.
#[must_use]
pub fn html(runs: &[Value]) -> String {
    // In a script, `</` would end it, whatever the quotes around it.
    let data = Value::Array(runs.to_vec())
        .to_string()
        .replace("</", "<\\/");
    PAGE.replacen("\"RUNS\"", &data, 1)
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
}
