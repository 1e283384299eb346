//! Attributes of a device and its port.

use super::*;

#[test]
fn a_device_tells_the_limits_of_its_settings() {
    let mut settings = Settings::default();
    settings.limits.max_qp = 7;
    settings.limits.max_ird = 3;
    settings.limits.max_ord = 5;
    settings.limits.max_cqe = 99;
    let device = Device::tcp_with(settings, None).unwrap();
    let attr = device.query();
    assert_eq!((attr.max_qp, attr.max_cqe), (7, 99));
    assert_eq!((attr.max_qp_rd_atom, attr.max_qp_init_rd_atom), (3, 5));
    assert_eq!((attr.max_sge_rd, attr.phys_port_cnt), (attr.max_sge, 1));
    // The reported limits must be the actual ones.
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(99).unwrap());
    device.create_cq(100).unwrap_err();
    let caps = QpCaps::default()
        .max_send_wr(attr.max_qp_wr)
        .max_recv_wr(attr.max_qp_wr)
        .max_send_sge(attr.max_sge)
        .max_recv_sge(attr.max_sge)
        .max_inline_data(attr.max_inline_data);
    let qps: Vec<Qp> = (0..attr.max_qp)
        .map(|_| pd.create_qp(&cq, &cq, caps).unwrap())
        .collect();
    pd.create_qp(&cq, &cq, caps).unwrap_err();
    drop(qps);
    for more in [
        caps.max_send_wr(caps.max_send_wr + 1),
        caps.max_recv_sge(caps.max_recv_sge + 1),
        caps.max_inline_data(caps.max_inline_data + 1),
    ] {
        pd.create_qp(&cq, &cq, more).unwrap_err();
    }
}

/// Each limit is used up to the last object. One more object must fail.
#[test]
fn what_a_device_tells_of_its_objects_is_what_it_hands_out() {
    let mut settings = Settings::default();
    let limits = &mut settings.limits;
    (limits.max_cq, limits.max_mr, limits.max_srq) = (2, 4, 3);
    (limits.max_srq_wr, limits.max_sge, limits.max_pd) = (6, 2, 3);
    let device = Device::tcp_with(settings, None).unwrap();
    let (attr, pd) = (device.query(), device.alloc_pd().unwrap());
    let _cqs: Vec<Cq> = (0..attr.max_cq)
        .map(|_| device.create_cq(1).unwrap())
        .collect();
    device.create_cq(1).unwrap_err();

    let mut pds: Vec<Pd> = (1..attr.max_pd)
        .map(|_| device.alloc_pd().unwrap())
        .collect();
    let error = device.alloc_pd().unwrap_err();
    let limited = matches!(error, DeviceError::Limit { limit: 3, .. });
    assert!(limited, "{error}");
    pds.pop();
    device.alloc_pd().unwrap();

    let of = |max_wr, max_sge| pd.create_srq(SrqAttr::default().max_wr(max_wr).max_sge(max_sge));
    of(attr.max_srq_wr + 1, 0).unwrap_err();
    of(1, attr.max_srq_sge + 1).unwrap_err();
    let srqs: Vec<Srq> = (0..attr.max_srq)
        .map(|_| of(attr.max_srq_wr, attr.max_srq_sge).unwrap())
        .collect();
    of(1, 0).unwrap_err();
    let region = pd.register(vec![0; 3], Access::LOCAL_WRITE).unwrap();
    let sges = [region.sge(0, 1), region.sge(1, 1), region.sge(2, 1)];
    srqs[0].post_recv(&RecvWr::new(1, &sges)).unwrap_err();
    for wr_id in 0..u64::from(attr.max_srq_wr) {
        srqs[0].post_recv(&RecvWr::new(wr_id, &sges[1..])).unwrap();
    }
    srqs[0].post_recv(&RecvWr::new(9, &[])).unwrap_err();

    // Windows and regions share one limit.
    drop((region, srqs));
    assert_eq!(attr.max_mr, attr.max_mw);
    let windows: Vec<_> = (0..attr.max_mw)
        .map(|_| pd.alloc_window(WindowKind::Type1).unwrap())
        .collect();
    pd.register(vec![0], Access::NONE).unwrap_err();
    drop(windows);
    let _regions: Vec<_> = (0..attr.max_mr)
        .map(|_| pd.register(vec![0], Access::NONE).unwrap())
        .collect();
    pd.alloc_window(WindowKind::Type1).unwrap_err();
}

