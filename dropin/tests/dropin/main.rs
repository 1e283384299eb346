//! Tests of the drop-in library with real programs. Every program is a separate test. If a program
//! is not installed, its test is reported as ignored, with the reason on standard error. With
//! `UWARP_REQUIRE_DROPIN=1`, the test fails instead.

mod c;
mod captures;
mod crates;
mod devinfo;
mod elf;
mod ends;
mod exports;
mod matrix;
mod names;
mod packages;
mod prefix;
mod process;
mod programs;
mod raw;
mod roots;
mod sysfs;
mod tables;
mod vanished;
mod variables;
mod wheels;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::OnceLock;

use libtest_mimic::{Arguments, Failed, Trial};
use prefix::Prefix;
use programs::Row;
use roots::{ROOTS, Root};

/// The installed command and library. They are installed when the first test needs them, and
/// removed when this process ends. Each root has others.
static PREFIX: OnceLock<Result<Prefix, String>> = OnceLock::new();

fn with_prefix(run: impl FnOnce(&Prefix) -> Result<(), String>) -> Result<(), Failed> {
    with_prefix_in(None, run)
}

/// Runs a test with the uwarp that is installed for the programs of a root, or of this machine.
fn with_prefix_in(
    root: Option<&'static Root>,
    run: impl FnOnce(&Prefix) -> Result<(), String>,
) -> Result<(), Failed> {
    let prefix = root.map_or(&PREFIX, |root| &root.prefix);
    let prefix = prefix.get_or_init(|| Prefix::new(root));
    let prefix = prefix.as_ref().map_err(Clone::clone);
    prefix.and_then(run).map_err(Failed::from)
}

/// Returns true if missing programs are failures.
fn required() -> bool {
    std::env::var_os("UWARP_REQUIRE_DROPIN").is_some_and(|value| value == "1")
}

/// Creates a test. A test with a reason in `missing` is ignored, or fails if [`required`] returns
/// true.
fn trial(
    name: &str,
    missing: Option<String>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    if let (false, Some(why)) = (required(), &missing) {
        eprintln!("dropin: SKIPPED, {name} is reported as ignored: {why}");
    }
    trial_if(required(), name, missing, run)
}

/// As [`trial`], without a message. A test with a reason in `missing` fails if it is `required`.
fn trial_if(
    required: bool,
    name: &str,
    missing: Option<String>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let ignored = missing.is_some() && !required;
    let run = move || missing.map_or_else(run, |why| Err(why.into()));
    Trial::test(name, run).with_ignored_flag(ignored)
}

