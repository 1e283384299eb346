//! Exported symbols, each with its version (`ibv_open_device@@IBVERBS_1.1`). Programs that were
//! linked with rdma-core, and callers of `dlvsym`, ask for these versions.
//!
//! rustc gives its exported symbols no versions, and hides every symbol that it does not export
//! itself. Each versioned symbol is therefore a jump in assembler, which names the version where
//! the symbol is defined. The version script for the linker (`build.rs`) lists only the names of
//! the versions, without symbols.

#![expect(
    unsafe_code,
    reason = "versioned symbols need assembler: each jumps to a function of this crate"
)]

mod absent;
mod private;
mod rdmacm;
mod rsockets;
mod sysfs;
mod verbs;

/// Defines symbols of one version: `"@@VERSION" name => path, ...`. `@@` marks the default version,
/// to which the linker binds new programs. `@` marks an old version, which only programs that were
/// linked long ago use.
macro_rules! exports {
    ($version:literal $($name:ident => $function:path,)*) => {
        $(
            core::arch::global_asm!(
                concat!(".pushsection .text.uwarp.", stringify!($name), $version, ",\"ax\",@progbits"),
                concat!(".globl \"uwarp.", stringify!($name), $version, "\""),
                concat!(".type \"uwarp.", stringify!($name), $version, "\",@function"),
                concat!("\"uwarp.", stringify!($name), $version, "\":"),
                concat!($crate::exports::jump!(), " {function}"),
                concat!(".size \"uwarp.", stringify!($name), $version, "\", . - \"uwarp.", stringify!($name), $version, "\""),
                concat!(".symver \"uwarp.", stringify!($name), $version, "\",", stringify!($name), $version, ",remove"),
                ".popsection",
                function = sym $function,
            );
        )*
    };
}

/// Mnemonic of the instruction that jumps to a function. On aarch64 the instruction `bti c`
/// precedes it: with branch target identification, an indirect call must land on such an
/// instruction. `bti c` is written as `hint #34`, because assemblers accept the name only for
/// processors that have the instruction.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "hint #34\n b"
    };
}

/// Defines symbols that are not implemented: `name => function` (a function of the module
/// `absent`).
macro_rules! absent {
    ($version:literal $($name:ident => $how:ident,)*) => {
        $crate::exports::exports! { $version $($name => $crate::exports::absent::$how,)* }
    };
}

pub(crate) use jump;
use {absent as absent_names, exports};
