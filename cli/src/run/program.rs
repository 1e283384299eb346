//! Checks the program before it is executed. A program that ignores `LD_LIBRARY_PATH` would
//! silently run without uwarp.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Take};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use object::elf::{FileHeader64, Machine, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache};
use rustix::fs::{Access, StatVfsMountFlags, access, getxattr, statvfs};
use rustix::process::{getegid, geteuid};

/// Maximum number of bytes that Linux reads of a script's first line.
const SCRIPT_LINE: u64 = 256;
/// Maximum number of scripts in a chain of interpreters, as in Linux.
const SCRIPTS: usize = 5;
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;
/// User id of root, who has all capabilities without file capabilities.
const ROOT: u32 = 0;
/// Search path of `exec` in the C libraries of Linux if `PATH` is not set.
pub(super) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Reason why a program would not load the library.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsuitable {
    /// The file names no dynamic loader.
    Static,
    /// The file is made for another processor, or for 32 bits.
    OtherMachine,
    /// The file gives its program other privileges, so the loader ignores the environment.
    OtherRights(&'static str),
}

impl Unsuitable {
    /// Returns the end of a sentence that begins with the name of the program.
    pub(super) fn reason(&self) -> String {
        match self {
            Unsuitable::Static => {
                "is statically linked: it does not load libibverbs, so uwarp cannot replace that".into()
            }
            Unsuitable::OtherMachine => {
                "is made for another processor or word size than this uwarp and cannot load its library".into()
            }
            Unsuitable::OtherRights(what) => {
                format!("{what}: the dynamic loader ignores LD_LIBRARY_PATH for it, and so does not find uwarp")
            }
        }
    }

    /// Returns the suggestion that follows `try:` in a report.
    pub(super) fn advice(&self) -> &'static str {
        match self {
            Unsuitable::Static => {
                "use a build that is linked with libibverbs.so.1; for a static launcher of such programs, set \
                 LD_LIBRARY_PATH by hand (dropin/README.md)"
            }
            Unsuitable::OtherMachine => "use a build for this machine's architecture",
            Unsuitable::OtherRights(_) => {
                "copy the program (cp drops these rights), and run the copy with the privileges that it needs"
            }
        }
    }
}

/// Returns the file that `exec` would run for `program`: its path, or the first executable in the
/// `PATH`.
///
/// Returns `None` if there is none. `exec` then reports the reason.
pub(super) fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| file.is_file() && access(file, Access::EXEC_OK).is_ok())
}

