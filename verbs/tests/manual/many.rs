//! Many connections of one CQ on a device with manual progress.

use uwarp_verbs::llp::Network;
use uwarp_verbs::{AcceptOptions, ConnectOptions, Qp, RecvWr, SendWr};

use crate::{SERVER, World};

/// After the setup there is no background thread and no round of progress. Each poll gives every
/// connection a turn, in the same order in every run.
#[test]
fn polls_alone_drive_many_connections_of_one_cq() {
    let world = World::new();
    let [a, b] = &world.sides;
    let listener = b.device.listen(SERVER.parse().unwrap()).unwrap();
    let pairs: Vec<(Qp, Qp)> = (0..8)
        .map(|_| {
            let (mine, theirs) = (a.another_qp(), b.another_qp());
            let to = listener.local_addr();
            let stream = world.networks[0].connect(None, to).unwrap();
            let connect = ConnectOptions::default().peer_to_peer(true);
            let id = world.channel.create_id(&a.device, 1);
            id.connect_over(&mine, stream, &connect).unwrap();
            let request = loop {
                world.settle();
                if let Some(request) = listener.poll_request() {
                    break request;
                }
            };
            request.accept(&theirs, &AcceptOptions::default()).unwrap();
            world.settle();
            (mine, theirs)
        })
        .collect();
    for wr_id in 0..20 {
        for (mine, theirs) in &pairs {
            theirs.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            mine.post_send(&SendWr::send(wr_id, &[]).unsignaled())
                .unwrap();
        }
        for (_, theirs) in &pairs {
            let mut polls = 0;
            let received = loop {
                assert_eq!(a.send_cq.poll_one(), None);
                if let Some(received) = b.recv_cq.poll_one() {
                    break received;
                }
                polls += 1;
                assert!(polls < 1000, "polls alone do not drive");
            };
            assert_eq!((received.wr_id, received.qp_num), (wr_id, theirs.qp_num()));
        }
    }
}
