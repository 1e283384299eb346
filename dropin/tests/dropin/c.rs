//! Tests that compile C programs with the installed headers, and run them on the library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::names;
use crate::packages;
use crate::prefix::{Prefix, said};
use crate::process::{Place, free_port};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c");
const GENERATED: &str = include_str!("../../src/abi/generated.rs");

/// Compiles a file of `tests/c`, with `arguments` after the file name. Each call returns a separate
/// program. If the programs run in a root, uses the compiler and the headers of that root.
pub(crate) fn compile(
    prefix: &Prefix,
    compiler: &str,
    source: &str,
    arguments: &[&str],
) -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut source = Path::new(SOURCES).join(source);
    let stem = source.file_stem().unwrap_or_default();
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let program = format!("{}-{number}", stem.display());
    let program = prefix.scratch().join(program);
    let mut command = match prefix.root() {
        Some(_) => {
            source = copied(&source, &program)?;
            prefix.command(Path::new(compiler))?
        }
        None => Command::new(compiler),
    };
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
    said(command.arg(&program).arg(&source).args(arguments))?;
    Ok(program)
}

/// Copies a source to the directory `NEW.d`, with the headers of `tests/c`, and returns its path
/// there. In a root, only the directory of the installed uwarp is visible.
fn copied(source: &Path, new: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", source.display());
    let dir = new.with_extension("d");
    std::fs::create_dir(&dir).map_err(failed)?;
    for entry in std::fs::read_dir(SOURCES).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if let Some(name) = path.file_name()
            && (path == source || path.extension().is_some_and(|kind| kind == "h"))
        {
            std::fs::copy(&path, dir.join(name)).map_err(failed)?;
        }
    }
    Ok(dir.join(source.file_name().unwrap_or_default()))
}

/// Checks that the C compiler, with the installed headers, confirms all layouts that the generated
/// Rust file asserts. The headers must have the version from which the file was generated.
pub(crate) fn layouts_are_those_of_the_headers(prefix: &Prefix) -> Result<(), String> {
    let unions: Vec<&str> = GENERATED
        .lines()
        .filter_map(|line| line.strip_prefix("pub union ")?.split_whitespace().next())
        .collect();
    let of = |name: &str| {
        let kind = if unions.contains(&name) {
            "union"
        } else {
            "struct"
        };
        format!("{kind} {name}")
    };
    let mut text =
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n"
            .to_owned();
    let mut count = 0;
    // Assertions have the form `["Size of X"][size_of - Nusize];` or `["Offset of field:
    // X::y"][offset_of - Nusize];`, on one or two lines.
    for assertion in GENERATED.split(';') {
        let Some((_, assertion)) = assertion.split_once("[\"") else {
            continue;
        };
        let Some((what, rest)) = assertion.split_once("\"]") else {
            continue;
        };
        // These types are anonymous in C.
        if what.contains("__bindgen") {
            continue;
        }
        // Fields after a mutex have a larger offset if the C library's mutex is larger.
        let (rest, more) = match rest.split_once("- MUTEX") {
            Some((rest, _)) => (rest.trim_end(), " + sizeof(pthread_mutex_t) - 40"),
            None => (rest, ""),
        };
        let number = rest
            .rsplit_once("- ")
            .and_then(|(_, number)| number.split_once("usize"));
        let (number, _) = number.ok_or_else(|| format!("no number in: {assertion}"))?;
        let checked = if let Some(name) = what.strip_prefix("Size of ") {
            format!("sizeof({})", of(name))
        } else if let Some((name, field)) = what
            .strip_prefix("Offset of field: ")
            .and_then(|field| field.split_once("::"))
        {
            format!("offsetof({}, {})", of(name), field.trim_end_matches('_'))
        } else {
            continue;
        };
        text += &format!("_Static_assert({checked} == {number}{more}, \"{what}\");\n");
        count += 1;
    }
    if count < 400 {
        return Err(format!(
            "only {count} assertions were found in the generated file"
        ));
    }
    let source = prefix.scratch().join("layouts.c");
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    said(
        Command::new("cc")
            .args(["-std=gnu11", "-fsyntax-only"])
            .arg(&source),
    )
    .map(drop)
}

