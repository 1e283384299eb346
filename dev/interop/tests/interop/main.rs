//! Interoperability of uwarp with the Linux siw driver. Every case is a test; see `./ci.sh
//! interop`.

mod agent;
mod bench;
mod captured;
mod deep;
mod depths;
mod errors;
mod faults;
mod invalidate;
mod ipv6;
mod many;
mod matrix;
mod pair;
mod pins;
mod programs;
mod quirks;
mod raw_pair;
mod repeated;
mod responder_listener;
mod rping;
mod setup;
mod srq;
mod transfers;
mod verbs;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use uwarp_interop::{
    EthernetWire, Failure, Image, KernelTap, KernelTcp, Outcome, Report, Result, Rig, Unready,
    Wire, enter_namespace, uwarp_binary,
};

/// A case of a suite, which runs on any wire.
struct Case {
    /// First part of the test's name.
    suite: &'static str,
    /// Rest of the test's name. Its words are separated by `::`.
    name: String,
    /// Name for the matrix.
    title: String,
    run: Box<Run>,
}

type Run = dyn Fn(&mut Rig) -> Result<Outcome> + Send + Sync;

/// Function that creates a wire.
type MakeWire = fn() -> Box<dyn Wire>;
const WIRES: &[MakeWire] = &[
    || Box::new(KernelTcp::default()),
    || Box::new(EthernetWire::unix_datagrams()),
    || Box::new(EthernetWire::tap()),
    || Box::new(KernelTap::default()),
];

/// State of one wire. Its guest is booted when it is first needed, and again after an oops.
struct Shared {
    make: MakeWire,
    image: Image,
    rig: Option<Rig>,
}

impl Shared {
    fn rig(&mut self) -> Result<&mut Rig> {
        let rig = match self.rig.take() {
            Some(rig) => rig,
            None => Rig::boot(&self.image, (self.make)())?,
        };
        Ok(self.rig.insert(rig))
    }

    /// Runs one test and cleans up the guest. Drops a guest whose kernel reported a bug.
    fn run(&mut self, case: &Case) -> Result<Outcome> {
        let rig = self.rig()?;
        let result = catch_unwind(AssertUnwindSafe(|| (case.run)(rig)))
            .unwrap_or_else(|panic| Err(Failure::new(said(&*panic))));
        let clean = rig.agent.reset();
        // After an oops the reset fails. By then the console has the kernel's log.
        let trouble = rig.guest.trouble();
        if let Some(trouble) = trouble {
            self.rig = None;
            let what = match result {
                Ok(_) => "the test had passed".to_owned(),
                Err(failure) => failure.to_string(),
            };
            return Err(Failure::new(format!(
                "siw bug: the guest's kernel is in trouble (it will be booted again).\n{what}\n{trouble}"
            )));
        }
        if let Err(failure) = clean {
            let console = rig.guest.console();
            self.rig = None;
            result?;
            return Err(failure.during(format!(
                "cleaning up after the test (its guest will be booted again); console:\n{console}"
            )));
        }
        result
    }
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_else(|| "the test panicked".to_owned())
}

/// Locks a mutex even after a panic. Its contents are still consistent, because no test leaves them
/// incomplete.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the cases for a wire.
fn cases(wire: &str) -> Vec<Case> {
    match wire {
        // These programs expect a refusal if their peer does not listen yet. QEMU's user network
        // accepts the connection instead.
        "kernel_tap" => programs::cases()
            .into_iter()
            .chain(repeated::cases())
            .collect(),
        "kernel_tcp" => suites(wire),
        _ => suites(wire).into_iter().chain(programs::cases()).collect(),
    }
}

