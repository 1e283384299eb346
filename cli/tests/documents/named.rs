//! Checks commands of Cargo and ci.sh in the pages: the parts, packages, tests and targets that
//! they name must exist.

use std::collections::BTreeSet;
use std::process::Command;

use crate::pages::{files, root, text};

/// Fails with the reason if a command names a part, package, test or target that does not exist.
pub(crate) fn check(command: &str) -> Result<(), String> {
    // Skips the variables before a command, which affect only how it is built.
    let command = command.replace("RUSTFLAGS=\"--cfg uwarp_mutants\" ", "");
    let words: Vec<&str> = command
        .split_whitespace()
        .skip_while(|word| word.contains('=') && !word.starts_with('-'))
        .filter(|word| *word != "+nightly")
        .collect();
    match words.as_slice() {
        ["./ci.sh", parts @ ..] => parts_exist(parts),
        ["cargo", "example", name, ..] => exists(&format!("examples/src/bin/{name}.rs")),
        ["cargo", "fuzz", "run" | "tmin" | "cmin", rest @ ..] => {
            let name = rest
                .iter()
                .find(|word| !word.starts_with('-') && !matches!(**word, "none" | "address"));
            let name = name.ok_or("it names no fuzz target")?;
            exists(&format!("fuzz/fuzz_targets/{name}.rs"))
        }
        ["cargo", "test" | "run" | "build" | "doc", rest @ ..] => cargo(rest),
        // The command before this one in the block builds the program.
        ["target/release/uwarp-bench", ..] => exists("dev/bench/src/main.rs"),
        ["cargo", "install", "cargo-fuzz", ..] | ["rustup", "toolchain", "install", "nightly"] => {
            Ok(())
        }
        _ => Err("nothing checks such a command".to_owned()),
    }
}

fn parts_exist(parts: &[&str]) -> Result<(), String> {
    let scripts = [
        "ci.sh",
        "fuzz/parts.sh",
        ".ci/targets.sh",
        ".ci/words.sh",
        ".ci/book.sh",
        ".ci/toolchain.sh",
        ".ci/supply.sh",
        ".ci/roots.sh",
    ];
    let scripts: String = scripts.iter().map(|script| text(script)).collect();
    let (first, rest) = parts.split_first().ok_or("it names no part")?;
    // The words after these parts are arguments. After any other part, each word is another part.
    let all = match *first {
        "interop" | "sim" | "bench" | "aarch64" | "instructions" | "roots" => &parts[..1],
        _ => parts,
    };
    for part in all {
        if !scripts.contains(&format!("part_{part}()")) {
            return Err(format!("ci.sh has no part '{part}'"));
        }
    }
    if *first == "sim" {
        let options = text("dev/sim/src/main.rs");
        for option in rest.iter().filter_map(|word| word.strip_prefix("--")) {
            if !options.contains(&format!("{}:", option.replace('-', "_"))) {
                return Err(format!("the simulator has no option --{option}"));
            }
        }
    }
    Ok(())
}

fn cargo(words: &[&str]) -> Result<(), String> {
    let after = |flags: &[&str]| {
        let at = words.iter().position(|word| flags.contains(word))?;
        words.get(at + 1).copied()
    };
    let Some(package) = after(&["-p", "--package"]) else {
        return Ok(());
    };
    let folder = files()
        .into_iter()
        .filter(|file| file.ends_with("Cargo.toml"))
        .find(|file| text(file).contains(&format!("name = \"{package}\"\n")))
        .and_then(|file| Some(file.strip_suffix("/Cargo.toml")?.to_owned()))
        .ok_or_else(|| format!("no package is called {package}"))?;
    if let Some(test) = after(&["--test"]) {
        exists(&format!("{folder}/tests/{test}.rs"))
            .or_else(|_| exists(&format!("{folder}/tests/{test}/main.rs")))?;
    }
    if let Some(bin) = after(&["--bin"]) {
        let listed = text(&format!("{folder}/Cargo.toml")).contains(&format!("name = \"{bin}\""));
        if !listed {
            exists(&format!("{folder}/src/bin/{bin}.rs"))?;
        }
    }
    Ok(())
}

fn exists(path: &str) -> Result<(), String> {
    match root().join(path).exists() {
        true => Ok(()),
        false => Err(format!("{path} does not exist")),
    }
}

#[test]
fn names_that_do_not_exist_are_found() {
    let good = [
        "./ci.sh fmt clippy",
        "./ci.sh sim --seeds 3",
        "cargo test -p uwarp --test documents",
        "RUSTFLAGS=--cfg cargo test --workspace",
        "cargo example rpc server",
    ];
    for command in good {
        assert_eq!(check(command), Ok(()), "{command}");
    }
    let bad = [
        "./ci.sh nonesuch",
        "./ci.sh sim --nonesuch",
        "cargo test -p nonesuch",
        "cargo test -p uwarp --test nonesuch",
        "cargo +nightly fuzz run nonesuch",
        "cargo example nonesuch",
        "nonesuch",
    ];
    for command in bad {
        assert!(check(command).is_err(), "{command}");
    }
}

/// A variable that the command reports as unknown would also be reported by the programs that tests
/// run, and change their output.
#[test]
fn variables_of_the_scripts_are_known_to_the_command() {
    let mut names = BTreeSet::new();
    for file in files().iter().filter(|file| file.ends_with(".sh")) {
        let script = text(file);
        let words = script.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        names.extend(
            words
                .filter(|word| word.starts_with("UWARP_"))
                .map(str::to_owned),
        );
    }
    assert!(names.contains("UWARP_INTEROP_SAMPLE"), "{names:?}");
    let output = Command::new(env!("CARGO_BIN_EXE_uwarp"))
        .args(["completions", "bash"])
        .env_clear()
        .envs(names.iter().map(|name| (name, "1")))
        .env_remove("UWARP_LOG")
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}