/// Checks that `dlvsym` finds every name with its version in the library, and finds no name with
/// another version.
pub(crate) fn dlvsym_finds_every_name(prefix: &Prefix) -> Result<(), String> {
    let program = compile(prefix, "cc", "versions.c", &["-ldl"])?;
    let functions = names::all().filter(|line| !line.ends_with(" object"));
    let pairs = functions.filter_map(|line| line.split_once('@'));
    let mut asked: Vec<_> = pairs
        .map(|(name, version)| format!("{name} {}", version.trim_start_matches('@')))
        .collect();
    let known = asked.len();
    asked.push("ibv_open_device IBVERBS_1.5".to_owned());
    asked.push("rdma_connect RDMACM_1.3".to_owned());
    let input = prefix.scratch().join("asked");
    std::fs::write(&input, asked.join("\n")).map_err(|error| error.to_string())?;
    let words = format!("{} < {}", program.display(), input.display());
    let place = Place { prefix, flags: &[] };
    let said = place.start(&["sh", "-c", &words])?.end()?;
    let library = prefix.library();
    let library = library.parent().unwrap_or(&library).display().to_string();
    for (at, (asked, said)) in asked.iter().zip(said.lines()).enumerate() {
        let file = said.strip_prefix(asked.as_str()).map(str::trim);
        let good = file.is_some_and(|file| match at < known {
            true => file.starts_with(&library),
            false => file == "none",
        });
        if !good {
            return Err(format!("{asked} gave: {said}"));
        }
    }
    match said.lines().count() == asked.len() {
        true => Ok(()),
        false => Err(format!(
            "{} names were looked up, and the output is:\n{said}",
            asked.len()
        )),
    }
}

/// A program whose `DT_RPATH` names the directory of rdma-core loads rdma-core. With `--preload`
/// the program loads this library.
pub(crate) fn preload_reaches_a_program_that_names_a_directory(
    prefix: &Prefix,
) -> Result<(), String> {
    let stock = packages::library("libibverbs.so.1")?;
    let dir = stock.parent().unwrap_or(&stock).display().to_string();
    let rpath = format!("-Wl,--disable-new-dtags,-rpath,{dir}");
    let program = compile(prefix, "cc", "linked.c", &["-lrdmacm", "-libverbs", &rpath])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let run = |flags: &[&str]| Place { prefix, flags }.start(&[program])?.end();
    let without = run(&[])?;
    if !without.starts_with(&dir) {
        return Err(format!(
            "without --preload the test has no meaning: {without}"
        ));
    }
    let library = prefix.library();
    let library = library.display();
    let with = run(&["--preload"])?;
    if !with.starts_with(&format!("{library}\n{library}\n1 uwarp0")) {
        return Err(format!("with --preload:\n{with}"));
    }
    Ok(())
}

