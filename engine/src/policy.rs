//! Tuning constants of this crate, and the switch that builds uwarp without a heuristic.
//!
//! A *heuristic* chooses between ways that are all correct: when to send, poll, yield or sleep, how
//! large a batch or a buffer is, and from which length bytes take another way. The `policy` module
//! of each crate has its constants, each with the reason for its value. Those of `uwarp-llp` are in
//! its own `policy`, and those of `uwarp-verbs` in a private module of the same name. Here are
//! those of registered memory; [`transfer`] has those of batches and buffers.
//!
//! A figure is of the machine that it names; docs/performance.md describes these machines. "Not
//! measured" says that the value was chosen without a comparison.
//!
//! # The switch
//! For a measurement, `UWARP_POLICY_OFF` names heuristics that a build leaves out. It is read when
//! the crates are compiled, so the choice costs nothing at run time:
//!
//! ```sh
//! UWARP_POLICY_OFF=back_off,reply_wait cargo build --release -p uwarp
//! ```
//!
//! The documentation of each `Heuristic` says what remains without it. Such a build is correct, but
//! perhaps slower. The tests of a heuristic fail or hang without it. A name that no crate knows is
//! an error of a build with `uwarp-verbs`.

pub mod transfer;

use std::time::Duration;

/// Names of the heuristics that this build leaves out, separated by commas.
const OFF: &str = match option_env!("UWARP_POLICY_OFF") {
    Some(names) => names,
    None => "",
};

/// Returns true if this build leaves out the heuristic of this name.
pub const fn is_off(name: &str) -> bool {
    contains(OFF, name)
}

/// Returns true if each name in `UWARP_POLICY_OFF` is in one of these lists.
pub const fn has_only(known: &[&[&str]]) -> bool {
    are_known(OFF, known)
}

const fn contains(list: &str, wanted: &str) -> bool {
    let mut list = list.as_bytes();
    while !list.is_empty() {
        let (name, rest) = split(list);
        if are_equal(name, wanted.as_bytes()) {
            return true;
        }
        list = rest;
    }
    false
}

const fn are_known(list: &str, known: &[&[&str]]) -> bool {
    let mut list = list.as_bytes();
    while !list.is_empty() {
        let (name, rest) = split(list);
        let mut is_known = false;
        let mut of = 0;
        while of < known.len() {
            let mut at = 0;
            while at < known[of].len() {
                is_known |= are_equal(name, known[of][at].as_bytes());
                at += 1;
            }
            of += 1;
        }
        if !is_known {
            return false;
        }
        list = rest;
    }
    true
}

/// Splits the first name off a list. Returns it and the names after it.
const fn split(list: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    while end < list.len() && list[end] != b',' {
        end += 1;
    }
    match list.split_at(end) {
        (name, [_comma, rest @ ..]) => (name, rest),
        (name, []) => (name, &[]),
    }
}