/// The device reports the IRD limit of one connection and that of all connections together. The
/// Reply grants exactly these limits (RFC 6581 section 9.1).
#[test]
fn what_a_device_tells_of_reads_is_what_it_grants() {
    let mut setup = Setup::new(Wire::MEMORY);
    let limits = &mut setup.settings[1].limits;
    (limits.max_ird, limits.max_ord, limits.max_ird_total) = (3, 4, 5);
    setup.connect.ird = 9;
    setup.connect.ord = 9;
    let ends = setup.unconnected();
    let attr = ends.b.device.query();
    ends.join();
    let first = ends.b.qp.connection().unwrap();
    let granted = (first.ird.into(), first.ord.into());
    assert_eq!(granted, (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom));
    let (a, b) = (ends.a.another_qp(), ends.b.another_qp());
    join(&ends.listener, &a, &b, &setup.connect, &setup.accept);
    let second = b.connection().unwrap();
    assert_eq!(u32::from(first.ird + second.ird), attr.max_res_rd_atom);
}

/// A limit that exceeds the number of STags is reported as that number.
#[test]
fn a_device_tells_no_more_regions_than_there_are_stags() {
    let mut settings = Settings::default();
    settings.limits.max_mr = u32::MAX;
    let attr = Device::tcp_with(settings, None).unwrap().query();
    assert_eq!((attr.max_mr, attr.max_mw), (1 << 23, 1 << 23));
}

#[test]
fn the_guid_is_the_same_for_two_devices_at_one_address_and_differs_between_hosts() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let (one, other) = (ends.a.device.query(), ends.b.device.query());
    assert_ne!(one.node_guid, other.node_guid);
    let again = Setup::new(Wire::MEMORY).unconnected();
    assert_eq!(one, again.a.device.query());
    assert_eq!(
        Device::tcp().unwrap().query(),
        Device::tcp().unwrap().query()
    );
}

/// The MAC address comes first, as in Linux' iWARP drivers. The IP addresses follow.
#[test]
fn the_gid_table_has_the_mac_address_first_and_then_the_addresses() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let device = &ends.a.device;
    let port = device.query_port(1).unwrap();
    assert_eq!(port.gid_tbl_len, 3);
    let Gid(first) = device.gid(0).unwrap();
    let guid = device.query().node_guid;
    assert_eq!((&first[..3], &first[3..6]), (&guid[..3], &guid[5..]));
    assert_eq!(first[6..], [0; 10]);
    assert_eq!(device.gid(1).unwrap().to_string(), "::ffff:192.0.2.1");
    assert_eq!(device.gid(2).unwrap().to_string(), "2001:db8::1");
    let error = device.gid(3).unwrap_err();
    assert_eq!(error, QueryError::NoGid { index: 3, len: 3 });
}

#[test]
fn a_device_has_one_port_which_tells_the_mtu_of_the_network() {
    let device = Setup::new(Wire::MEMORY).unconnected().a.device;
    let port = device.query_port(1).unwrap();
    assert_eq!((port.state, port.phys_state), (PortState::Active, 5));
    assert_eq!((port.link_mtu, port.active_mtu, port.max_mtu), (1500, 3, 5));
    assert_eq!((port.max_msg_sz, port.link_layer), (u32::MAX, 2));
    for port in [0, 2] {
        let error = device.query_port(port).unwrap_err();
        assert_eq!(error, QueryError::NoPort { port });
    }
}

#[test]
fn kernel_tcp_has_the_addresses_of_the_machine() {
    let device = Device::tcp().unwrap();
    let len = device.query_port(1).unwrap().gid_tbl_len;
    let gids: Vec<Gid> = (0..len).map(|index| device.gid(index).unwrap()).collect();
    let loopback = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    assert!(gids.contains(&Gid(loopback.octets())), "{gids:?}");
}
