//! The device in `/sys/class/infiniband` and `/dev/infiniband` (`tests/c/sysfs.c`).

use std::path::{Path, PathBuf};

use crate::c;
use crate::prefix::Prefix;
use crate::process::{Place, unprivileged};

/// Output of the program, without its last line, which is a directory. `NODE` is the type of the
/// node.
const SHOWN: &str = "\
open is in libuwarp_redirect.so
early: -1 0 1
created: 1, mode 640
written: 4
read: text
realpath: /sys/class
gone: ENOENT
/dev/null: character device
infiniband_mad: ENOENT
NULL: 1
stat: directory
stat: file
stat: character device
stat64: directory
lstat: character device
lstat: link
lstat64: directory
fstatat: directory
fstatat64: directory
statx: character device
__xstat: directory
__xstat64: directory
__lxstat: directory
__lxstat64: directory
__fxstatat: directory
__fxstatat64: directory
access: 0 0 -1
euidaccess: 0 0
faccessat: 0 -1
open: NODE
open64: NODE
openat: NODE
openat64: NODE
__open_2: NODE
__openat_2: NODE
__open64_2: NODE
__openat64_2: NODE
open for writing: EACCES
open of no file: ENOENT
fopen: NODE
fopen: NODE
device: 0
/sys/class/infiniband: uwarp0
/sys/class/infiniband/uwarp0: board_id device fw_ver hca_type hw_rev node_desc node_guid node_type ports sys_image_guid
/sys/class/infiniband/uwarp0/device: device net numa_node vendor
/sys/class/infiniband/uwarp0/ports/1: cap_mask counters gid_attrs gids hw_counters lid lid_mask_count link_layer phys_state pkeys rate sm_lid sm_sl state
/sys/class/infiniband/uwarp0/ports/1/counters: port_rcv_data port_xmit_data
/sys/class/infiniband/uwarp0/ports/1/gid_attrs: ndevs types
/sys/class/infiniband_verbs: abi_version uverbs0
/sys/class/infiniband_verbs/uverbs0: abi_version device ibdev
/dev/infiniband: uverbs0
opendir: is open
more than 20 files: 1
readlink: 17 17 17 17 /sys/class/net/lo
realpath: /sys/class/infiniband/uwarp0/device
realpath: /sys/class/infiniband/uwarp0/device
__realpath_chk: /sys/class/infiniband/uwarp0/device
canonicalize_file_name: /sys/class/infiniband/uwarp0
realpath: /dev/null
xattr: -1 -1 1 1
cancelled: 1
cancelled: 1
PDs: 0
PDs: 2
PDs of the child: 0
child: 0
PDs: 2
path: /sys/class/infiniband/uwarp0 /sys
ibv_read_sysfs_file: 8 Ethernet
forks: 50 good, missing 0
";

fn program(prefix: &Prefix) -> Result<PathBuf, String> {
    let libraries = ["-libverbs", "-ldl", "-lpthread"];
    c::compile(prefix, "cc", "sysfs.c", &libraries)
}

fn run(prefix: &Prefix, flags: &[&str]) -> Result<String, String> {
    let (program, scratch) = (program(prefix)?, prefix.scratch());
    let words = [program.to_str(), scratch.to_str()];
    let [Some(program), Some(scratch)] = words else {
        return Err("the path is not UTF-8".to_owned());
    };
    Place { prefix, flags }.start(&[program, scratch])?.end()
}

fn has_shown(prefix: &Prefix, persona: &str, node: &str) -> Result<(), String> {
    let flags = [
        "--preload",
        "--persona",
        persona,
        "--device",
        "tcp:127.0.0.1",
    ];
    let said = run(prefix, &flags)?;
    let due = SHOWN.replace("NODE", node);
    let Some(root) = said.strip_prefix(&due) else {
        return Err(format!("{said}\ninstead of\n{due}"));
    };
    let root = root.trim_end();
    let root = root.strip_suffix("/sys/class/infiniband");
    let root = root.ok_or_else(|| said.clone())?;
    // The program removes its directory at exit.
    match root.contains("/uwarp-sysfs-") && !Path::new(root).exists() {
        true => Ok(()),
        false => Err(format!(
            "{root} is still there, or is no directory of uwarp"
        )),
    }
}

