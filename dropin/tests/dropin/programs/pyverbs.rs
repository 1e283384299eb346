//! pyverbs, and rdma-core's own test suite in it, as far as it applies to an iWARP device.

use super::{Row, State, Way, row};

const PACKAGES: &[&str] = &["python3-pyverbs"];

pub(super) const ROWS: &[Row] = &[row(
    "pyverbs-devices",
    PACKAGES,
    &["/usr/share/doc/python3-pyverbs/examples/ib_devices.py"],
    Way::Alone {
        words: "python3 /usr/share/doc/python3-pyverbs/examples/ib_devices.py",
        says: &["uwarp0"],
    },
    State::Runs,
)];
