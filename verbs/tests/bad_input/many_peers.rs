//! Many peers that misbehave at the same time, while a correct peer works continuously.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use uwarp_verbs::{AcceptOptions, QpCaps, QpState};

use crate::peer::{PATIENCE, Peer, eventually};
use crate::scene::{NONSENSE, Victim, settings};
use crate::wire::{CRC, Code, REPLY, REQUEST, Tagged, Untagged, WRITE, startup};

const PEERS: usize = 48;

/// Sends one of six kinds of bad input, chosen by `number`. Returns the expected Terminate, if any.
fn misbehave(peer: &mut Peer, number: usize) -> Option<Vec<u8>> {
    let unknown_stag = Tagged::new(WRITE, NONSENSE, 0, b"octets").bytes();
    let no_receive = Untagged::new(3, 0, 1, b"octets").bytes();
    match number % 6 {
        0 => {
            peer.send_ulpdus(&[&unknown_stag]);
            Some(Code::ddp(1, 0x00).about(&unknown_stag))
        }
        1 => {
            peer.send_ulpdus(&[&no_receive]);
            Some(Code::ddp(2, 0x02).about(&no_receive))
        }
        2 => {
            let mut fpdu = peer.tx.seal(&no_receive);
            fpdu[9] ^= 1;
            peer.send(&fpdu);
            None
        }
        3 => {
            peer.send(&[0xFF; 4000]);
            None
        }
        4 => {
            peer.send(&[0, 20, 0x41]);
            peer.fin();
            None
        }
        _ => {
            peer.send(&[0, 20, 0x41]);
            peer.reset();
            None
        }
    }
}

/// Stops the working thread on drop, so that it also stops when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn many_bad_peers_do_not_disturb_a_good_one() {
    let base = settings();
    let limits = base
        .limits
        .max_qp(3 + PEERS as u32)
        .max_startup(PEERS as u32);
    let mut victim = Victim::new(base.limits(limits));
    let (pd, cq) = (victim.pd.clone(), victim.recv_cq.clone());
    let mut pairs = Vec::new();
    for number in 0..PEERS {
        let mut peer = Peer::connect(victim.listener.local_addr());
        peer.send_startup(REQUEST, CRC, 1, &[number as u8]);
        let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
        assert_eq!(request.private_data(), [number as u8]);
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        request.accept(&qp, &AcceptOptions::default()).unwrap();
        assert_eq!(peer.receive_startup(), startup(REPLY, CRC, 1, b""));
        pairs.push((peer, qp));
    }
    let stop = AtomicBool::new(false);
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let healthy = &mut victim.healthy;
        let rounds = &rounds;
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                healthy.works();
                rounds.fetch_add(1, Ordering::Release);
            }
        });
        let working = Stop(&stop);
        let due: Vec<_> = (0..)
            .zip(&mut pairs)
            .map(|(number, (peer, _))| misbehave(peer, number))
            .collect();
        for ((peer, qp), (number, due)) in pairs.iter_mut().zip((0..).zip(due)) {
            if let Some(due) = due {
                assert_eq!(peer.receive_ulpdu(), due);
            }
            if number % 6 != 5 {
                peer.expect_fin();
                peer.fin();
            }
            assert!(qp.wait_closed(PATIENCE));
            assert_eq!(qp.state(), QpState::Error);
            eventually("a reason", || qp.end_reason());
        }
        // On a busy machine the bad peers might all be gone before the good peer has completed any
        // work.
        eventually("work of the good one", || {
            (rounds.load(Ordering::Acquire) > 0).then_some(())
        });
        drop(working);
    });
    assert_eq!(victim.reasons().len(), PEERS, "every end is reported once");
    drop((pairs, cq));
    victim.check_unharmed();
    victim.leaves_nothing();
}
