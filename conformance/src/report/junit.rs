//! Report as JUnit XML, for CI systems.

use crate::run::{Outcome, Verdict};

/// Formats a run as one test suite. The case id is the name of a test, and layer and section are
/// its class.
#[must_use]
pub fn junit(target: &str, outcomes: &[Outcome]) -> String {
    let failed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome.verdict, Verdict::Fail(_) | Verdict::Unexpected(_)));
    let errors = outcomes
        .iter()
        .filter(|outcome| matches!(outcome.verdict, Verdict::Infrastructure(_)));
    let skipped = outcomes.iter().filter(|outcome| {
        matches!(
            outcome.verdict,
            Verdict::Skipped(_) | Verdict::Deviation(..)
        )
    });
    let seconds: f64 = outcomes
        .iter()
        .map(|outcome| outcome.millis as f64 / 1e3)
        .sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"uwarp-conformance {}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{seconds:.3}\">\n",
        escape(target),
        outcomes.len(),
        failed.count(),
        errors.count(),
        skipped.count(),
    );
    for outcome in outcomes {
        text.push_str(&case(outcome));
    }
    text.push_str("</testsuite>\n");
    text
}

fn case(outcome: &Outcome) -> String {
    let class = outcome.id.rsplit_once('/').map_or("", |(class, _)| class);
    let head = format!(
        "  <testcase classname=\"{}\" name=\"{} {}\" time=\"{:.3}\"",
        escape(class),
        escape(&outcome.id),
        escape(&outcome.rule),
        outcome.millis as f64 / 1e3
    );
    let inside = match &outcome.verdict {
        Verdict::Pass => return format!("{head}/>\n"),
        Verdict::Fail(failure) => format!(
            "<failure message=\"{}\">{}</failure>",
            escape(&format!(
                "expected {}; received {}",
                failure.expected, failure.received
            )),
            escape(&super::failure(outcome))
        ),
        Verdict::Unexpected(reason) => format!(
            "<failure message=\"the known deviation no longer shows\">{}</failure>",
            escape(reason)
        ),
        Verdict::Skipped(reason) => format!("<skipped message=\"{}\"/>", escape(reason)),
        Verdict::Deviation(reason, _) => {
            format!("<skipped message=\"known deviation: {}\"/>", escape(reason))
        }
        Verdict::Infrastructure(what) => format!("<error message=\"{}\"/>", escape(what)),
    };
    format!("{head}>{inside}</testcase>\n")
}

/// Escapes text for XML and HTML. Replaces characters that XML does not allow with question marks.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            other if other.is_control() => escaped.push('?'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_so_that_xml_stays_whole() {
        assert_eq!(escape("a<b & \"c\"\u{1}"), "a&lt;b &amp; &quot;c&quot;?");
    }
}
