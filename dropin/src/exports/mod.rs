//! The names that programs link against, each with its version (`ibv_open_device@@IBVERBS_1.1`): what `dlvsym` asks for, and what
//! a program that was linked with rdma-core names.
//!
//! rustc exports names without versions and hides all others. So each versioned name is a jump of its own, in assembler, which
//! names the version where it is defined; the linker gets only the nodes (`build.rs`).

#![expect(
    unsafe_code,
    reason = "names with versions are made in assembler: each is a jump to a function of this crate"
)]

mod absent;
mod private;
mod rdmacm;
mod rsockets;
mod verbs;

/// Names of one version, and the function behind each: `"@@VERSION" name => path, ...`. `@@` is what a program gets that is linked
/// now, `@` only what one asks for that was linked then.
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

/// The instructions that go to a function and do not come back. On aarch64 they begin with `bti c`, by its number because
/// assemblers want to be told that the processor has it: programs may be built to jump to nothing else.
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

/// Names that are there and do nothing, and how they say so (a function of the module `absent`).
macro_rules! absent {
    ($version:literal $($name:ident => $how:ident,)*) => {
        $crate::exports::exports! { $version $($name => $crate::exports::absent::$how,)* }
    };
}

pub(crate) use jump;
use {absent as absent_names, exports};
