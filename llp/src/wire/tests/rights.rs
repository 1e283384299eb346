//! Errors for missing privileges: the test drops its own capabilities.

use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use uwarp_testkit::netns::{has_tun, in_namespace, ip};

use crate::DeviceSpec;
use crate::kernel::KernelSettings;
use crate::wire::{AttachError, OpenError};

fn give_up_all_rights() {
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).unwrap();
}

#[track_caller]
fn refused(text: &str) -> AttachError {
    let spec: DeviceSpec = text.parse().unwrap();
    match spec
        .open(None, KernelSettings::default())
        .map(|network| network.describe())
    {
        Err(OpenError::Attach(why)) => why,
        other => panic!("{other:?}"),
    }
}

in_namespace! {
    fn each_missing_right_is_named() {
        ip("link add veth0 type veth peer name veth1");
        ip("link add veth2 type veth peer name veth3");
        ip("link set veth0 up");
        let tun = has_tun("each_missing_right_is_named");
        if tun {
            ip("tuntap add uw1 mode tap");
            ip("tuntap add uw2 mode tap");
            ip("link set uw2 up");
        }
        give_up_all_rights();
        assert_eq!(refused("raw:veth0,ip=192.0.2.1"), AttachError::RawSocket);
        // An error that no privilege would cure takes precedence.
        let name = "veth9".parse().unwrap();
        assert_eq!(refused("raw:veth9,ip=192.0.2.1"), AttachError::NoInterface { name });
        if tun {
            let name = "uw0".parse().unwrap();
            assert_eq!(refused("tap:uw0,ip=192.0.2.1"), AttachError::TapCreation { name });
            let name = "uw1".parse().unwrap();
            assert_eq!(refused("tap:uw1,ip=192.0.2.1"), AttachError::Down { name });
            // A device that is up and belongs to no other user needs no privilege.
            let spec: DeviceSpec = "tap:uw2,ip=192.0.2.1".parse().unwrap();
            let network = spec.open(None, KernelSettings::default()).unwrap();
            assert!(network.describe().contains("TAP uw2"), "{}", network.describe());
        }
    }
}
