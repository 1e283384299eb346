//! Agents on networks other than that of the kernel, and the RDMA port, which needs no controller.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use uwarp_agent::clients::Limits;
use uwarp_agent::{Agent, Options, serve};
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    Access, ConnectError, ConnectOptions, Device, Qp, QpCaps, RecvWr, SendWr, Settings, Status,
};

use crate::controller::{Controller, PATIENCE, agent, agent_on};

#[test]
fn agents_on_a_link_in_memory_reach_each_other() {
    let (a, b) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let open = |network| Device::open(Arc::new(network), Settings::default()).unwrap();
    let (a, b) = (open(a), open(b));
    let a = agent_on(&a, "192.0.2.1:7174".parse().unwrap());
    let b = agent_on(&b, "192.0.2.2:7174".parse().unwrap());
    let (mut active, mut passive) = (Controller::new(&a), Controller::new(&b));
    let port = passive.ok("listen", json!({"auto": true}))["port"].clone();
    assert_ne!(port, 7174);
    let open = active.ok("open", json!({"addr": "192.0.2.2", "port": port}));
    let conn = &open["conn"];
    active.event("ready", conn);
    active.ok("connect", json!({"conn": conn}));
    active.event("established", conn);
    let request = passive.wait("a request", |line| line["ev"] == "connect_request");
    passive.ok("reg", json!({"len": 9000}));
    passive.ok(
        "recv",
        json!({"conn": request["conn"], "wr_id": 1, "sge": "0:0+9000"}),
    );
    active.ok("reg", json!({"len": 9000}));
    active.ok("fill", json!({"mr": 0, "seed": 3}));
    active.ok(
        "post",
        json!({"conn": conn, "op": "send", "sge": "0:0+9000"}),
    );
    passive.success(&request["conn"], 1);
    let check = passive.ok("check", json!({"mr": 0, "seed": 3}));
    assert_eq!(check["match"], true);
}

/// Sends two pings with the messages of rping.
#[test]
fn the_rdma_port_is_served_as_by_rping() {
    let agent = agent();
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let ping = pd
        .register(b"rdma-ping-0: ABC\0####".to_vec(), rights)
        .unwrap();
    let pong = pd.register(vec![0; 21], rights).unwrap();
    let inbox = pd.register(vec![0; 16], Access::LOCAL_WRITE).unwrap();
    let sges = [inbox.sge(0, 16)];
    let next = |opcode| loop {
        let done = cq.wait(Some(PATIENCE)).expect("a completion");
        assert_eq!(done.status, Status::Success);
        if done.opcode == opcode {
            return done;
        }
    };
    qp.post_recv(&RecvWr::new(0, &sges)).unwrap();
    qp.connect(agent.rdma_addr().unwrap(), &ConnectOptions::default())
        .unwrap();
    for _ in 0..2 {
        for region in [&ping, &pong] {
            let lent = region.remote();
            let advert = [
                &lent.addr.to_be_bytes()[..],
                &lent.rkey.to_be_bytes(),
                &21u32.to_be_bytes(),
            ];
            qp.post_send(&SendWr::send_inline(0, &advert.concat()))
                .unwrap();
            assert_eq!(next(uwarp_verbs::WcOpcode::Recv).byte_len, 16);
            qp.post_recv(&RecvWr::new(0, &sges)).unwrap();
        }
        let mut echo = [0xFF; 21];
        pong.read_at(0, &mut echo).unwrap();
        // The server writes back the ping data up to the first zero byte, as rping does.
        assert_eq!(&echo, b"rdma-ping-0: ABC\0\0\0\0\0");
    }
    qp.disconnect();
    assert!(qp.wait_closed(PATIENCE));
}

#[test]
fn the_rdma_port_belongs_to_no_controller() {
    let agent = agent();
    let mut controller = Controller::new(&agent);
    let port = agent.rdma_addr().unwrap().port();
    let refused = controller.refused("listen", json!({"port": port}));
    assert_eq!(refused["errno"], 98);
    // A client is disconnected if its first message is not that of rping.
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let connected = qp.connect(agent.rdma_addr().unwrap(), &ConnectOptions::default());
    assert!(!matches!(connected, Err(ConnectError::Rejected { .. })));
    qp.post_send(&SendWr::send_inline(0, &[0; 15])).unwrap();
    assert!(qp.wait_closed(PATIENCE));
}

/// Before, such a client was rejected without a reason, and the silent one stayed for ever.
#[test]
fn a_silent_client_of_the_rdma_port_ends_and_one_too_many_gets_a_reason() {
    let device = Device::tcp().unwrap();
    let start = |limits| {
        let mut options = Options::default();
        options.rdma = Some("127.0.0.1:0".parse().unwrap());
        options.rdma_limits = limits;
        let control = TcpListener::bind("127.0.0.1:0").unwrap();
        serve(&Device::tcp().unwrap(), control, options).unwrap()
    };
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let new_qp = || pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let connect =
        |qp: &Qp, agent: &Agent| qp.connect(agent.rdma_addr().unwrap(), &ConnectOptions::default());
    let patient = start(Limits::default().max(1).silence(None));
    let (first, second) = (new_qp(), new_qp());
    connect(&first, &patient).unwrap();
    let rejected = connect(&second, &patient).unwrap_err();
    let words = b"the server already serves 1 at once, its limit";
    assert!(
        matches!(&rejected, ConnectError::Rejected { private_data, .. } if private_data == words),
        "{rejected}"
    );
    let strict = start(Limits::default().silence(Some(Duration::from_millis(1))));
    let silent = new_qp();
    connect(&silent, &strict).unwrap();
    assert!(silent.wait_closed(PATIENCE));
}
