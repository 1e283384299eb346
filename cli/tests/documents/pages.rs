//! Markdown files of the repository, with their code blocks and code spans.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("cli/ is in the repository")
        .to_owned()
}

/// Returns the paths, from the root, of all files that git does not ignore. Outside of a git
/// checkout, returns all files except those in target directories.
pub(crate) fn files() -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    if let Ok(listed) = listed
        && listed.status.success()
    {
        let text = String::from_utf8(listed.stdout).expect("paths are UTF-8");
        return text
            .lines()
            .filter(|path| root().join(path).exists())
            .map(str::to_owned)
            .collect();
    }
    let mut found = Vec::new();
    collect(&root(), Path::new(""), &mut found);
    found
}

fn collect(root: &Path, below: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(below)).expect("the tree is readable") {
        let entry = entry.expect("the tree is readable");
        let path = below.join(entry.file_name());
        if entry.file_type().expect("files have a type").is_dir() {
            if entry.file_name() != "target" && entry.file_name() != ".git" {
                collect(root, &path, found);
            }
        } else {
            found.push(path.to_string_lossy().into_owned());
        }
    }
}

/// Returns the paths of all Markdown files, from the root.
pub(crate) fn pages() -> Vec<String> {
    let mut pages = files();
    pages.retain(|path| path.ends_with(".md"));
    assert!(pages.len() > 20, "{pages:?}");
    pages
}

pub(crate) fn text(page: &str) -> String {
    std::fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// A fenced code block.
#[derive(Debug)]
pub(crate) struct Block {
    /// Line number of the opening fence, counted from 1.
    pub(crate) line: usize,
    /// Language after the opening fence; empty if there is none.
    pub(crate) language: String,
    pub(crate) lines: Vec<String>,
}

impl Block {
    /// Returns the commands of the block without comments and prompts. A line that ends with `\`
    /// continues on the next line.
    pub(crate) fn commands(&self) -> Vec<String> {
        let mut commands: Vec<String> = Vec::new();
        let mut continues = false;
        for line in &self.lines {
            let line = match self.language.as_str() {
                "console" => match line.strip_prefix("$ ") {
                    Some(command) => command,
                    None if continues => line,
                    None => continue,
                },
                _ => line,
            };
            let line = line.split("  #").next().unwrap_or_default().trim();
            let (line, more) = match line.strip_suffix('\\') {
                Some(line) => (line.trim_end(), true),
                None => (line, false),
            };
            match commands.last_mut() {
                Some(last) if continues => {
                    last.push(' ');
                    last.push_str(line);
                }
                _ if line.is_empty() || line.starts_with('#') => {}
                _ => commands.push(line.to_owned()),
            }
            continues = more;
        }
        commands
    }

    /// Returns the lines that a console block shows as output.
    pub(crate) fn output(&self) -> Vec<&str> {
        let mut output = Vec::new();
        let mut continues = false;
        for line in &self.lines {
            let is_command = continues || line.starts_with("$ ");
            continues = is_command && line.ends_with('\\');
            if self.language == "console" && !is_command && !line.trim().is_empty() {
                output.push(line.as_str());
            }
        }
        output
    }
}

/// Returns the fenced code blocks of a page, in their order.
pub(crate) fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some((block, _))) => blocks.push(block),
            (Some(language), None) => {
                let block = Block {
                    line: number + 1,
                    language: language.trim().to_owned(),
                    lines: Vec::new(),
                };
                open = Some((block, indent));
            }
            (None, Some((mut block, indent))) => {
                block
                    .lines
                    .push(line.get(indent..).unwrap_or("").to_owned());
                open = Some((block, indent));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a code block is not closed");
    blocks
}

/// Returns the text of a page without its fenced code blocks.
pub(crate) fn prose(text: &str) -> String {
    let mut inside = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            prose.push_str(line);
        }
        prose.push('\n');
    }
    prose
}

/// Returns the code spans of a page, each without line breaks.
pub(crate) fn spans(text: &str) -> Vec<String> {
    prose(text)
        .split("\n\n")
        .flat_map(|paragraph| {
            paragraph
                .split('`')
                .skip(1)
                .step_by(2)
                .map(|span| span.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn blocks_have_their_commands_and_output() {
    let text = "text\n```console\n$ one \\\n  two  # why\nsaid\n$ three &\n```\n\n  ```sh\n  four\n  ```\n";
    let blocks = blocks(text);
    assert_eq!(blocks[0].commands(), ["one two", "three &"]);
    assert_eq!(blocks[0].output(), ["said"]);
    assert_eq!((blocks[1].line, &*blocks[1].language), (9, "sh"));
    assert_eq!(blocks[1].commands(), ["four"]);
    assert_eq!(spans("a `b c` d `e\nf`\n\n`g`"), ["b c", "e f", "g"]);
}
