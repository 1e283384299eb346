//! Writes the version script of the library. Symbols get their versions where they are defined
//! (`src/exports`). The linker only has to know the version nodes, each with its predecessor.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Version nodes of libibverbs, oldest first.
const VERBS: [&str; 12] = [
    "IBVERBS_1.0",
    "IBVERBS_1.1",
    "IBVERBS_1.5",
    "IBVERBS_1.6",
    "IBVERBS_1.7",
    "IBVERBS_1.8",
    "IBVERBS_1.9",
    "IBVERBS_1.10",
    "IBVERBS_1.11",
    "IBVERBS_1.12",
    "IBVERBS_1.13",
    "IBVERBS_1.14",
];
/// Version nodes of librdmacm, oldest first.
const RDMACM: [&str; 4] = ["RDMACM_1.0", "RDMACM_1.1", "RDMACM_1.2", "RDMACM_1.3"];
/// Version node of the private symbols that providers use, as the distribution's rdma-core names
/// it.
const PRIVATE: [&str; 1] = ["IBVERBS_PRIVATE_34"];
/// Version node of the symbol that the library of `dropin/redirect` calls.
const REDIRECT: [&str; 1] = ["UWARP_PRIVATE"];

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    // On other systems the library is empty and linkers take other options.
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return Ok(());
    }
    let mut map = String::new();
    for chain in [&VERBS[..], &RDMACM, &PRIVATE, &REDIRECT] {
        let mut before = String::new();
        for node in chain {
            map += &format!("{node} {{ }}{before};\n");
            before = format!(" {node}");
        }
    }
    let out = env::var_os("OUT_DIR").map(PathBuf::from);
    let file = out.unwrap_or_default().join("versions.map");
    fs::write(&file, map)?;
    let file = file.display();
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={file}");
    // Never unload the library: its threads would lose their code.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // The bounds of the fault table (`engine/src/mem/fault.rs`) belong to this library alone.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,start-stop-visibility=hidden");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        link_with_lld();
    }
    Ok(())
}

/// Selects lld. rustc passes a version script of its own, which is anonymous. GNU ld does not
/// accept an anonymous script together with named nodes ("anonymous version tag cannot be combined
/// with other version tags"); lld does. lld is rustc's default on x86-64, and the toolchain
/// contains it for other processors, too.
fn link_with_lld() {
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let printed = Command::new(rustc).args(["--print", "sysroot"]).output();
    let sysroot = printed.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    if let (Ok(sysroot), Ok(host)) = (sysroot, env::var("HOST")) {
        let directory = PathBuf::from(sysroot)
            .join("lib/rustlib")
            .join(host)
            .join("bin/gcc-ld");
        if directory.is_dir() {
            println!("cargo::rustc-cdylib-link-arg=-B{}", directory.display());
        }
    }
}
