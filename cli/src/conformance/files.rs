//! Report files of a run.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;
use uwarp_conformance::Outcome;
use uwarp_conformance::report::{About, html, json, junit, pcaps};

use crate::failure::{Failure, Report};
use crate::output::Output;

/// Options that select the files, and the name of the target in them.
#[derive(Args, Debug)]
#[command(next_help_heading = "Reports")]
pub(super) struct Files {
    /// Write the outcomes to FILE as JSON; `-` is stdout
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the outcomes to FILE as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write the outcomes to FILE as an HTML page, with the wire log of each case that did not pass
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show another target on the HTML page: the file that an earlier run wrote with --json
    #[arg(long, value_name = "FILE", requires = "html")]
    beside: Vec<PathBuf>,
    /// Write a pcapng file into DIR for each case that fails
    #[arg(long, value_name = "DIR")]
    pcaps: Option<PathBuf>,
    /// Name of the target in these files [default: its address]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

/// Report files of a run, checked and created before it starts, so that a wrong path is found
/// early.
pub(super) struct Ready<'a> {
    files: &'a Files,
    /// Outcomes of other targets, read from the files of `--beside`.
    beside: Vec<Value>,
}

impl Files {
    /// Returns true if stdout is reserved for the JSON document.
    pub(super) fn have_stdout(&self) -> bool {
        self.json.as_deref().is_some_and(is_stdout)
    }

    /// Reads the input files and creates the output files. A wrong path must be found now, because
    /// a run takes minutes.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(super) fn ready(&self) -> Result<Ready<'_>, Failure> {
        let beside: Result<_, _> = self.beside.iter().map(|path| read_json(path)).collect();
        let beside = beside?;
        if [&self.junit, &self.html]
            .into_iter()
            .flatten()
            .any(|path| is_stdout(path))
        {
            let report = Report::new("stdout is for --json alone");
            return Err(Failure::Usage(report.advice("give the name of a file")));
        }
        for path in [&self.json, &self.junit, &self.html].into_iter().flatten() {
            if !is_stdout(path) {
                let made = OpenOptions::new().create(true).append(true).open(path);
                made.map_err(|error| Failure::Usage(unwritable(path, &error)))?;
            }
        }
        if let Some(path) = &self.pcaps {
            let made = std::fs::create_dir_all(path);
            made.map_err(|error| Failure::Usage(unwritable(path, &error)))?;
        }
        Ok(Ready {
            files: self,
            beside,
        })
    }
}

impl Ready<'_> {
    /// Writes the files. `target`: name of the target, which `--name` overrides. `seed`: seed of
    /// the run.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(
        &self,
        target: &str,
        seed: u64,
        outcomes: &[Outcome],
    ) -> Result<(), Failure> {
        let files = self.files;
        let about = About::now(files.name.as_deref().unwrap_or(target), seed);
        if let Some(path) = &files.json {
            let text = json(&about, outcomes).to_string();
            if is_stdout(path) {
                Output::Stdout.line(text)?;
            } else {
                write_file(path, &text)?;
            }
        }
        if let Some(path) = &files.junit {
            write_file(path, &junit(&about.target, outcomes))?;
        }
        if let Some(path) = &files.html {
            let mut runs = vec![json(&about, outcomes)];
            runs.extend(self.beside.iter().cloned());
            write_file(path, &html(&runs))?;
        }
        if let Some(path) = &files.pcaps {
            pcaps(path, outcomes).map_err(|error| unwritable(path, &error))?;
        }
        Ok(())
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| unwritable(path, &error).into())
}

fn unwritable(path: &Path, error: &std::io::Error) -> Report {
    Report::new(format!("{} cannot be written: {error}", path.display()))
        .advice("use an existing directory that you may write to")
}

fn read_json(path: &Path) -> Result<Value, Failure> {
    let unusable = |error: String| {
        let what = format!("{} cannot be used: {error}", path.display());
        let expected = "a file that `uwarp conformance --json` wrote";
        Failure::Usage(Report::new(what).expected(expected))
    };
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let run: Value = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if run["cases"].is_array() {
        Ok(run)
    } else {
        Err(unusable("it has no cases".into()))
    }
}