const fn are_equal(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Defines the heuristics of a crate that a build can leave out: the enum `Heuristic`, the list of
/// their names, and `is_on`.
#[doc(hidden)]
#[macro_export]
macro_rules! heuristics {
    ($visible:vis const NAMES; $($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// A heuristic of this crate that a build can leave out.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Heuristic {
            $($(#[$doc])* $variant,)+
        }

        /// Names of the heuristics of this crate in `UWARP_POLICY_OFF`.
        $visible const NAMES: &[&str] = &[$($name),+];

        /// Returns true unless this build leaves the heuristic out.
        #[inline]
        pub(crate) const fn is_on(heuristic: Heuristic) -> bool {
            match heuristic {
                $(Heuristic::$variant => const { !$crate::policy::is_off($name) },)+
            }
        }
    };
}

heuristics! {
    pub const NAMES;

    /// Off: each receive and staging buffer is allocated, and freed after its use.
    BufferPool = "buffer_pool",
    /// Off: the CRC of a run is computed after its copy, in steps of [`CRC_STEP`], on every
    /// processor.
    #[cfg_attr(any(not(target_arch = "x86_64"), miri), allow(dead_code, reason = "needs AVX-512"))]
    FoldedCrc = "folded_crc",
    /// Off: all payload is copied to staging, also with `Settings::send_in_place`.
    InPlace = "in_place",
    /// Off: every receive buffer is a normal one.
    LargeReceive = "large_receive",
    /// Off: staged payload has a batch of the normal length, however much of it there is.
    LongBatches = "long_batches",
    /// Off: the EMSS is queried before every batch.
    RareEmss = "rare_emss",
    /// Off: Sends of the peer take the general path.
    ReceiveFastPath = "receive_fast_path",
    /// Off: small Sends and Writes take the general path.
    SendFastPath = "send_fast_path",
    /// Off: Writes of the peer take the general path.
    WriteFastPath = "write_fast_path",
}

// CRC of registered memory (`mem/raw/checksum.rs`). Where the processor has AVX-512, one pass
// copies and computes. Other runs and processors copy in steps, and compute the CRC of each copy.

/// Length in bytes from which on one pass is used: four blocks, as shorter runs take the time of
/// the steps. With the pass, 64 KiB in the second-level cache take 2.2 to 2.8 us instead of 2.9 to
/// 4.2 with the copy, and 1.4 us instead of 2.8 without (Intel Xeon).
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) const FOLDED_BYTES: usize = 4 * 256;
/// Number of bytes in a step. After the copy they are still in the first-level cache, where their
/// CRC is computed. Not measured against other lengths.
pub(crate) const CRC_STEP: usize = 8192;
/// Longest run without a copy that gets a scratch buffer of its own length, because clearing one of
/// two steps takes longer than the CRC of the run. Not measured against other lengths.
pub(crate) const SHORT_CRC: usize = 1024;

// Waits for short work of another thread (`short_wait.rs`): the lock of a static
// (`fork_guard.rs`), and the last copy from or to a region that is being deregistered
// (`mem/region.rs`).

/// Number of attempts between which the thread only yields, because a copy of 1 MiB ends within
/// them. Not measured.
pub(crate) const WAIT_YIELDS: u32 = 1024;
/// Pause between later attempts, because a yield lets no thread of lower real-time priority run,
/// which may do the work. Not measured.
pub(crate) const WAIT_PAUSE: Duration = Duration::from_micros(50);

// Sizes (`mem/table.rs`, `mem/stags.rs`) and intervals (`close_timer.rs`).

/// Number of locks that lookups of regions are spread over; a power of two. A message takes one of
/// them, for reading, once for a batch. Not measured against other numbers.
pub(crate) const TABLE_SHARDS: usize = 64;
/// Number of random bytes requested from the system at a time: the keys of 256 regions for one
/// system call. Not measured.
pub(crate) const KEY_BYTES: usize = 256;
/// Number of checks of TCP's queue within the limit of a close, which then ends at most an eighth
/// of the limit too late. Not measured: with the default limit, there is a check in 0.6 s.
pub(crate) const CLOSE_CHECKS: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_has_each_of_them_and_no_part_of_one() {
        for list in ["back_off", "back_off,doorbell", "doorbell,back_off"] {
            assert!(contains(list, "back_off"), "{list}");
        }
        for list in ["", "back", "back_off_", "doorbell", ",", "doorbell,back"] {
            assert!(!contains(list, "back_off"), "{list}");
        }
    }

    #[test]
    fn an_unknown_name_is_found_wherever_it_is() {
        let known: [&[&str]; 2] = [&["a", "b"], &["c"]];
        for list in ["", "a", "c", "c,a,b"] {
            assert!(are_known(list, &known), "{list}");
        }
        for list in ["d", "a,d", "d,a", "a,,b", "a, b", "ab"] {
            assert!(!are_known(list, &known), "{list}");
        }
    }

    #[test]
    fn nothing_is_off_unless_the_build_says_so() {
        if OFF.is_empty() {
            assert!(is_on(Heuristic::FoldedCrc) && is_on(Heuristic::InPlace));
        }
        assert!(NAMES.is_sorted());
    }
}