type Check = fn(&Prefix) -> Result<(), String>;
/// Tests that are not rows of the table in `programs`: name, packages that they need, and function.
const CHECKS: &[(&str, &[&str], Check)] = &[
    (
        "names::the_library_has_every_name_with_its_version",
        &[],
        names::the_library_has_every_name_with_its_version,
    ),
    (
        "names::the_data_path_calls_nothing_at_which_a_thread_is_cancelled",
        &[],
        names::the_data_path_calls_nothing_at_which_a_thread_is_cancelled,
    ),
    (
        "names::the_source_has_every_name",
        &[],
        names::the_source_has_every_name,
    ),
    (
        "names::the_committed_names_are_those_of_rdma_core",
        &["libibverbs1", "librdmacm1"],
        names::the_committed_names_are_those_of_rdma_core,
    ),
    (
        "c::layouts_are_those_of_the_headers",
        &["libibverbs-dev", "librdmacm-dev"],
        c::layouts_are_those_of_the_headers,
    ),
    (
        "c::dlvsym_finds_every_name",
        &[],
        c::dlvsym_finds_every_name,
    ),
    (
        "c::both_libraries_are_one_file",
        &["libibverbs-dev", "librdmacm-dev"],
        c::both_libraries_are_one_file,
    ),
    (
        "c::a_thread_that_posts_may_be_cancelled",
        &["libibverbs-dev", "librdmacm-dev"],
        c::a_thread_that_posts_may_be_cancelled,
    ),
    (
        "c::a_thread_that_waits_may_be_cancelled_and_keeps_no_lock",
        &["libibverbs-dev", "librdmacm-dev"],
        c::a_thread_that_waits_may_be_cancelled_and_keeps_no_lock,
    ),
    (
        "c::a_child_of_a_process_whose_threads_use_objects_has_its_own",
        &["libibverbs-dev"],
        c::a_child_of_a_process_whose_threads_use_objects_has_its_own,
    ),
    (
        "c::a_process_that_has_opened_a_device_has_one_hook_at_exit",
        &["libibverbs-dev"],
        c::a_process_that_has_opened_a_device_has_one_hook_at_exit,
    ),
    (
        "c::a_place_is_free_when_the_completion_was_polled",
        &["libibverbs-dev", "librdmacm-dev"],
        c::a_place_is_free_when_the_completion_was_polled,
    ),
    (
        "c::what_is_not_supported_says_so_by_its_prototype",
        &["libibverbs-dev", "librdmacm-dev"],
        c::what_is_not_supported_says_so_by_its_prototype,
    ),
    (
        "c::preload_reaches_a_program_that_names_a_directory",
        &["libibverbs-dev", "librdmacm-dev"],
        c::preload_reaches_a_program_that_names_a_directory,
    ),
    (
        "devinfo::both_tools_show_the_same_device",
        &["ibverbs-utils"],
        devinfo::both_tools_show_the_same_device,
    ),
    (
        "devinfo::the_persona_roce_shows_a_roce_device",
        &["ibverbs-utils"],
        devinfo::the_persona_roce_shows_a_roce_device,
    ),
    (
        "devinfo::roce_and_a_siw_peer_exclude_each_other",
        &["ibverbs-utils"],
        devinfo::roce_and_a_siw_peer_exclude_each_other,
    ),
    (
        "devinfo::each_name_is_a_device_of_the_same_rnic",
        &["libibverbs-dev", "librdmacm-dev"],
        devinfo::each_name_is_a_device_of_the_same_rnic,
    ),
    (
        "devinfo::a_name_that_cannot_be_one_is_refused",
        &["ibverbs-utils"],
        devinfo::a_name_that_cannot_be_one_is_refused,
    ),
    (
        "captures::a_capture_shows_the_crc_that_each_side_asked_for",
        &["rdmacm-utils"],
        captures::a_capture_shows_the_crc_that_each_side_asked_for,
    ),
    (
        "variables::an_unknown_variable_is_reported_with_the_nearest_known_name",
        &["ibverbs-utils"],
        variables::an_unknown_variable_is_reported_with_the_nearest_known_name,
    ),
    (
        "variables::a_log_is_written_when_it_is_asked_for",
        &["rdmacm-utils", "ibverbs-utils"],
        variables::a_log_is_written_when_it_is_asked_for,
    ),
    (
        "variables::a_setuid_program_reads_none",
        &["libibverbs-dev", "librdmacm-dev"],
        variables::a_setuid_program_reads_none,
    ),
    (
        "ends::the_cause_of_a_status_is_told_once_in_words",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::the_cause_of_a_status_is_told_once_in_words,
    ),
    (
        "ends::one_wrong_element_fails_its_read_with_one_status",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::one_wrong_element_fails_its_read_with_one_status,
    ),
    (
        "ends::nothing_is_told_when_it_is_to_be_quiet",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::nothing_is_told_when_it_is_to_be_quiet,
    ),
    (
        "ends::strict_ends_a_connection_that_has_no_receive_posted",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::strict_ends_a_connection_that_has_no_receive_posted,
    ),
    (
        "ends::a_message_is_held_until_a_receive_is_posted",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::a_message_is_held_until_a_receive_is_posted,
    ),
    (
        "ends::a_message_is_held_for_a_time_that_has_an_end",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::a_message_is_held_for_a_time_that_has_an_end,
    ),
    (
        "ends::the_end_of_the_peer_is_noticed_while_a_message_is_held",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::the_end_of_the_peer_is_noticed_while_a_message_is_held,
    ),
    (
        "ends::a_slow_peer_gets_all_that_completed_before_the_close",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::a_slow_peer_gets_all_that_completed_before_the_close,
    ),
    (
        "ends::a_close_that_loses_data_is_disconnected_with_a_status",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::a_close_that_loses_data_is_disconnected_with_a_status,
    ),
    (
        "ends::immediate_data_that_the_peer_does_not_know_is_refused_in_words",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::immediate_data_that_the_peer_does_not_know_is_refused_in_words,
    ),
    (
        "ends::private_data_that_siw_cannot_take_is_refused_in_words",
        &["libibverbs-dev", "librdmacm-dev"],
        ends::private_data_that_siw_cannot_take_is_refused_in_words,
    ),
    (
        "sysfs::every_function_finds_a_roce_device",
        &["libibverbs-dev"],
        sysfs::every_function_finds_a_roce_device,
    ),
    (
        "sysfs::every_function_finds_an_iwarp_device",
        &["libibverbs-dev"],
        sysfs::every_function_finds_an_iwarp_device,
    ),
    (
        "sysfs::without_preload_nothing_is_redirected",
        &["libibverbs-dev"],
        sysfs::without_preload_nothing_is_redirected,
    ),
    (
        "sysfs::a_look_creates_no_capture",
        &["ibverbs-utils"],
        sysfs::a_look_creates_no_capture,
    ),
    (
        "sysfs::the_directory_of_a_killed_process_is_removed_by_the_next",
        &[],
        sysfs::the_directory_of_a_killed_process_is_removed_by_the_next,
    ),
    (
        "vanished::a_handler_that_is_older_sees_the_faults_of_the_program",
        &["libibverbs-dev", "librdmacm-dev"],
        vanished::a_handler_that_is_older_sees_the_faults_of_the_program,
    ),
    (
        "vanished::a_handler_that_replaces_ours_sees_the_faults_of_the_program",
        &["libibverbs-dev", "librdmacm-dev"],
        vanished::a_handler_that_replaces_ours_sees_the_faults_of_the_program,
    ),
    (
        "vanished::a_fault_of_a_program_without_a_handler_ends_it",
        &["libibverbs-dev", "librdmacm-dev"],
        vanished::a_fault_of_a_program_without_a_handler_ends_it,
    ),
];

