//! Foundation of uwarp's interoperability tests: a virtual machine with the Linux siw driver, the
//! agent in it, and wires between the machine and this process.
//!
//! [`Guest`] is the machine (QEMU without KVM, which needs no privileges). It runs shell commands.
//! [`Agent`] controls an RDMA application in the guest, through a channel that does not depend on
//! the wire. [`Wire`] connects the guest with our endpoint. [`Report`] collects the results in a
//! matrix.
//!
//! The kernel kills the processes started here when this process ends, whatever the cause.

mod agent;
mod ethernet;
mod failure;
mod guest;
mod namespace;
mod ours;
mod process;
pub mod raw;
mod report;
mod tap;
mod tempdir;
mod wire;

pub use agent::{
    Agent, Answer, Completion, Conn, Event, Listen, ListenerNum, Post, QpParams, Region, SrqNum,
    sge, sges,
};
pub use ethernet::EthernetWire;
pub use failure::{Failure, Result};
pub use guest::image::{Image, Unready};
pub use guest::{Guest, GuestProcess, NetDevice, Output};
pub use namespace::enter as enter_namespace;
pub use ours::{Uwarp, uwarp_binary};
pub use report::{Outcome, Report};
pub use tap::{HostTap, KernelTap};
pub use uwarp_testkit::pattern;
pub use wire::{Family, KernelTcp, PATIENCE, Rig, Wire};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// Returns the numbers of siw's defects that a text cites, such as `Q7`.
    fn cited(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words
            .filter(|word| {
                word.strip_prefix('Q')
                    .is_some_and(|number| number.parse::<u8>().is_ok())
            })
            .collect()
    }

    #[test]
    fn each_defect_that_siw_toml_cites_has_a_row_in_peers_md() {
        let cited = cited(include_str!("../siw.toml"));
        assert!(cited.len() > 10, "{cited:?}");
        let page = include_str!("../../../docs/peers.md");
        for number in cited {
            assert!(
                page.contains(&format!("\n| {number} | ")),
                "{number} has no row"
            );
        }
    }
}
