//! QEMU's command line.

use std::process::Command;

use super::image::Image;
use super::{NetDevice, Setup};

/// Adds the arguments to QEMU's command line. `channels` are the abstract socket names of console,
/// agent and shell.
pub(super) fn arguments(
    command: &mut Command,
    image: &Image,
    setup: &Setup,
    channels: &[String; 3],
) {
    let [console, agent, shell] = channels;
    let socket = |id: &str, path: &str| format!("socket,id={id},path={path},abstract=on");
    // QEMU runs without KVM, so that the guest behaves the same on every machine.
    command
        .args(["-accel", "tcg,thread=multi", "-cpu", "max"])
        .args(["-m", "1024", "-smp", "2"])
        .args(["-nodefaults", "-no-reboot", "-display", "none"])
        .arg("-kernel")
        .arg(image.dir.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.dir.join("initrd"))
        .args(["-append", &kernel_arguments(setup)])
        .args(["-chardev", &socket("console", console)])
        .args(["-serial", "chardev:console"])
        .args(["-device", "virtio-serial-pci"])
        .args(["-chardev", &socket("agent", agent)])
        .args(["-device", "virtserialport,chardev=agent,name=uwarp.agent"])
        .args(["-chardev", &socket("shell", shell)])
        .args(["-device", "virtserialport,chardev=shell,name=uwarp.shell"])
        .args(["-netdev", &netdev(&setup.net)])
        .args(["-device", "virtio-net-pci,netdev=net,romfile="]);
}

/// Returns the kernel's arguments. An oops ends the guest, because siw's behavior after it is not
/// tested.
fn kernel_arguments(setup: &Setup) -> String {
    // On a busy host the emulated timer is late. The kernel's check of the timer would then stop
    // the boot.
    let mut arguments = "console=ttyS0 oops=panic panic=-1 loglevel=5 no_timer_check".to_owned();
    for address in &setup.addresses {
        arguments += &format!(" uwarp.ip={address}");
    }
    if let Some(mtu) = setup.mtu {
        arguments += &format!(" uwarp.mtu={mtu}");
    }
    arguments
}

fn netdev(net: &NetDevice) -> String {
    match net {
        NetDevice::User { forward } => {
            let mut text = "user,id=net,net=192.0.2.0/24,host=192.0.2.1,\
                            ipv6-net=2001:db8::/64,ipv6-host=2001:db8::1"
                .to_owned();
            for (ours, theirs) in forward {
                text += &format!(",hostfwd=tcp:127.0.0.1:{ours}-192.0.2.2:{theirs}");
            }
            text
        }
        NetDevice::UnixDatagrams { local, remote } => format!(
            "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            local.display(),
            remote.display()
        ),
        NetDevice::Tap { ifname } => {
            format!("tap,id=net,ifname={ifname},script=no,downscript=no")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_wire_is_one_netdev() {
        let user = NetDevice::User {
            forward: vec![(4711, 7174), (4712, 7175)],
        };
        assert_eq!(
            netdev(&user),
            "user,id=net,net=192.0.2.0/24,host=192.0.2.1,ipv6-net=2001:db8::/64,ipv6-host=2001:db8::1,\
             hostfwd=tcp:127.0.0.1:4711-192.0.2.2:7174,hostfwd=tcp:127.0.0.1:4712-192.0.2.2:7175"
        );
        let unix = NetDevice::UnixDatagrams {
            local: "/t/a".into(),
            remote: "/t/b".into(),
        };
        assert_eq!(
            netdev(&unix),
            "dgram,id=net,local.type=unix,local.path=/t/a,remote.type=unix,remote.path=/t/b"
        );
        let setup = Setup {
            net: NetDevice::Tap {
                ifname: "uw0".to_owned(),
            },
            addresses: vec!["192.0.2.2/24".to_owned()],
            mtu: Some(9000),
        };
        assert_eq!(
            netdev(&setup.net),
            "tap,id=net,ifname=uw0,script=no,downscript=no"
        );
        assert!(kernel_arguments(&setup).ends_with(" uwarp.ip=192.0.2.2/24 uwarp.mtu=9000"));
    }
}