/// As `CHECKS`, for tests that need new network namespaces.
const APART: &[(&str, &[&str], Check)] = &[
    (
        "devinfo::the_gid_table_stays_as_it_was_when_the_device_was_opened",
        &["libibverbs-dev", "iproute2", "util-linux"],
        devinfo::the_gid_table_stays_as_it_was_when_the_device_was_opened,
    ),
    (
        "devinfo::the_gids_of_roce_are_ordered_by_their_reach",
        &["libibverbs-dev", "iproute2", "util-linux"],
        devinfo::the_gids_of_roce_are_ordered_by_their_reach,
    ),
    (
        "sysfs::rdma_shows_the_link",
        &["util-linux"],
        sysfs::rdma_shows_the_link,
    ),
    (
        "sysfs::several_rdma_at_once_show_the_link",
        &["util-linux"],
        sysfs::several_rdma_at_once_show_the_link,
    ),
    (
        "sysfs::a_namespace_has_the_device_for_every_program",
        &["util-linux"],
        sysfs::a_namespace_has_the_device_for_every_program,
    ),
    (
        "sysfs::a_namespace_and_preload_go_together",
        &["util-linux"],
        sysfs::a_namespace_and_preload_go_together,
    ),
    (
        "sysfs::a_namespace_that_is_not_allowed_is_told",
        &["util-linux"],
        sysfs::a_namespace_that_is_not_allowed_is_told,
    ),
];

/// As `CHECKS`, for each root.
const CHECKS_OF_ROOTS: &[(&str, Check)] = &[
    (
        "names::the_committed_names_are_those_of_the_root",
        names::the_committed_names_are_those_of_the_root,
    ),
    (
        "names::every_file_of_the_root_finds_its_names",
        names::every_file_of_the_root_finds_its_names,
    ),
];

/// Version of rdma-core whose names and layouts are committed.
const RDMA_CORE: &str = "44.0";