/// Checks `file`, or its interpreter if it is a script.
///
/// A file that cannot be read passes, because `exec` reports the reason.
pub(super) fn check(file: &Path) -> Result<(), (PathBuf, Unsuitable)> {
    let mut file = file.to_owned();
    for _ in 0..SCRIPTS {
        match interpreter(&file) {
            Ok(Some(next)) => file = next,
            Ok(None) | Err(_) => break,
        }
    }
    // This check does not open the file, because a program may be executable and not readable. On
    // scripts Linux ignores the setuid and setgid bits and capabilities.
    if let Ok(Some(why)) = changes_rights(&file) {
        return Err((file, Unsuitable::OtherRights(why)));
    }
    if is_loader(&file) {
        return Ok(());
    }
    match unsuitable(&file) {
        Ok(Some(why)) => Err((file, why)),
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Returns true for the dynamic loader. It is recognized by its own name, or by the name of the
/// file that it links to (`/usr/bin/ld.so`). The loader's file names no loader, but the loader uses
/// LD_LIBRARY_PATH for the program that it runs.
fn is_loader(file: &Path) -> bool {
    let has_name = |file: &Path| {
        let name = file.file_name();
        name.is_some_and(|name| name.as_bytes().starts_with(b"ld-"))
    };
    has_name(file) || file.canonicalize().is_ok_and(|file| has_name(&file))
}

/// Returns the interpreter of a script, or `None` for a program.
fn interpreter(file: &Path) -> io::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    let mut reader: Take<_> = BufReader::new(File::open(file)?).take(SCRIPT_LINE);
    reader.read_until(b'\n', &mut line)?;
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let name = rest.trim_ascii().split(u8::is_ascii_whitespace).next();
    Ok(name.map(|name| OsStr::from_bytes(name).into()))
}

fn unsuitable(file: &Path) -> io::Result<Option<Unsuitable>> {
    Ok(links(&File::open(file)?, machine()?))
}

/// Returns the ELF class and processor of this command, which are also those of its library.
fn machine() -> io::Result<(FileKind, Machine)> {
    let own = File::open("/proc/self/exe")?;
    Ok(header(&ReadCache::new(own)).unwrap_or((FileKind::Elf64, Machine(0))))
}

fn header(file: &ReadCache<impl object::read::ReadCacheOps>) -> Option<(FileKind, Machine)> {
    let kind = FileKind::parse(file).ok()?;
    let machine = match kind {
        FileKind::Elf64 => {
            let header = FileHeader64::<Endianness>::parse(file).ok()?;
            header.e_machine(header.endian().ok()?)
        }
        _ => Machine(0),
    };
    Some((kind, machine))
}

/// Checks that an ELF file loads shared libraries of this machine. Other files pass.
fn links(file: &File, machine: (FileKind, Machine)) -> Option<Unsuitable> {
    let data = ReadCache::new(file);
    let found = header(&data)?;
    if found != machine {
        let is_elf = matches!(found.0, FileKind::Elf32 | FileKind::Elf64);
        return is_elf.then_some(Unsuitable::OtherMachine);
    }
    let header = FileHeader64::<Endianness>::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &data).ok()?;
    let loader = segments
        .iter()
        .any(|segment| segment.p_type(endian) == PT_INTERP);
    (!loader).then_some(Unsuitable::Static)
}

/// Returns the property of the file that makes `exec` give the program privileges which this
/// process does not have (`AT_SECURE` in getauxval(3)).
fn changes_rights(file: &Path) -> io::Result<Option<&'static str>> {
    let metadata = fs::metadata(file)?;
    let no_set_id = statvfs(file)?.f_flag.contains(StatVfsMountFlags::NOSUID) || no_new_rights()?;
    if no_set_id {
        return Ok(None);
    }
    let none: &mut [u8] = &mut [];
    Ok(Rights {
        mode: metadata.mode(),
        owner: (metadata.uid(), metadata.gid()),
        has_capabilities: getxattr(file, "security.capability", none).is_ok(),
    }
    .change_for((geteuid().as_raw(), getegid().as_raw())))
}

/// Properties of a file that may give its program other privileges.
struct Rights {
    mode: u32,
    /// User and group of the file.
    owner: (u32, u32),
    has_capabilities: bool,
}

impl Rights {
    /// Returns the property that changes the privileges of a process with this effective user and
    /// group.
    fn change_for(&self, (user, group): (u32, u32)) -> Option<&'static str> {
        // Without the group's execute permission, the setgid bit does not change the group.
        let has_group = self.mode & (SET_GID | GROUP_EXECUTE) == SET_GID | GROUP_EXECUTE;
        if self.mode & SET_UID != 0 && self.owner.0 != user {
            Some("is setuid")
        } else if has_group && self.owner.1 != group {
            Some("is setgid")
        } else if self.has_capabilities && user != ROOT {
            Some("has file capabilities")
        } else {
            None
        }
    }
}

/// Returns true if `exec` cannot give this process privileges (`PR_SET_NO_NEW_PRIVS`).
fn no_new_rights() -> io::Result<bool> {
    let status = fs::read_to_string("/proc/self/status")?;
    let mut lines = status.lines();
    Ok(lines.any(|line| line.strip_prefix("NoNewPrivs:").map(str::trim) == Some("1")))
}

