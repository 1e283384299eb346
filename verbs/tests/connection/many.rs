//! Many connections and many devices at the same time.

use super::*;

#[test]
fn a_hundred_connections_go_through_one_listener_at_once() {
    const COUNT: u32 = 100;
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b, listener) = (&ends.a, &ends.b, &ends.listener);
        let caps = QpCaps::default().max_send_wr(4).max_recv_wr(4);
        let region = b.blank(4 * COUNT as usize);
        let remote = region.remote();
        let served = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..COUNT {
                let served = &served;
                scope.spawn(move || {
                    let cq = a.device.create_cq(8).unwrap();
                    let qp = a.pd.create_qp(&cq, &cq, caps).unwrap();
                    qp.post_recv(&RecvWr::new(1, &[])).unwrap();
                    let private_data = number.to_be_bytes().to_vec();
                    let connect = ConnectOptions::default().private_data(private_data);
                    let connected = qp.connect(listener.local_addr(), &connect).unwrap();
                    assert_eq!(connected.private_data, number.to_be_bytes());
                    let cq = common::CqHandle(cq);
                    let addr = remote.addr + u64::from(number) * 4;
                    qp.post_send(
                        &SendWr::write_inline(
                            2,
                            &number.to_be_bytes(),
                            RemoteBuffer::at(addr, remote.rkey),
                        )
                        .unsignaled(),
                    )
                    .unwrap();
                    qp.post_send(&SendWr::send(3, &[])).unwrap();
                    let (first, second) = (cq.next(), cq.next());
                    assert!(
                        first.status.is_success() && second.status.is_success(),
                        "{first:?} {second:?}"
                    );
                    served.fetch_add(1, Ordering::Relaxed);
                });
            }
            let mut qps: Vec<Qp> = Vec::new();
            for _ in 0..COUNT {
                let request = listener.wait_request(Some(LIMIT)).unwrap();
                let qp = b.pd.create_qp(&b.send_cq, &b.recv_cq, caps).unwrap();
                qp.post_recv(&RecvWr::new(4, &[])).unwrap();
                let private_data = request.private_data().to_vec();
                request
                    .accept(&qp, &AcceptOptions::default().private_data(private_data))
                    .unwrap();
                qps.push(qp);
            }
            // The server answers each connection after its first message.
            for _ in 0..COUNT {
                let hello = b.recv_cq.success(4);
                let qp = qps.iter().find(|qp| qp.qp_num() == hello.qp_num).unwrap();
                qp.post_send(&SendWr::send(5, &[])).unwrap();
                b.send_cq.success(5);
            }
        });
        assert_eq!(served.into_inner(), u64::from(COUNT));
        let expected: Vec<u8> = (0..COUNT).flat_map(u32::to_be_bytes).collect();
        same(&content(&region), &expected, "what all of them wrote");
    }
}

#[test]
fn devices_in_one_process_do_not_disturb_each_other() {
    let pairs: Vec<(Side, Side)> = (0..10).map(|i| pair(Wire::BOTH[i % 2])).collect();
    for (a, b) in &pairs {
        both_ways(a, b);
    }
    pairs[3].0.qp.disconnect();
    pairs[3].1.wait_end();
    for (index, (a, b)) in pairs.iter().enumerate() {
        if index != 3 {
            exchange(a, b);
        }
    }
}

#[test]
fn regions_of_another_device_are_unknown() {
    let device = Device::tcp().unwrap();
    let foreign = device
        .alloc_pd()
        .unwrap()
        .register(vec![0; 10], Access::LOCAL_WRITE)
        .unwrap();
    let (a, _b) = pair(Wire::MEMORY);
    assert!(
        a.qp.post_send(&SendWr::send(1, &[foreign.sge(0, 1)]))
            .is_err()
    );
}
