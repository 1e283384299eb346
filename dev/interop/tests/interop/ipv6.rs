//! Transfers over IPv6.

use uwarp_interop::{Family, Outcome, Result, Rig};

use crate::Case;
use crate::bench::Bench;
use crate::pair::{Role, Terms};
use crate::transfers::{FEW_SIZES, all_operations};

/// Returns the cases. QEMU's user network forwards no IPv6 ports, so on that wire only the guest
/// connects.
pub(crate) fn cases(wire: &str) -> Vec<Case> {
    let roles = match wire {
        "kernel_tcp" => &Role::BOTH[1..],
        _ => &Role::BOTH,
    };
    let case = |role: &Role| {
        let role = *role;
        Case {
            suite: "agent",
            name: format!("{}::ipv6", role.name()),
            title: format!("Send, Write and Read both ways over IPv6, {}", role.title()),
            run: Box::new(move |rig| {
                rig.wire.set_family(Family::V6);
                let result = transfers(rig, role);
                rig.wire.set_family(Family::V4);
                result
            }),
        }
    };
    roles.iter().map(case).collect()
}

fn transfers(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let mut bench = Bench::open(rig, role, &Terms::default(), 1 << 20)?;
    bench.agreed(|info| info.local.is_ipv6() && info.peer.is_ipv6())?;
    all_operations(&mut bench, &mut rig.agent, &FEW_SIZES)?;
    bench.close(&mut rig.agent, role)?;
    Ok(Outcome::Passed)
}
