//! Writes whose completion another connection may report.

use uwarp_verbs::{PairOptions, SendWr};

use crate::Host;
use crate::common::{Setup, Wire};

#[test]
fn a_write_is_in_the_memory_of_the_peer_when_it_completes() {
    let [a, b] = [Host::here(), Host::here()];
    let qp = |host: &Host| {
        let builder = host
            .pd
            .qp()
            .rendezvous(&host.rendezvous)
            .placed_writes(true);
        builder.build(&host.cq, &host.cq).unwrap()
    };
    let (x, y) = (qp(&a), qp(&b));
    crate::meet([&a, &b], [&x, &y]);
    for number in 1..=3000_u64 {
        let bytes = number.to_le_bytes();
        let remote = b.region.remote().slice(512, 8).unwrap();
        x.post_send(&SendWr::write_inline(number, &bytes, remote))
            .unwrap();
        a.cq.success(number);
        let mut placed = [0; 8];
        b.region.read_at(512, &mut placed).unwrap();
        assert_eq!(placed, bytes);
    }
}

#[test]
fn the_setting_of_a_device_holds_for_connections_by_address_too() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].placed_writes = true;
    let (a, b) = setup.connected();
    let region = b.blank(4096);
    for number in 1..=1000_u64 {
        let bytes = number.to_le_bytes();
        let remote = region.remote().slice(64, 8).unwrap();
        a.qp.post_send(&SendWr::write_inline(number, &bytes, remote))
            .unwrap();
        a.send_cq.success(number);
        let mut placed = [0; 8];
        region.read_at(64, &mut placed).unwrap();
        assert_eq!(placed, bytes);
    }
}

#[test]
fn a_write_to_a_peer_that_has_gone_fails() {
    let [a, b] = [Host::here(), Host::here()];
    let builder = a.pd.qp().rendezvous(&a.rendezvous).placed_writes(true);
    let (x, y) = (builder.build(&a.cq, &a.cq).unwrap(), b.qp());
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    crate::exchange([&a, &b], [&x, &y]);
    drop(y);
    let remote = b.region.remote();
    x.post_send(&SendWr::write_inline(
        7,
        b"nobody",
        remote.slice(0, 6).unwrap(),
    ))
    .unwrap();
    a.gone(7);
}
