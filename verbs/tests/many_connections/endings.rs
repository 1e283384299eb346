//! Connections of one CQ that end and are replaced.

use super::*;

use uwarp_verbs::QpState;

#[test]
fn a_qp_of_many_may_lose_its_connection_and_get_another() {
    for wire in Wire::BOTH {
        let world = World::new(wire, 6, Settings::default().takeover);
        let (a, b) = (&world.ends.a, &world.ends.b);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.success(77));
            for _ in 0..10 {
                let (mine, theirs) = &world.pairs[2];
                mine.disconnect();
                for qp in [mine, theirs] {
                    assert!(qp.wait_closed(LIMIT));
                    assert_eq!(qp.state(), QpState::Error);
                    assert!(qp.reset());
                }
                world.join(mine, theirs);
            }
            let (mine, theirs) = &world.pairs[2];
            theirs.post_recv(&RecvWr::new(77, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            a.send_cq.success(1);
            waiting.join().unwrap();
        });
        world.exchange();
    }
}

#[test]
fn qps_may_be_dropped_while_a_thread_sleeps_until_few_and_none_are_left() {
    for wire in Wire::BOTH {
        let mut world = World::new(wire, 8, Settings::default().takeover);
        for left in (0..8).rev() {
            let (mine, theirs) = world.pairs.swap_remove(left / 2);
            let cq = world.ends.b.recv_cq.clone();
            theirs.post_recv(&RecvWr::new(5, &[])).unwrap();
            let waiting = std::thread::spawn(move || cq.flushed(5));
            // The connection is ended by one side or by the other.
            match left % 2 {
                0 => drop(mine),
                _ => drop(theirs),
            }
            waiting.join().unwrap();
            world.exchange();
        }
        // Connections are added until there are many again.
        for _ in 0..7 {
            world.add();
            world.exchange();
        }
    }
}

#[test]
fn a_cq_that_had_many_may_be_destroyed() {
    let world = World::new(Wire::Kernel, 0, Settings::default().takeover);
    let (a, b) = (&world.ends.a, &world.ends.b);
    for _ in 0..2 {
        let cq = b.device.create_cq(64).unwrap();
        let pairs: Vec<(Qp, Qp)> = (0..7)
            .map(|_| {
                let theirs = b.pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
                let mine = a.another_qp();
                world.join(&mine, &theirs);
                (mine, theirs)
            })
            .collect();
        assert_eq!(cq.poll_one(), None);
        let (mine, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        // These connections end later, when they no longer have a CQ.
        drop(theirs);
        cq.destroy(Some(LIMIT)).map_err(|(_, error)| error).unwrap();
        for qp in &mine {
            assert!(qp.wait_closed(LIMIT));
        }
    }
}
