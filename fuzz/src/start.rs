//! Entry point of a target's binary. Under cargo-fuzz it adds the committed seeds and the
//! dictionary to libFuzzer's arguments. On stable the binary runs the inputs that its arguments
//! name.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs, io};

use crate::Target;

/// Environment variable of a process that already has the complete arguments. Workers that
/// libFuzzer starts inherit it.
const COMPLETE: &str = "UWARP_FUZZ_ARGUMENTS_COMPLETE";

/// Defines `main` of a target: either that of libFuzzer, or that of a program that runs the given
/// inputs.
#[macro_export]
macro_rules! binary {
    ($name:ident) => {
        #[cfg(fuzzing)]
        ::libfuzzer_sys::fuzz_target!(
            init: $crate::start::with_seeds_and_dictionary(stringify!($name)),
            |data: &[u8]| $crate::$name::run(data)
        );

        #[cfg(not(fuzzing))]
        fn main() -> ::std::process::ExitCode {
            $crate::start::play(stringify!($name))
        }
    };
}

/// Adds the target's seeds and dictionary to the arguments and restarts this process, if libFuzzer
/// can use them. libFuzzer takes both only from its arguments, and cargo-fuzz passes neither.
///
/// # Panics
/// If the process cannot be restarted.
pub fn with_seeds_and_dictionary(target: &str) {
    if env::var_os(COMPLETE).is_some() {
        return;
    }
    let given: Vec<OsString> = env::args_os().skip(1).collect();
    let measures = env::var_os("LLVM_PROFILE_FILE").is_some();
    let more = missing(
        &given,
        Path::new(env!("CARGO_MANIFEST_DIR")),
        target,
        measures,
    );
    if more.is_empty() {
        return;
    }
    let program = env::current_exe().expect("the path of this program is known");
    let error = Command::new(program)
        .args(given)
        .args(more)
        .env(COMPLETE, "1")
        .exec();
    panic!("{target} cannot restart with its seeds: {error}");
}

/// Returns the arguments that libFuzzer lacks.
///
/// The dictionary is added unless `given` has one. The seeds are added if libFuzzer reads a corpus,
/// that is, if `given` names a directory. The seeds come after this directory, because libFuzzer
/// writes new inputs to the first one. A coverage run measures single files, so it gets each seed
/// as a file.
fn missing(given: &[OsString], fuzz: &Path, target: &str, measures: bool) -> Vec<OsString> {
    let is_option = |argument: &OsStr| argument.as_encoded_bytes().starts_with(b"-");
    let mut more = Vec::new();
    let dictionary = fuzz.join("dictionaries").join(format!("{target}.dict"));
    let has_dictionary = given
        .iter()
        .any(|argument| argument.as_encoded_bytes().starts_with(b"-dict="));
    if dictionary.is_file() && !has_dictionary {
        let mut option = OsString::from("-dict=");
        option.push(dictionary);
        more.push(option);
    }
    let seeds = fuzz.join("seeds").join(target);
    let reads_corpus = given
        .iter()
        .any(|argument| !is_option(argument) && Path::new(argument).is_dir());
    if reads_corpus && seeds.is_dir() {
        more.push(seeds.into());
    } else if measures && given.iter().any(|argument| !is_option(argument)) {
        more.extend(
            files(&seeds)
                .unwrap_or_default()
                .into_iter()
                .map(OsString::from),
        );
    }
    more
}

/// Runs the inputs that the arguments name. For a directory, runs all files in it.
#[must_use]
pub fn play(target: &str) -> ExitCode {
    let paths: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    if paths.is_empty() {
        eprintln!(
            "{target} runs inputs: name files or directories. To fuzz: cargo +nightly fuzz run {target}"
        );
        return ExitCode::from(2);
    }
    let run = Target::named(target).run;
    for path in paths {
        let inputs = if path.is_dir() {
            files(&path)
        } else {
            Ok(vec![path.clone()])
        };
        let played = inputs.and_then(|inputs| {
            inputs.iter().try_for_each(|input| {
                eprintln!("{}", input.display());
                fs::read(input).map(|data| run(&data))
            })
        });
        if let Err(error) = played {
            eprintln!("{} cannot be read: {error}", path.display());
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// Returns the files of a directory, sorted by path.
fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing_of(given: &[&str], target: &str, measures: bool) -> Vec<String> {
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
        missing(&given, fuzz, target, measures)
            .into_iter()
            .map(|argument| {
                let argument = argument.into_string().unwrap();
                argument.replace(&format!("{}/", fuzz.display()), "")
            })
            .collect()
    }

    #[test]
    fn a_run_over_a_corpus_reads_the_seeds_after_it_and_the_dictionary() {
        assert_eq!(
            missing_of(
                &["-runs=1", "-artifact_prefix=fuzz/artifacts/", "src"],
                "mpa_startup",
                false
            ),
            ["-dict=dictionaries/mpa_startup.dict", "seeds/mpa_startup"]
        );
    }

    #[test]
    fn a_dictionary_that_is_given_is_the_only_one() {
        assert_eq!(
            missing_of(&["-dict=mine", "src"], "mpa_startup", false),
            ["seeds/mpa_startup"]
        );
    }

    #[test]
    fn a_target_without_a_dictionary_gets_none() {
        assert_eq!(
            missing_of(&["src"], "verbs_ops", false),
            ["seeds/verbs_ops"]
        );
    }

    #[test]
    fn a_single_input_is_played_or_minimized_without_seeds() {
        assert!(missing_of(&["-minimize_crash=1", "Cargo.toml"], "verbs_ops", false).is_empty());
    }

    #[test]
    fn coverage_of_files_is_measured_with_each_seed() {
        let more = missing_of(&["Cargo.toml"], "verbs_ops", true);
        assert_eq!(
            more.len(),
            files(Path::new("seeds/verbs_ops")).unwrap().len()
        );
        assert!(
            more.contains(&"seeds/verbs_ops/stack-00".to_owned()),
            "{more:?}"
        );
    }

    #[test]
    fn help_and_other_options_alone_get_no_seeds() {
        assert!(missing_of(&["-help=1"], "verbs_ops", true).is_empty());
    }
}
