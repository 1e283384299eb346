//! The report of the bench: a Markdown file with one section for each measured part.

use std::io;
use std::path::Path;

/// Writes sections, each a heading and a text, into the report at `path`. Creates the file if it
/// does not exist. A section with the same heading is replaced. Other sections remain.
pub(crate) fn write(path: &Path, sections: &[(&str, String)]) -> io::Result<()> {
    let mut report = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "# Report of the bench\n".into(),
        read => read?,
    };
    for (heading, text) in sections {
        report = put(&report, heading, text);
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, report)
}

fn put(report: &str, heading: &str, text: &str) -> String {
    let begin = format!("\n## {heading}\n");
    let (before, rest) = report.split_once(&begin).unwrap_or((report, ""));
    let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
    format!("{before}{begin}\n{}\n{after}", text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "# Title\n\n## A\n\nold\n\n### Table\n\n## B\n\nother\n";

    #[test]
    fn a_section_is_replaced_and_the_others_stay() {
        let report = put(REPORT, "A", "new\n");
        assert_eq!(report, "# Title\n\n## A\n\nnew\n\n## B\n\nother\n");
        assert_eq!(put(&report, "A", "new"), report);
    }

    #[test]
    fn a_section_that_is_not_there_is_appended() {
        assert_eq!(put(REPORT, "C", "new"), format!("{REPORT}\n## C\n\nnew\n"));
    }

    #[test]
    fn a_report_that_does_not_exist_is_made() {
        let folder = std::env::temp_dir().join(format!("uwarp-bench-{}", std::process::id()));
        let path = folder.join("reports/performance.md");
        write(&path, &[("A", "figures".to_owned())]).unwrap();
        let report = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(report, "# Report of the bench\n\n## A\n\nfigures\n");
    }
}