/// Returns the reason why a check cannot run here, if there is one.
fn missing(packages: &[&str]) -> Option<String> {
    packages::missing(packages).or_else(|| {
        let versions = packages
            .iter()
            .filter_map(|package| packages::version(package));
        let mut others = versions.filter(|version| version != RDMA_CORE);
        others.next().map(|other| {
            format!("the committed ABI is that of rdma-core {RDMA_CORE}, and {other} is installed")
        })
    })
}

/// Creates the tests of a root. Prints each reason why some are ignored once.
fn trials_of(root: &'static Root, unready: Option<&String>) -> Vec<Trial> {
    let required = root.required();
    let (mut trials, mut reasons) = (Vec::new(), BTreeSet::new());
    for &(name, check) in CHECKS_OF_ROOTS {
        let (module, name) = name.split_once("::").unwrap_or_default();
        let name = format!("{module}::{}/{name}", root.label);
        let missing = unready.cloned().or_else(|| root.missing());
        reasons.extend(missing.clone());
        let run = move || with_prefix_in(Some(root), check);
        trials.push(trial_if(required, &name, missing, run));
    }
    let rows = (root.rows)().into_iter().enumerate();
    let rows = rows.filter(|(position, row)| roots::sampled(*position) && row.runs_here());
    for (_, row) in rows {
        let name = format!("programs::{}/{}", root.label, row.name);
        let missing = unready.cloned().or_else(|| row.missing_in(root));
        reasons.extend(missing.clone());
        let run = move || with_prefix_in(Some(root), |prefix| row.run(prefix));
        trials.push(trial_if(required, &name, missing, run));
    }
    if !required {
        for why in reasons {
            let label = root.label;
            eprintln!("dropin: SKIPPED, tests {label}/... are reported as ignored: {why}");
        }
    }
    trials
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Most programs poll and occupy a processor, and most tests run two of them.
    arguments.test_threads.get_or_insert(2);
    let unready = process::unready();
    if !crates::asked_for() {
        eprintln!("dropin: SKIPPED, published crates are built only with UWARP_DROPIN_CRATES=1");
    }
    if wheels::installed().is_none() {
        eprintln!("dropin: SKIPPED, UWARP_DROPIN_WHEELS names no directory with Python wheels");
    }
    let mut trials = Vec::new();
    for &(name, packages, check) in CHECKS {
        let missing = unready.clone().or_else(|| missing(packages));
        trials.push(trial(name, missing, move || with_prefix(check)));
    }
    for &(name, packages, check) in APART {
        // These packages have versions of their own.
        let missing = unready.clone().or_else(|| packages::missing(packages));
        let missing = missing.or_else(programs::no_namespaces);
        trials.push(trial(name, missing, move || with_prefix(check)));
    }
    for row in programs::rows().into_iter().filter(Row::runs_here) {
        let name = format!("programs::{}", row.name);
        let missing = unready.clone().or_else(|| row.missing());
        trials.push(trial(&name, missing, move || {
            with_prefix(|prefix| row.run(prefix))
        }));
    }
    for root in ROOTS {
        trials.extend(trials_of(root, unready.as_ref()));
    }
    let sources = crates::asked_for().then(crates::missing).flatten();
    for row in crates::ROWS.iter().filter(|row| row.runs_here()) {
        let name = format!("crates::{}", row.name);
        let run = move || with_prefix(|prefix| crates::run(row, prefix));
        trials.push(match crates::asked_for() {
            true => {
                let missing = unready.clone().or_else(|| row.missing());
                trial(&name, missing.or_else(|| sources.clone()), run)
            }
            false => Trial::test(name, run).with_ignored_flag(true),
        });
    }
    for row in wheels::ROWS.iter().filter(|row| row.runs_here()) {
        let name = format!("wheels::{}", row.name);
        let run = move || with_prefix(|prefix| wheels::run(row, prefix));
        trials.push(match wheels::installed() {
            Some(_) => trial(&name, unready.clone().or_else(|| row.missing()), run),
            None => Trial::test(name, run).with_ignored_flag(true),
        });
    }
    let matrix = || matrix::is_up_to_date().map_err(Failed::from);
    trials.push(trial("matrix::is_up_to_date", matrix::missing(), matrix));
    libtest_mimic::run(&arguments, trials).exit_code()
}
