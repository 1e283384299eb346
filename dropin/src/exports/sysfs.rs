//! Symbol for the library of `dropin/redirect`. rdma-core has no such name.

use super::exports;
use crate::sysfs;

exports! {
    "@@UWARP_PRIVATE"
    uwarp_sysfs_map => sysfs::map,
}