/// Returns the cases of all suites except the programs of the distribution.
fn suites(wire: &str) -> Vec<Case> {
    [
        agent::cases(),
        rping::cases(),
        verbs::cases(),
        transfers::cases(),
        quirks::cases(),
        setup::cases(),
        many::cases(),
        invalidate::cases(),
        srq::cases(),
        deep::cases(),
        depths::cases(),
        ipv6::cases(wire),
        errors::cases(wire),
        pins::cases(wire),
        faults::cases(wire),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the guest's image, or the reason why the tests cannot run here.
fn prepare() -> std::result::Result<Image, Unready> {
    if !wanted() {
        let how = "they boot a virtual machine; run './ci.sh interop', or set UWARP_INTEROP=1";
        return Err(Unready::Missing(how.to_owned()));
    }
    uwarp_binary().map_err(|failure| Unready::Failed(failure.to_string()))?;
    Image::find()
}

/// Returns the reason why tests on this wire cannot run here. TAP wires need the process's own
/// network namespace.
fn missing(wire: &dyn Wire, namespace: &std::result::Result<(), String>) -> Option<String> {
    let try_it = match wire.name() {
        "tap" => EthernetWire::try_tap,
        "kernel_tap" => KernelTap::try_tap,
        _ => return None,
    };
    match namespace {
        Err(why) => Some(why.clone()),
        Ok(()) => try_it().err().map(|why| why.to_string()),
    }
}

/// Returns true if `UWARP_INTEROP=1` requests the tests. They do not run by default, because they
/// boot a virtual machine.
fn wanted() -> bool {
    std::env::var_os("UWARP_INTEROP").is_some_and(|value| value == "1")
}

/// Variable with the number N of a sample. Of the cases on Unix datagrams, only every Nth runs.
/// These cases run on TAP too, except for faults, which always run.
const SAMPLE: &str = "UWARP_INTEROP_SAMPLE";

/// Returns true if the case with this index on a wire runs.
fn is_sampled(wire: &str, case: &Case, index: usize) -> bool {
    let every = std::env::var(SAMPLE).map_or(1, |number| {
        let number = number.parse::<usize>().ok().filter(|number| *number > 0);
        number.unwrap_or_else(|| panic!("{SAMPLE} must be a number above 0"))
    });
    wire != "unix_datagrams" || case.suite == "faults" || index.is_multiple_of(every)
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The namespace is entered before any thread starts, because this may restart the program.
    let namespace = if wanted() && !arguments.list {
        enter_namespace()
    } else {
        Ok(())
    };
    // Each wire has its own guest. A guest runs one test at a time, and leaves a processor mostly
    // idle.
    arguments.test_threads = Some(2);
    // The filter may be a list separated by commas. A test runs if its name contains one of the
    // parts.
    let filters: Option<Vec<String>> = arguments
        .filter
        .take_if(|filter| filter.contains(','))
        .map(|filter| filter.split(',').map(str::to_owned).collect());
    let prepared = if arguments.list {
        Err(Unready::Missing(String::new()))
    } else {
        prepare()
    };
    if let Err(Unready::Failed(why)) = &prepared {
        eprintln!("interop: the guest is not ready: {why}");
        return ExitCode::FAILURE;
    }
    if let Err(Unready::Missing(why)) = &prepared
        && !arguments.list
    {
        eprintln!("interop: SKIPPED, every test is reported as ignored: {why}");
    }

    let report = Arc::new(Mutex::new(Report::default()));
    let mut shared = Vec::new();
    let mut by_wire = Vec::new();
    for make in WIRES {
        let wire = make();
        let missing = (prepared.as_ref().ok()).and_then(|_| missing(&*wire, &namespace));
        if let Some(why) = &missing {
            let title = wire.title();
            eprintln!("interop: SKIPPED, the tests of {title} are reported as ignored: {why}");
        }
        let image = prepared.as_ref().ok().filter(|_| missing.is_none());
        let guest = image.map(|image| {
            Arc::new(Mutex::new(Shared {
                make: *make,
                image: image.clone(),
                rig: None,
            }))
        });
        shared.extend(guest.clone());
        let mut trials = Vec::new();
        for (index, case) in cases(wire.name()).into_iter().enumerate() {
            let number = lock(&report).add(wire.title(), case.suite, &case.title);
            if !is_sampled(wire.name(), &case, index) {
                continue;
            }
            let name = format!("{}::{}::{}", wire.name(), case.suite, case.name);
            trials.push(trial(
                name,
                case,
                guest.clone(),
                Arc::clone(&report),
                number,
            ));
        }
        by_wire.push(trials);
    }
    let mut trials = in_turns(by_wire);
    if let Some(filters) = filters {
        trials.retain(|trial| filters.iter().any(|filter| trial.name().contains(filter)));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // The guests must be dropped before this process exits.
    for shared in shared {
        lock(&shared).rig = None;
    }
    finish(&conclusion, &prepared, &lock(&report))
}

/// Interleaves the tests of the wires, so that tests that run at the same time use different
/// guests.
fn in_turns<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(lists.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}

fn trial(
    name: String,
    case: Case,
    guest: Option<Arc<Mutex<Shared>>>,
    report: Arc<Mutex<Report>>,
    number: usize,
) -> Trial {
    let ignored = guest.is_none();
    Trial::test(name, move || {
        let Some(guest) = guest else {
            return Err(Failed::from(
                "there is no guest: see the first lines of the output",
            ));
        };
        let result = lock(&guest).run(&case);
        lock(&report).note(number, result.as_ref().ok().cloned());
        result.map(drop).map_err(Failed::from)
    })
    .with_ignored_flag(ignored)
}

/// Writes the report to the file that `UWARP_INTEROP_REPORT` names, if all tests were run.
fn finish(
    conclusion: &Conclusion,
    prepared: &std::result::Result<Image, Unready>,
    report: &Report,
) -> ExitCode {
    if let (Ok(image), Some(file)) = (prepared, std::env::var_os("UWARP_INTEROP_REPORT")) {
        if report.not_run() > 0 {
            eprintln!(
                "interop: the report is not written: {} tests were not run",
                report.not_run()
            );
        } else if let Err(error) = std::fs::write(&file, report.markdown(&image.versions)) {
            eprintln!("interop: {}: {error}", file.display());
            return ExitCode::FAILURE;
        } else {
            eprintln!("interop: wrote {}", file.display());
        }
    }
    if let (Ok(image), false) = (prepared, conclusion.has_failed())
        && let Err(why) = matrix::settle(report, &image.versions)
    {
        eprintln!("interop: {why}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