pub(crate) fn every_function_finds_a_roce_device(prefix: &Prefix) -> Result<(), String> {
    has_shown(prefix, "roce", "1: CA")
}

pub(crate) fn every_function_finds_an_iwarp_device(prefix: &Prefix) -> Result<(), String> {
    has_shown(prefix, "iwarp", "4: RNIC")
}

pub(crate) fn without_preload_nothing_is_redirected(prefix: &Prefix) -> Result<(), String> {
    let said = run(prefix, &["--persona", "roce"])?;
    let is_there = Path::new("/sys/class/infiniband").exists();
    let shows = said.lines().any(|line| line == "stat: directory");
    match said.starts_with("open is in libc.so.6\n") && shows == is_there {
        true => Ok(()),
        false => Err(said),
    }
}

/// A look neither creates the capture, which a process of the program may have open, nor says that
/// it cannot.
pub(crate) fn a_look_creates_no_capture(prefix: &Prefix) -> Result<(), String> {
    const SCRIPT: &str = "ls /sys/class/infiniband; ls look.pcapng 2>/dev/null || echo none
ibv_devinfo >/dev/null; ls look.pcapng";
    let flags = &["--preload", "--pcap", "look.pcapng"];
    let said = Place { prefix, flags }
        .start(&["sh", "-c", SCRIPT])?
        .end()?;
    match said == "uwarp0\nnone\nlook.pcapng\n" {
        true => Ok(()),
        false => Err(said),
    }
}

/// Programs that call `rdma link show -j` find the device (`cli/src/rdma.rs`).
pub(crate) fn rdma_shows_the_link(prefix: &Prefix) -> Result<(), String> {
    const LINK: &str = concat!(
        r#"[{"ifindex":0,"ifname":"a","port":1,"state":"ACTIVE","physical_state":"LINK_UP","#,
        r#""netdev":"lo","netdev_index":1},"#,
        r#"{"ifindex":1,"ifname":"b","port":1,"state":"ACTIVE","physical_state":"LINK_UP","#,
        r#""netdev":"lo","netdev_index":1}]"#,
        "\nlink b/1 state ACTIVE physical_state LINK_UP netdev lo \n"
    );
    const SCRIPT: &str = "rdma link show -j; rdma link show b/1";
    for way in [&["--preload"][..], &["--sysfs", "namespace"]] {
        let device = [
            "--persona",
            "roce",
            "--device",
            "tcp:127.0.0.1",
            "--name",
            "a,b",
        ];
        let flags = &[way, &device].concat();
        let said = Place { prefix, flags }
            .start(&["sh", "-c", SCRIPT])?
            .end()?;
        if said != LINK {
            return Err(format!("{way:?}: {said}"));
        }
    }
    Ok(())
}

