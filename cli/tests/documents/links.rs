//! Checks that links lead to files and headings, and that paths in code spans name files.

use std::path::Path;

use crate::pages::{files, pages, prose, root, spans, text};

/// Returns the targets of the links in Markdown, `[text](target)`.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(str::to_owned)
        .collect()
}

/// Returns the anchor that renderers make of a heading.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    prose(text)
        .lines()
        .any(|line| line.starts_with('#') && anchor(line) == wanted)
        || text.contains(&format!("id=\"{wanted}\""))
}

/// Returns the path of a link target from the root of the repository, without `..`. The target is
/// relative to its page.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for page in pages() {
        let own = text(&page);
        for target in targets(&own) {
            if target.contains("://") {
                continue;
            }
            let (path, heading) = target.split_once('#').unwrap_or((&target, ""));
            let file = match path {
                "" => page.clone(),
                _ => resolved(&page, path),
            };
            let is_there = root().join(&file).exists();
            let is_headed = heading.is_empty()
                || Path::new(&file).extension().is_none_or(|kind| kind != "md")
                || (is_there && has_anchor(&text(&file), heading));
            if !is_there || !is_headed {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// `./ci.sh book` makes a site of the pages that docs/README.md lists.
#[test]
fn pages_of_the_site_link_to_pages_of_the_site() {
    let linked = |page: &str| -> Vec<String> {
        targets(&text(page))
            .into_iter()
            .filter(|target| !target.contains("://"))
            .filter_map(|target| Some(target.split('#').next()?.to_owned()))
            .filter(|path| path.ends_with(".md"))
            .map(|path| resolved(page, &path))
            .collect()
    };
    const INDEX: &str = "docs/README.md";
    let mut site = linked(INDEX);
    site.push(INDEX.to_owned());
    let mut missing = Vec::new();
    for page in &site {
        for target in linked(page) {
            if !site.contains(&target) {
                missing.push(format!("{page} links to {target}"));
            }
        }
    }
    assert!(
        missing.is_empty(),
        "{INDEX} does not list these pages:\n{}",
        missing.join("\n")
    );
}

/// Returns true if a code span is written like the path of a file or folder of the repository.
fn is_like_a_path(span: &str) -> bool {
    const KINDS: [&str; 11] = [
        ".rs", ".md", ".toml", ".sh", ".py", ".c", ".h", ".csv", ".txt", ".svg", "/",
    ];
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    // `NAME` is a placeholder. Pages may name a source file without its folder.
    (span.contains('/') || span.ends_with(".rs"))
        && !span.contains("NAME")
        && span.chars().all(plain)
        && !span.starts_with(['/', '.'])
        && KINDS.iter().any(|kind| span.ends_with(kind))
}

/// A path may omit its first folders. For example, ARCHITECTURE.md names files within the crate
/// that it describes.
#[test]
fn paths_in_code_spans_exist() {
    // These paths are created by commands on the pages, or are examples of a user's own files.
    const MADE: [&str; 4] = [
        "target/",
        "fuzz/artifacts/",
        "fuzz/corpus/",
        "conformance-siw/",
    ];
    let files = files();
    let mut missing = Vec::new();
    for page in pages() {
        for span in spans(&text(&page)) {
            if !is_like_a_path(&span) || MADE.iter().any(|made| span.starts_with(made)) {
                continue;
            }
            let inside = format!("/{span}");
            let found = files.iter().any(|file| {
                let file = format!("/{file}");
                match span.ends_with('/') {
                    true => file.contains(&inside),
                    false => file.ends_with(&inside),
                }
            });
            if !found {
                missing.push(format!("{page}: {span}"));
            }
        }
    }
    assert!(missing.is_empty(), "no such files:\n{}", missing.join("\n"));
}

#[test]
fn anchors_are_those_of_common_renderers() {
    assert_eq!(anchor("## TCP/IP in user space"), "tcpip-in-user-space");
    assert_eq!(resolved("docs/a.md", "../b/c.md"), "b/c.md");
}
