//! Shell completions and manual pages, generated from the declaration of the options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::{Shell, generate};

use crate::failure::{Failure, Report};
use crate::output::Output;

/// Options of `uwarp completions`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    uwarp completions bash >~/.local/share/bash-completion/completions/uwarp")]
pub(crate) struct CompletionOptions {
    /// Shell that reads the completions
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Options of `uwarp man`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    uwarp man ~/.local/share/man/man1\n  \
    man uwarp-rping")]
pub(crate) struct ManOptions {
    /// Directory for the pages, one for each subcommand; it is created if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Prints the completions for a shell.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn completions(
    options: &CompletionOptions,
    mut command: Command,
) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(options.shell, &mut command, "uwarp", &mut script);
    Output::Stdout.line(String::from_utf8_lossy(&script).trim_end())
}

/// Writes the manual pages and prints the path of each.
///
/// # Errors
/// The directory or a page cannot be written.
pub(crate) fn manual(options: &ManOptions, command: Command) -> Result<(), Failure> {
    let directory = &options.directory;
    fs::create_dir_all(directory).map_err(|error| cannot_write(directory, &error))?;
    // `build` would add the subcommand `help`. The command's page would then refer to a page that
    // is not written.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut written = Vec::new();
    for page in pages(&command) {
        let path = directory.join(page.get_filename());
        let mut text = Vec::new();
        let made = page.render(&mut text).and_then(|()| fs::write(&path, text));
        made.map_err(|error| cannot_write(&path, &error))?;
        written.push(path.display().to_string());
    }
    Output::Stdout.line(written.join("\n"))
}

/// Creates a page for the command and one for each subcommand, `uwarp-rping` for `uwarp rping`.
fn pages(command: &Command) -> Vec<clap_mangen::Man> {
    let parts = command.get_subcommands().map(|part| {
        let name = format!("uwarp-{}", part.get_name());
        part.clone().display_name(name)
    });
    let all = std::iter::once(command.clone()).chain(parts);
    all.map(clap_mangen::Man::new).collect()
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    Report::new(format!("{} cannot be written: {error}", path.display()))
        .advice("use a directory that you may write to")
        .into()
}