/// Returns the Debian package of a known program of libibverbs or librdmacm.
pub(super) fn package_of(program: &str) -> Option<&'static str> {
    const PROGRAMS: &[(&str, &[&str])] = &[
        (
            "rdmacm-utils",
            &[
                "cmtime",
                "mckey",
                "rcopy",
                "rdma_client",
                "rdma_server",
                "rdma_xclient",
                "rdma_xserver",
                "riostream",
                "rping",
                "rstream",
                "ucmatose",
                "udaddy",
                "udpong",
            ],
        ),
        (
            "ibverbs-utils",
            &[
                "ibv_asyncwatch",
                "ibv_devices",
                "ibv_devinfo",
                "ibv_rc_pingpong",
                "ibv_srq_pingpong",
                "ibv_uc_pingpong",
                "ibv_ud_pingpong",
                "ibv_xsrq_pingpong",
            ],
        ),
        ("qperf", &["qperf"]),
        ("fio", &["fio"]),
        ("tgt", &["tgtd", "tgtadm", "tgtimg"]),
        (
            "libiscsi-bin",
            &[
                "iscsi-inq",
                "iscsi-ls",
                "iscsi-perf",
                "iscsi-readcapacity16",
                "iscsi-swp",
                "iscsi-test-cu",
            ],
        ),
        ("libfabric-bin", &["fi_info", "fi_pingpong", "fi_strerror"]),
        ("ucx-utils", &["ucx_info", "ucx_perftest"]),
        (
            "openmpi-bin",
            &["mpiexec", "mpirun", "ompi_info", "orterun"],
        ),
    ];
    // Programs of perftest: `ib_write_bw`, `ib_atomic_lat`, `raw_ethernet_send_bw`.
    let is_perftest = (program.starts_with("ib_") || program.starts_with("raw_ethernet_"))
        && (program.ends_with("_bw") || program.ends_with("_lat"));
    if is_perftest {
        return Some("perftest");
    }
    let mut packages = PROGRAMS.iter();
    let found = packages.find(|(_, programs)| programs.contains(&program));
    found.map(|(package, _)| *package)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Temporary file, removed on drop.
    struct Temporary(PathBuf);

    impl Temporary {
        fn new(name: &str, content: &[u8]) -> Temporary {
            let path = env::temp_dir().join(format!("uwarp-program-{}-{name}", std::process::id()));
            fs::write(&path, content).unwrap();
            Temporary(path)
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn reason(file: &Path) -> Option<Unsuitable> {
        check(file).err().map(|(_, why)| why)
    }

    /// Copies the start of this test's own executable, with one part of its headers changed.
    fn changed(name: &str, change: impl Fn(&mut Vec<u8>)) -> Temporary {
        let mut own = fs::read("/proc/self/exe").unwrap();
        own.truncate(4096);
        change(&mut own);
        Temporary::new(name, &own)
    }

    #[test]
    fn a_dynamic_program_is_suitable() {
        assert_eq!(check(Path::new("/proc/self/exe")), Ok(()));
        assert_eq!(reason(&changed("same", |_| {}).0), None);
    }

    #[test]
    fn a_program_without_a_loader_is_static() {
        let file = changed("static", |bytes| {
            // p_type of each program header: e_phoff at 32, e_phentsize at 54, e_phnum at
            // 56
            let table = u64::from_ne_bytes(bytes[32..40].try_into().unwrap()) as usize;
            let size = usize::from(u16::from_ne_bytes([bytes[54], bytes[55]]));
            let count = usize::from(u16::from_ne_bytes([bytes[56], bytes[57]]));
            for at in (0..count).map(|index| table + index * size) {
                if bytes[at..at + 4] == PT_INTERP.0.to_ne_bytes() {
                    bytes[at..at + 4].fill(0);
                }
            }
        });
        assert_eq!(reason(&file.0), Some(Unsuitable::Static));
    }

    #[test]
    fn a_program_of_another_processor_or_of_32_bits_is_named() {
        let other = changed("machine", |bytes| bytes[18] ^= 0xff);
        assert_eq!(reason(&other.0), Some(Unsuitable::OtherMachine));
        let narrow = changed("class", |bytes| bytes[4] = 1);
        assert_eq!(reason(&narrow.0), Some(Unsuitable::OtherMachine));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let program = changed("interpreter", |bytes| bytes[18] ^= 0xff);
        let text = format!("#! {} -x\necho\n", program.0.display());
        let script = Temporary::new("script", text.as_bytes());
        assert_eq!(
            check(&script.0),
            Err((program.0.clone(), Unsuitable::OtherMachine))
        );
        // A script that interprets itself must not make the search endless.
        let own = Temporary::new("own", b"");
        fs::write(&own.0, format!("#!{}\n", own.0.display())).unwrap();
        assert_eq!(check(&own.0), Ok(()));
    }

    #[test]
    fn files_that_are_no_programs_are_left_to_exec() {
        let missing = Temporary::new("missing", b"");
        fs::remove_file(&missing.0).unwrap();
        assert_eq!(check(&missing.0), Ok(()));
        assert_eq!(check(&Temporary::new("empty", b"").0), Ok(()));
        assert_eq!(check(&Temporary::new("text", b"a library").0), Ok(()));
    }

    #[test]
    fn a_setuid_bit_matters_where_it_changes_the_user() {
        let file = changed("setuid", |_| {});
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o4755)).unwrap();
        // The setuid bit changes nothing if the file belongs to the current user.
        assert_eq!(reason(&file.0), None);
        if geteuid().is_root() {
            std::os::unix::fs::chown(&file.0, Some(65534), None).unwrap();
            fs::set_permissions(&file.0, fs::Permissions::from_mode(0o4755)).unwrap();
            let ignored = statvfs(&file.0)
                .unwrap()
                .f_flag
                .contains(StatVfsMountFlags::NOSUID)
                || no_new_rights().unwrap();
            let expected = (!ignored).then_some(Unsuitable::OtherRights("is setuid"));
            assert_eq!(reason(&file.0), expected);
        }
    }

    #[test]
    fn rights_matter_where_this_process_does_not_have_them() {
        let rights = |mode, has_capabilities| Rights {
            mode,
            owner: (10, 20),
            has_capabilities,
        };
        for (mode, has_capabilities, who, expected) in [
            (0o0755, false, (1, 2), None),
            (0o4711, false, (1, 2), Some("is setuid")),
            (0o4711, false, (10, 2), None),
            (0o2711, false, (1, 2), Some("is setgid")),
            (0o2711, false, (1, 20), None),
            // On old systems, this setgid bit means mandatory locking.
            (0o2701, false, (1, 2), None),
            (0o6711, false, (10, 2), Some("is setgid")),
            (0o0711, true, (10, 20), Some("has file capabilities")),
            (0o0711, true, (ROOT, 20), None),
        ] {
            let found = rights(mode, has_capabilities).change_for(who);
            assert_eq!(found, expected, "{mode:o} {has_capabilities} {who:?}");
        }
    }

    #[test]
    fn the_loader_is_known_through_a_link() {
        let loader = changed("loader", |bytes| bytes[18] ^= 0xff);
        // A copy with another name is checked like any program.
        assert_eq!(reason(&loader.0), Some(Unsuitable::OtherMachine));
        let dir = env::temp_dir().join(format!("uwarp-loaders-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (named, link) = (dir.join("ld-linux.so.2"), dir.join("ld.so"));
        fs::copy(&loader.0, &named).unwrap();
        std::os::unix::fs::symlink(&named, &link).unwrap();
        let found = [&named, &link].map(|file| check(file));
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [Ok(()), Ok(())]);
    }

    #[test]
    fn packages_are_known_by_the_names_of_their_programs() {
        for (program, package) in [
            ("rping", Some("rdmacm-utils")),
            ("ib_write_bw", Some("perftest")),
            ("raw_ethernet_burst_lat", Some("perftest")),
            ("ibv_devinfo", Some("ibverbs-utils")),
            ("mpirun", Some("openmpi-bin")),
            ("ib_something", None),
            ("ls", None),
        ] {
            assert_eq!(package_of(program), package, "{program}");
        }
    }
}