/// A thread that posts and polls may be cancelled. These calls are not cancellation points, even
/// with a capture, which is written to a file.
pub(crate) fn a_thread_that_posts_may_be_cancelled(prefix: &Prefix) -> Result<(), String> {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let program = compile(prefix, "cc", "cancelled.c", &libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let capture = prefix.scratch().join("cancelled.pcapng");
    let capture = capture.to_str().ok_or("the path is not UTF-8")?;
    let flags = &["--pcap", capture];
    let place = Place { prefix, flags };
    let said = place.start(&[program, &free_port()?.to_string()])?.end()?;
    match said.contains("50 posted, cancelled") {
        true => Ok(()),
        false => Err(said),
    }
}

/// Children are forked while other threads hold the locks of the library (`tests/c/forks.c`).
pub(crate) fn a_child_of_a_process_whose_threads_use_objects_has_its_own(
    prefix: &Prefix,
) -> Result<(), String> {
    let program = compile(prefix, "cc", "forks.c", &["-libverbs", "-lpthread"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let place = Place { prefix, flags: &[] };
    let said = place.start(&[program])?.end()?;
    match said == "60 of 60 children are good\n" {
        true => Ok(()),
        false => Err(said),
    }
}

/// The library runs one function at exit, which sends what waits (`tests/c/hooks.c`).
pub(crate) fn a_process_that_has_opened_a_device_has_one_hook_at_exit(
    prefix: &Prefix,
) -> Result<(), String> {
    let program = compile(prefix, "cc", "hooks.c", &["-rdynamic", "-libverbs", "-ldl"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let place = Place { prefix, flags: &[] };
    let said = place.start(&[program])?.end()?;
    match said == "hooks: 1\nhooks of the child: 0\n" {
        true => Ok(()),
        false => Err(said),
    }
}

/// Threads are cancelled in calls that wait. Other threads can then use the same objects
/// (`tests/c/blocked.c`).
pub(crate) fn a_thread_that_waits_may_be_cancelled_and_keeps_no_lock(
    prefix: &Prefix,
) -> Result<(), String> {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let program = compile(prefix, "cc", "blocked.c", &libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let place = Place { prefix, flags: &[] };
    let said = place.start(&[program, &free_port()?.to_string()])?.end()?;
    let due = "rdma_get_request: cancelled\nrdma_connect: cancelled\nreceived 'bytes'\nrdma_disconnect: cancelled\n\
               ibv_get_async_event: cancelled\nall is gone\n";
    match said == due {
        true => Ok(()),
        false => Err(said),
    }
}

/// Unsupported calls report `EOPNOTSUPP` as their prototypes allow: as a number, or in `errno` with
/// -1 or NULL. The library prints nothing (`tests/c/absent.c`).
pub(crate) fn what_is_not_supported_says_so_by_its_prototype(
    prefix: &Prefix,
) -> Result<(), String> {
    let libraries = ["-lrdmacm", "-libverbs", "-ldl"];
    let program = compile(prefix, "cc", "absent.c", &libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let said = Place {
        prefix,
        flags: &["--persona", "iwarp"],
    }
    .start(&[program])?
    .end()?;
    match said == "numbers 9, -1 33, NULL 8, nothing 3\n" {
        true => Ok(()),
        false => Err(said),
    }
}

/// Queues accept the number of requests for which they were created, and more after completions
/// were polled (`tests/c/places.c`).
pub(crate) fn a_place_is_free_when_the_completion_was_polled(
    prefix: &Prefix,
) -> Result<(), String> {
    let libraries = ["-lrdmacm", "-libverbs", "-lpthread"];
    let program = compile(prefix, "cc", "places.c", &libraries)?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let place = Place { prefix, flags: &[] };
    let said = place.start(&[program, &free_port()?.to_string()])?.end()?;
    let due = "receives 16, then 0, after 3 polls 3\nsignaled 16, after 3 polls 3\n\
               unsignaled, after the poll of one behind them 16, then 0\n";
    match said == due {
        true => Ok(()),
        false => Err(said),
    }
}

/// A program that is linked with both libraries finds the functions of both in the same file.
pub(crate) fn both_libraries_are_one_file(prefix: &Prefix) -> Result<(), String> {
    let program = compile(prefix, "cc", "linked.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let said = Place { prefix, flags: &[] }.start(&[program])?.end()?;
    let mut lines = said.lines();
    let (verbs, rdmacm) = (lines.next(), lines.next());
    let library = prefix.library();
    let dir = library.parent().unwrap_or(&library).display().to_string();
    let good = verbs == rdmacm && verbs.is_some_and(|file| file.starts_with(&dir));
    if !good || lines.next() != Some("1 uwarp0") {
        return Err(said);
    }
    Ok(())
}
