//! Programs of ibverbs-utils, which list devices, their attributes and their events.

use super::{Row, Way, row};

const PACKAGES: &[&str] = &["ibverbs-utils"];

pub(super) const ROWS: &[Row] = &[
    row(
        "ibv_devices",
        PACKAGES,
        &["ibv_devices"],
        Way::Alone {
            words: "ibv_devices",
            says: &["uwarp0"],
        },
    ),
    Row {
        name: "ibv_devinfo",
        packages: PACKAGES,
        files: &["ibv_devinfo"],
        flags: &[],
        needs_roce: true,
        way: Way::Alone {
            words: "ibv_devinfo -v",
            says: &[
                "uwarp0",
                "InfiniBand (0)",
                "PORT_ACTIVE (4)",
                "Ethernet",
                "max_qp:",
                "RoCE v2",
            ],
        },
    },
    Row {
        name: "ibv_devinfo-iwarp",
        packages: PACKAGES,
        files: &["ibv_devinfo"],
        flags: &["--persona", "iwarp"],
        needs_roce: false,
        way: Way::Alone {
            words: "ibv_devinfo -v",
            says: &["uwarp0", "iWARP (1)", "Ethernet", "GID["],
        },
    },
    row(
        "ibv_asyncwatch",
        PACKAGES,
        &["ibv_asyncwatch"],
        Way::Stays {
            words: "stdbuf -o0 ibv_asyncwatch",
            says: "async event FD",
        },
    ),
];
