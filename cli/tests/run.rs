//! `uwarp run`: the environment that it sets, the program that it executes, and its error messages.
//! The library is a dummy file here. Tests with the real library are in `dropin/`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, id};

use common::{Ended, Uwarp, uwarp};

/// A copy of the command in its own directory, removed on drop.
struct Copied(PathBuf);

impl Copied {
    fn new(name: &str) -> Copied {
        let dir = std::env::temp_dir().join(format!("uwarp-run-{}-{name}", id()));
        fs::create_dir_all(dir.join("bin")).unwrap();
        let copied = Copied(dir);
        // Another process makes the copy. If this process did, a child that another test forks
        // could inherit the file open for writing, and executing the copy would fail.
        let mut copy = Command::new("cp");
        copy.arg(env!("CARGO_BIN_EXE_uwarp"))
            .arg(copied.path("bin/uwarp"));
        assert!(copy.status().unwrap().success());
        copied
    }

    /// Makes a copy with the libraries in the same directory, where cargo builds them.
    fn with_library(name: &str) -> Copied {
        let copied = Self::new(name);
        fs::write(copied.path("bin/libuwarp_dropin.so"), "a library").unwrap();
        fs::write(copied.path("bin/libuwarp_redirect.so"), "a library").unwrap();
        copied
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/uwarp"));
        command.arg("run").args(args);
        for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "UWARP_STRICT", "UWARP_CRC"] {
            command.env_remove(name);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        Uwarp::start_with(&mut self.command(args)).end()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn wrong_flags_exit_with_2() {
    for args in [
        &["run"][..],
        &["run", "--nonsense", "true"],
        &["run", "--device", "tap:x", "true"],
        &["run", "--crc", "perhaps", "true"],
        &["run", "--markers", "1", "true"],
        &["run", "--fpdu-segments", "0", "true"],
        &["run", "--mpa", "3", "true"],
        &["run", "--peer", "roce", "true"],
        &["run", "--persona", "ib", "true"],
        &["run", "--name", "a/b", "true"],
        &["run", "--sysfs", "redirect", "true"],
        &["run", "--name", "a", "--name", "", "true"],
        &["run", "--hold", "soon", "true"],
        &["run", "--hold", "5", "--strict", "true"],
        &["run", "--install", "/tmp", "true"],
        &["run", "--install"],
    ] {
        let ended = uwarp(args).expect(2);
        assert!(!ended.stderr.is_empty(), "{args:?} printed no error");
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn without_the_library_it_says_where_it_looked_and_what_builds_it() {
    let here = Copied::new("missing");
    let ended = here.run(&["true"]).expect(1);
    ended.says("the library that replaces libibverbs and librdmacm is missing");
    ended.says("bin/libuwarp_dropin.so or ");
    ended.says("lib/uwarp/libibverbs.so.1");
    ended.says("cargo build --release -p uwarp -p uwarp-dropin -p uwarp-redirect");
}

#[test]
fn a_program_that_is_not_there_ends_with_127_and_one_that_cannot_run_with_126() {
    let here = Copied::with_library("not-found");
    let ended = here.run(&["uwarp-no-such-program"]).expect(127);
    ended.says("the program uwarp-no-such-program was not found in the PATH");
    let nowhere = here.path("nowhere/rping").to_str().unwrap().to_owned();
    let ended = here.run(&["--", &nowhere, "-s"]).expect(127);
    ended.says(&format!("the program {nowhere} was not found"));
    let file = here.path("bin/libuwarp_dropin.so");
    let ended = here.run(&[file.to_str().unwrap()]).expect(126);
    ended.says("cannot be run: Permission denied");
}

#[test]
fn a_file_in_the_path_that_may_not_be_run_ends_with_126() {
    let here = Copied::with_library("no-right");
    let mut command = here.command(&["libuwarp_dropin.so"]);
    command.env("PATH", here.path("bin"));
    let ended = Uwarp::start_with(&mut command).end().expect(126);
    ended.says("libuwarp_dropin.so cannot be run: Permission denied");
}

#[test]
fn without_a_path_programs_are_found_where_exec_looks() {
    let here = Copied::with_library("no-path");
    let run = |program| {
        let mut command = here.command(&["--", program]);
        command.env_remove("PATH");
        Uwarp::start_with(&mut command).end()
    };
    run("true").expect(0);
    let ended = run("uwarp-no-such-program").expect(127);
    ended.says("the program uwarp-no-such-program was not found in /bin:/usr/bin");
}

/// Debian has a link to the loader in the `PATH`.
#[test]
fn the_dynamic_loader_runs_by_any_of_its_names() {
    let loader = Path::new("/usr/bin/ld.so");
    if !loader.exists() {
        eprintln!("skipped: {} is not here", loader.display());
        return;
    }
    let here = Copied::with_library("loader");
    let ended = here.run(&["--", "ld.so", "/bin/true"]);
    ended.expect(0);
}

/// User id without privileges.
const NOBODY: &str = "65534";

/// The program is executable for its user, and not readable.
#[test]
fn a_program_with_other_rights_is_refused_although_it_cannot_be_read() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can become another user");
        return;
    }
    let here = Copied::with_library("rights");
    for dir in ["", "bin"] {
        fs::set_permissions(here.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let file = here.path("program");
    // Another process creates the file, as in `Copied::new`.
    let make = |mode: &str| {
        let mut install = Command::new("install");
        install.args(["-m", mode, "/bin/true"]).arg(&file);
        assert!(install.status().unwrap().success());
    };
    let ended = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
            .arg(here.path("bin/uwarp"))
            .args(["run", "--"])
            .arg(&file);
        Uwarp::start_with(&mut command).end()
    };
    // This run, as root, creates the links of the library. The other user could not.
    here.run(&["true"]).expect(0);
    make("0711");
    ended().expect(0);
    if !gives_rights(&here.0) {
        eprintln!("skipped: files give no rights here");
        return;
    }
    for (mode, what) in [("4711", "is setuid"), ("2711", "is setgid")] {
        make(mode);
        ended().expect(126).says(what);
    }
    make("0711");
    let mut setcap = Command::new("setcap");
    let has_set = setcap.arg("cap_net_raw+ep").arg(&file).status();
    if has_set.is_ok_and(|status| status.success()) {
        ended().expect(126).says("has file capabilities");
    }
}

/// Returns true if `exec` honours the setuid bits of files in this directory.
fn gives_rights(dir: &Path) -> bool {
    let flags = rustix::fs::statvfs(dir).unwrap().f_flag;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    !flags.contains(rustix::fs::StatVfsMountFlags::NOSUID) && !status.contains("NoNewPrivs:\t1")
}

#[test]
fn a_program_that_is_not_installed_is_named_with_its_package() {
    let here = Copied::with_library("package");
    let mut command = here.command(&["--", "rping", "-s"]);
    command.env("PATH", here.path("bin"));
    let ended = Uwarp::start_with(&mut command).end().expect(127);
    ended.says("the program rping was not found in the PATH");
    ended.says("try: apt-get install rdmacm-utils");
}

#[test]
fn a_program_that_would_run_without_the_library_is_refused() {
    let here = Copied::with_library("unsuitable");
    let file = here.path("static");
    fs::write(&file, static_program()).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    // The program is started by its path, by its name, and as the interpreter of a script.
    let script = here.path("script");
    fs::write(&script, format!("#!{}\n", file.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for program in [file.to_str().unwrap(), "static", "script"] {
        let mut command = here.command(&["--", program]);
        command.env("PATH", &here.0);
        let ended = Uwarp::start_with(&mut command).end().expect(126);
        ended.says(&format!("{} is statically linked", file.display()));
    }
}

/// Returns the headers of a program for this machine. It has one segment and names no loader.
fn static_program() -> Vec<u8> {
    let own = fs::read("/proc/self/exe").unwrap();
    let mut program = own[..64].to_vec();
    program[32..40].copy_from_slice(&64_u64.to_ne_bytes()); // e_phoff
    program[56..58].copy_from_slice(&1_u16.to_ne_bytes()); // e_phnum
    program.extend(1_u32.to_ne_bytes()); // p_type: PT_LOAD
    program.resize(64 + 56, 0);
    program
}

#[test]
fn exit_status_and_signal_are_the_programs() {
    let here = Copied::with_library("status");
    here.run(&["--", "sh", "-c", "exit 7"]).expect(7);
    let killed = here.run(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15), "{}", killed.stderr);
}

#[test]
fn the_program_takes_the_place_of_the_command() {
    let here = Copied::with_library("exec");
    let running = Uwarp::start_with(&mut here.command(&["sh", "-c", "echo $$"]));
    let process = running.id();
    assert_eq!(running.end().stdout, format!("{process}\n"));
}

#[test]
fn the_library_is_found_by_both_of_its_names_before_all_others() {
    let here = Copied::with_library("names");
    let shell = "echo $LD_LIBRARY_PATH; d=${LD_LIBRARY_PATH%%:*}; cat $d/libibverbs.so.1 $d/librdmacm.so.1; echo; echo \"$LD_PRELOAD\"";
    let mut command = here.command(&["sh", "-c", shell]);
    command.env("LD_LIBRARY_PATH", "/opt/x:/opt/y");
    let ended = Uwarp::start_with(&mut command).end().expect(0);
    let links = here.path("bin/uwarp-run");
    let path = format!("{}:/opt/x:/opt/y", links.display());
    assert_eq!(ended.stdout, format!("{path}\na librarya library\n\n"));
    // The loader reports that it cannot load the dummy file as a library, and continues.
    let ended = here.run(&["--preload", "sh", "-c", "echo $LD_LIBRARY_PATH $LD_PRELOAD"]);
    let links = links.display();
    let said = ended.expect(0).stdout;
    let preloaded = format!("{links}/libibverbs.so.1:{links}/libuwarp_redirect.so");
    assert_eq!(said, format!("{links} {preloaded}\n"));
}

#[test]
fn preload_and_install_need_the_library_that_shows_the_device() {
    let here = Copied::with_library("redirect");
    fs::remove_file(here.path("bin/libuwarp_redirect.so")).unwrap();
    let prefix = here.path("prefix");
    for args in [
        &["--preload", "true"],
        &["--install", prefix.to_str().unwrap()],
    ] {
        let ended = here.run(args).expect(1);
        ended.says("the library that shows the device in /sys/class/infiniband is missing");
        ended.says("cargo build --release -p uwarp -p uwarp-dropin -p uwarp-redirect");
    }
    here.run(&["true"]).expect(0);
}

#[test]
fn flags_become_variables_and_the_others_stay_as_they_are() {
    let here = Copied::with_library("variables");
    let shell = "echo $UWARP_CRC,$UWARP_STRICT,$UWARP_HOLD,$UWARP_PCAP,$UWARP_MPA";
    let mut command = here.command(&["--hold", "5", "--pcap", "x.pcapng", "sh", "-c", shell]);
    command.env("UWARP_CRC", "off").env("UWARP_STRICT", "1");
    command.current_dir(&here.0);
    let ended = Uwarp::start_with(&mut command).end().expect(0);
    let pcap = fs::canonicalize(&here.0).unwrap().join("x.pcapng");
    assert_eq!(ended.stdout, format!("off,,5,{},\n", pcap.display()));
}

#[test]
fn the_program_has_the_limits_of_its_user() {
    let here = Copied::with_library("limits");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 100; exec \"$0\" run sh -c 'ulimit -Sn'"]);
    let ended = Uwarp::start_with(command.arg(here.path("bin/uwarp"))).end();
    assert_eq!(ended.expect(0).stdout, "100\n");
}

#[test]
fn what_is_installed_runs_from_its_prefix_and_installs_itself_again() {
    let here = Copied::with_library("install");
    let prefix = here.path("prefix");
    let prefix_text = prefix.to_str().unwrap();
    let ended = here.run(&["--install", prefix_text]).expect(0);
    let expected = [
        "bin/uwarp",
        "lib/uwarp/libibverbs.so.1",
        "lib/uwarp/librdmacm.so.1",
        "lib/uwarp/libuwarp_redirect.so",
        "lib/uwarp/bin/rdma",
    ];
    let said: Vec<_> = ended.stdout.lines().map(PathBuf::from).collect();
    assert_eq!(said, expected.map(|name| prefix.join(name)));
    let other = fs::read_link(prefix.join(expected[2])).unwrap();
    assert_eq!(other, Path::new("libibverbs.so.1"));

    let installed = |args: &[&str]| {
        let mut command = Command::new(prefix.join("bin/uwarp"));
        command.arg("run").args(args).env_remove("LD_LIBRARY_PATH");
        Uwarp::start_with(&mut command).end().expect(0)
    };
    installed(&["--install", prefix_text]);
    let ended = installed(&["sh", "-c", "cat $LD_LIBRARY_PATH/libibverbs.so.1; echo"]);
    assert_eq!(ended.stdout, "a library\n");
    let left = fs::read_dir(prefix.join("lib/uwarp")).unwrap().count();
    assert_eq!(left, 4, "something is left over");
    // The command that programs find by its name is this one.
    let rdma = fs::canonicalize(prefix.join(expected[4])).unwrap();
    assert_eq!(rdma, fs::canonicalize(prefix.join(expected[0])).unwrap());
}

#[test]
fn a_prefix_that_cannot_be_written_is_told() {
    let here = Copied::with_library("no-prefix");
    let file = here.path("bin/libuwarp_dropin.so");
    let ended = here.run(&["--install", file.to_str().unwrap()]).expect(1);
    ended.says("bin/uwarp cannot be written");
}

/// `uwarp devinfo` must say what to do, and not only what is missing.
#[test]
fn devinfo_says_how_to_get_the_library_that_is_missing() {
    let copied = Copied::new("doctor");
    let mut command = Command::new(copied.path("bin/uwarp"));
    let ended = Uwarp::start_with(command.arg("devinfo")).end().expect(0);
    // The message spans several lines of the table, so only its words are compared.
    let words: Vec<_> = ended.stdout.split_whitespace().collect();
    let due = "run no the library that replaces libibverbs and librdmacm is missing; try: run \
               cargo build --release -p uwarp -p uwarp-dropin -p uwarp-redirect;";
    assert!(words.join(" ").contains(due), "{}", ended.stdout);
    let copied = Copied::with_library("healthy");
    let mut command = Command::new(copied.path("bin/uwarp"));
    let ended = Uwarp::start_with(command.arg("devinfo")).end().expect(0);
    let due = "\n  run   yes unmodified programs load the library in";
    assert!(ended.stdout.contains(due), "{}", ended.stdout);
}