/// Commands that run at the same time have a device each, and none disturbs another.
pub(crate) fn several_rdma_at_once_show_the_link(prefix: &Prefix) -> Result<(), String> {
    const SCRIPT: &str = "dir=$(mktemp -d)
for number in 1 2 3 4 5 6; do rdma link show uwarp0/1 >$dir/$number 2>&1 & done
wait; cat $dir/*; rm -r $dir";
    const LINK: &str = "link uwarp0/1 state ACTIVE physical_state LINK_UP netdev lo \n";
    for way in [&["--preload"][..], &["--sysfs", "namespace"]] {
        let device = ["--persona", "roce", "--device", "tcp:127.0.0.1"];
        let flags = &[way, &device].concat();
        let said = Place { prefix, flags }
            .start(&["sh", "-c", SCRIPT])?
            .end()?;
        if said != LINK.repeat(6) {
            return Err(format!("{way:?}: {said}"));
        }
    }
    Ok(())
}

/// A killed process leaves its directory, and the next process of the same user removes it.
pub(crate) fn the_directory_of_a_killed_process_is_removed_by_the_next(
    prefix: &Prefix,
) -> Result<(), String> {
    // `readlink` of coreutils follows the link of the descriptor that the shell has opened.
    const SCRIPT: &str =
        "exec 3</sys/class/infiniband/uwarp0/node_type; readlink /proc/self/fd/3; kill -9 $$";
    let flags = &["--preload"];
    let place = Place { prefix, flags };
    let words = format!("sh -c '{SCRIPT}'; ls /sys/class/infiniband");
    let said = place.start(&["sh", "-c", &words])?.end()?;
    let root = said
        .lines()
        .find_map(|line| line.strip_suffix("/sys/class/infiniband/uwarp0/node_type"));
    let root = root.ok_or_else(|| said.clone())?;
    match said.lines().any(|line| line == "uwarp0") && !Path::new(root).exists() {
        true => Ok(()),
        false => Err(said),
    }
}

/// Programs see the mounts without `--preload`, whatever they call. They keep their user, and gain
/// no rights.
pub(crate) fn a_namespace_has_the_device_for_every_program(prefix: &Prefix) -> Result<(), String> {
    const SCRIPT: &str = "cd /sys/class/infiniband && echo *
cat uwarp0/node_type uwarp0/ports/1/gid_attrs/types/0 ../infiniband_verbs/uverbs0/ibdev
stat -c %F /dev/infiniband/uverbs0
ls uwarp0/ports/1 | grep counters
ls -d ../net /sys/kernel/mm
echo x >/dev/null
grep CapEff /proc/self/status
echo \"LD_PRELOAD $LD_PRELOAD\"";
    const SHOWN: &str = "uwarp0
1: CA
RoCE v2
uwarp0
character special file
counters
../net
/sys/kernel/mm
CapEff:\t0000000000000000
LD_PRELOAD 
";
    let flags = &["--sysfs", "namespace", "--persona", "roce"];
    let place = Place { prefix, flags };
    let said = place.start(&["sh", "-c", SCRIPT])?.end()?;
    match said == SHOWN {
        true => Ok(()),
        false => Err(said),
    }
}

/// A command under `--preload` may enter the namespace too. With both flags, programs that call the
/// C library see the counters of their process.
pub(crate) fn a_namespace_and_preload_go_together(prefix: &Prefix) -> Result<(), String> {
    const COUNTERS: &str = "cat /sys/class/infiniband/uwarp0/ports/1/hw_counters/qps";
    let flags = &["--preload"];
    let uwarp = prefix.uwarp();
    let uwarp = uwarp.to_str().ok_or("the path is not UTF-8")?;
    let words = [
        uwarp,
        "run",
        "--sysfs",
        "namespace",
        "--",
        "sh",
        "-c",
        COUNTERS,
    ];
    let nested = Place { prefix, flags }.start(&words)?.end()?;
    let flags = &["--preload", "--sysfs", "namespace"];
    let both = Place { prefix, flags }
        .start(&["sh", "-c", COUNTERS])?
        .end()?;
    match (nested.as_str(), both.as_str()) {
        ("0\n", "0\n") => Ok(()),
        _ => Err(format!("{nested}\n{both}")),
    }
}

pub(crate) fn a_namespace_that_is_not_allowed_is_told(prefix: &Prefix) -> Result<(), String> {
    const SCRIPT: &str = "echo 0 >/proc/sys/user/max_user_namespaces
setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- \"$1\" run --sysfs namespace -- echo started
echo status $?";
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Ur", "sh", "-c", SCRIPT, "sh"]);
    command.arg(prefix.uwarp());
    let place = Place { prefix, flags: &[] };
    let said = place
        .spawn(&mut command, "no namespaces".to_owned())?
        .end()?;
    let due = [
        "the program cannot have a namespace of its own: No space left on device",
        "user.max_user_namespaces",
        "or use --preload",
        "status 1",
    ];
    match due.iter().all(|words| said.contains(words)) && !said.contains("started") {
        true => Ok(()),
        false => Err(said),
    }
}
