//! Faults of accesses to registered memory that the program has unmapped, or whose file it has
//! truncated.
//!
//! Each instruction of `raw` and `piece` that accesses registered memory has an entry in a table of
//! the program (the section `uwarp_faults`), with the address at which to continue after a fault.
//! The handler of SIGSEGV and SIGBUS looks up the instruction that faulted. Without an entry the
//! fault belongs to other code, and the handler that was installed before gets it. Nothing is
//! recorded before an access, so an access that does not fault costs nothing.
//!
//! The handler is installed with the first memory that can vanish: memory of the program that is
//! registered in place, and files. Each later such registration checks whether it is still
//! installed. If the program has replaced it meanwhile, it is installed again, and the program's
//! handler gets the other faults. The program's handler may pass faults on to ours, so each
//! installation has a function and a predecessor of its own. Otherwise the two would call each
//! other without end.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(super) use table::install;

/// Does nothing: this processor has no fault table.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(super) fn install() {}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod table {
    use core::cell::UnsafeCell;
    use core::mem::{self, MaybeUninit};
    use core::ptr;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use libc::{c_int, c_void, sigaction, siginfo_t, ucontext_t};

    use crate::fork_guard::ForkLock;

    /// A fault from `start` up to `end` continues at `landing`. The numbers are relative to their
    /// own addresses, so the table needs no relocation.
    #[repr(C)]
    struct Entry {
        start: i32,
        end: i32,
        landing: i32,
    }

    unsafe extern "C" {
        // Made by the linker, for a section whose name is a C identifier.
        #[link_name = "__start_uwarp_faults"]
        static FIRST: Entry;
        #[link_name = "__stop_uwarp_faults"]
        static LAST: Entry;
    }

    const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
    /// Number of times that a handler is installed for a signal. A program that replaces it more
    /// often keeps its own.
    const LEVELS: usize = 4;

    type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
    const HANDLERS: [Handler; LEVELS] = [handle::<0>, handle::<1>, handle::<2>, handle::<3>];

    /// The action that a handler has replaced.
    struct Previous(UnsafeCell<MaybeUninit<sigaction>>);

    // SAFETY: an action is written once, under `LOCK`, before its handler is installed. Only that
    // handler reads it.
    unsafe impl Sync for Previous {}

    static PREVIOUS: [[Previous; 2]; LEVELS] =
        [const { [const { Previous(UnsafeCell::new(MaybeUninit::zeroed())) }; 2] }; LEVELS];
    /// Number of handlers that were taken for each signal. Changed under `LOCK`.
    static TAKEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static LOCK: ForkLock = ForkLock::new();

    /// Installs the handlers, unless they are.
    pub(in crate::mem) fn install() {
        let _held = LOCK.lock();
        for (index, signal) in SIGNALS.into_iter().enumerate() {
            // SAFETY: the structure has only numbers and pointers, so all bytes may be zero.
            let mut action: sigaction = unsafe { mem::zeroed() };
            // SAFETY: the call only writes the structure.
            if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
                continue;
            }
            let current = action.sa_sigaction;
            let ours = |handler: &Handler| *handler as *const () as usize == current;
            let level = TAKEN[index].load(Ordering::Relaxed);
            if HANDLERS.iter().any(ours) || level >= LEVELS {
                continue;
            }
            // A fork at any point below must not make the child take this level again, because its
            // handler may be installed.
            TAKEN[index].store(level + 1, Ordering::Relaxed);
            // SAFETY: the handler of this level is not installed, so nothing reads it.
            unsafe { (*PREVIOUS[level][index].0.get()).write(action) };
            action.sa_sigaction = HANDLERS[level] as *const () as usize;
            // The predecessor is called with the mask and on the stack that it asked for.
            action.sa_flags = match current {
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_SIGINFO | libc::SA_ONSTACK,
                _ => action.sa_flags & !libc::SA_RESETHAND | libc::SA_SIGINFO,
            };
            // SAFETY: the handler only reads static memory and calls functions that are
            // async-signal-safe, and its predecessor.
            unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        }
    }

    /// Handles a fault.
    ///
    /// # Safety
    /// Called by the kernel, or by a handler that passes on its own arguments.
    unsafe extern "C" fn handle<const LEVEL: usize>(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
    ) {
        // SAFETY: the kernel passes valid pointers. The previous action was written before this
        // handler was installed.
        unsafe {
            // A signal that a process has sent is no fault, whatever instruction it interrupts.
            if (*info).si_code > 0 && resume(context.cast()) {
                return;
            }
            let index = usize::from(signal == libc::SIGBUS);
            let previous = (*PREVIOUS[LEVEL][index].0.get()).assume_init_ref();
            pass_on(signal, info, context, previous);
        }
    }

    /// Makes the thread continue at the landing of the instruction that faulted. Returns false if
    /// the instruction has no entry.
    ///
    /// # Safety
    /// `context` is that of a signal handler.
    unsafe fn resume(context: *mut ucontext_t) -> bool {
        // SAFETY: guaranteed by the caller; the linker lays the entries between the two symbols.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            let counter = &raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
            #[cfg(target_arch = "aarch64")]
            let counter = &raw mut (*context).uc_mcontext.pc;
            let mut entry = &raw const FIRST;
            while entry < &raw const LAST {
                let at = |field: *const i32| field.addr().wrapping_add_signed(*field as isize);
                let start = at(&raw const (*entry).start);
                let end = at(&raw const (*entry).end);
                if (start..end).contains(&(*counter as usize)) {
                    *counter = at(&raw const (*entry).landing) as _;
                    return true;
                }
                entry = entry.add(1);
            }
        }
        false
    }

    /// Does what the kernel would have done without our handler.
    ///
    /// # Safety
    /// The arguments are those of a signal handler, and of the action that it replaced.
    unsafe fn pass_on(
        signal: c_int,
        info: *mut siginfo_t,
        context: *mut c_void,
        previous: &sigaction,
    ) {
        // SAFETY: guaranteed by the caller. The address of a handler is that of a function with the
        // arguments that its flags name.
        unsafe {
            let forced = (*info).si_code > 0;
            match previous.sa_sigaction {
                libc::SIG_IGN if !forced => {}
                libc::SIG_DFL | libc::SIG_IGN => {
                    set_default(signal);
                    // An instruction faults again when the handler returns. A sent signal has to
                    // be sent again; it is blocked until then.
                    if !forced {
                        let (process, thread) = (libc::getpid(), libc::gettid());
                        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
                    }
                }
                handler => {
                    if previous.sa_flags & libc::SA_RESETHAND != 0 {
                        set_default(signal);
                    }
                    if previous.sa_flags & libc::SA_SIGINFO != 0 {
                        let handler: Handler = mem::transmute(handler);
                        handler(signal, info, context);
                    } else {
                        let handler: unsafe extern "C" fn(c_int) = mem::transmute(handler);
                        handler(signal);
                    }
                }
            }
        }
    }

    fn set_default(signal: c_int) {
        // SAFETY: all bytes of the structure may be zero. `SIG_DFL` runs no code of the process.
        unsafe {
            let mut action: sigaction = mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }

    #[cfg(test)]
    mod tests {
        use uwarp_testkit::ends_in_child;

        use super::*;

        /// Without a lock that knows of forks, the child would wait for a thread that it does not
        /// have.
        #[test]
        fn a_fork_during_an_installation_does_not_stop_the_child_from_installing() {
            if std::env::var_os("QEMU_LD_PREFIX").is_some() {
                eprintln!("SKIPPED: QEMU's user emulation takes MADV_WIPEONFORK and does not wipe");
                return;
            }
            let held = LOCK.lock();
            assert!(ends_in_child(|| {
                install();
                true
            }));
            drop(held);
        }
    }
}
