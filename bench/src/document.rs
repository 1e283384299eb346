//! A document of which parts are written by the bench, and the rest by people.
//!
//! A part stands between two lines, `<!-- bench: NAME -->` and `<!-- end of NAME -->`.

use std::io;
use std::path::Path;

/// Replaces parts of a document. All of them have to be there.
pub(crate) fn write(path: &Path, parts: &[(&str, String)]) -> io::Result<()> {
    let mut text = std::fs::read_to_string(path)?;
    for (name, body) in parts {
        text = put(&text, name, body).ok_or_else(|| {
            io::Error::other(format!(
                "{}: no lines <!-- bench: {name} --> and <!-- end of {name} -->",
                path.display()
            ))
        })?;
    }
    std::fs::write(path, text)
}

fn put(text: &str, name: &str, body: &str) -> Option<String> {
    let begin = format!("<!-- bench: {name} -->\n");
    let end = format!("<!-- end of {name} -->\n");
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{}\n\n{end}{after}", body.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "by hand\n<!-- bench: a -->\nold\n<!-- end of a -->\nby hand, too\n";

    #[test]
    fn a_part_is_replaced_and_the_prose_stays() {
        let text = put(TEXT, "a", "new\n").unwrap();
        assert_eq!(
            text,
            "by hand\n<!-- bench: a -->\n\nnew\n\n<!-- end of a -->\nby hand, too\n"
        );
        assert_eq!(put(&text, "a", "new").unwrap(), text);
    }

    #[test]
    fn a_part_that_is_not_there_is_an_error() {
        assert_eq!(put(TEXT, "b", "new"), None);
        let backwards = "<!-- end of a -->\n<!-- bench: a -->\n";
        assert_eq!(put(backwards, "a", "new"), None);
    }

    #[test]
    fn the_document_of_the_repository_has_all_parts() {
        let text = include_str!("../../docs/performance.md");
        for name in [
            "machine", "targets", "tables", "peers", "siw", "scale", "smol", "dropin",
        ] {
            assert!(put(text, name, "").is_some(), "{name}");
        }
    }
}
