//! Two devices with TCP in user space, over IP or over an Ethernet with ARP, NDP and ICMP. The
//! input controls the link, which loses, duplicates, delays, reorders and damages packets. A third
//! host sends arbitrary packets, some of them into the connection.
//!
//! Without damage and without harmful packets from the third host, all work requests complete with
//! the bytes of the model. Otherwise each completion with success is still correct. Memory holds
//! only its initial bytes and bytes that were written there. Either everything completes, or both
//! ends detect an error. Afterwards the hosts must be able to connect again.
//!
//! smoltcp does not check TCP checksums under a fuzzer, so the CRC of MPA must find the damage.

mod ethernet;
mod hosts;
mod stranger;

use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::{AcceptOptions, CmEventKind, ConnectOptions, EventChannel, QpState};

use crate::input::Input;
use crate::live::End;
use hosts::{Link, address};

/// Maximum number of steps in one input.
const MAX_STEPS: usize = 120;
/// Maximum number of rounds in which the connection must complete, close or open.
const ROUNDS: usize = 20_000;
/// The connection may end by itself once the steps have taken this much virtual time.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs the steps of one input. Bit 7 of the first byte also selects Ethernet.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let link = Link::new(data.first().is_some_and(|first| first & 0x80 != 0));
    let mut ends = connect(&link, 0, 1).expect("nothing disturbs the first connection");
    // The responder may not send before it has received an FPDU from the initiator.
    let [first, second] = &mut ends;
    first.post(second, 5, &mut Input::new(&[]));
    let (mut hurt, mut echoes) = (false, [0; 2]);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        hurt |= step(&link, &mut ends, &mut echoes, &mut input) || link.elapsed() > PATIENCE;
        link.progress();
        look(&mut ends, hurt);
    }
    rest(&link, &mut ends, hurt);
    drop(ends);
    afterwards(&link, data.len() & 1);
    link.end();
}

fn look(ends: &mut [End; 2], hurt: bool) {
    for end in ends {
        end.look(hurt);
    }
}

/// Runs one step of the input. Returns true if the connection may break.
fn step(link: &Link, ends: &mut [End; 2], echoes: &mut [usize; 2], input: &mut Input<'_>) -> bool {
    let step = input.u8();
    let from = usize::from(step & 1);
    match step >> 1 & 15 {
        0..=2 => {
            link.carry(from, usize::from(input.u8() % 16) + 1);
        }
        // These steps lose, delay and duplicate a packet.
        3 => drop(link.under_way(from, std::collections::VecDeque::pop_front)),
        4 => link.under_way(from, |packets| {
            let packet = packets.pop_front();
            packets.extend(packet);
        }),
        5 => link.under_way(from, |packets| {
            let packet = packets.front().cloned();
            packets.extend(packet);
        }),
        6 => {
            if let Some(due) = link.progress() {
                link.clock.set(due);
            }
        }
        7 => return damage(link, from, input),
        8 if link.on_ethernet => ethernet::deliver_honest(link, from, &mut echoes[from], input),
        10 if link.on_ethernet => {
            ethernet::deliver_false(link, from, input);
            return true;
        }
        8 => {
            let packet = input.slice(1600);
            link.deliver(from, packet);
            // A packet of at least 20 bytes may belong to the connection.
            return packet.len() >= 20;
        }
        9 | 10 => {
            let packet = stranger::segment(&link.seen(from), input);
            link.deliver_ip(1 - from, &packet);
            return true;
        }
        11 => ends[from].receive(),
        kind => {
            let [first, second] = ends;
            let (ours, theirs) = if from == 0 {
                (first, second)
            } else {
                (second, first)
            };
            ours.post(theirs, kind - 8, input);
        }
    }
    false
}

/// Changes a byte of a packet in flight. Returns false if no packet is in flight or `by` is 0.
fn damage(link: &Link, from: usize, input: &mut Input<'_>) -> bool {
    let (packet, at, by) = (input.u8(), input.u16(), input.u8());
    link.under_way(from, |packets| {
        let packet = usize::from(packet) % packets.len().max(1);
        let Some(packet) = packets.get_mut(packet) else {
            return false;
        };
        let at = usize::from(at) % packet.len();
        packet[at] ^= by;
        if link.on_ethernet {
            ethernet::seal(packet);
        }
        by != 0
    })
}

/// Runs the link without further faults until all work completes or both QPs are in Error, then
/// closes the connection and checks memory.
fn rest(link: &Link, ends: &mut [End; 2], hurt: bool) {
    let over = |end: &End| end.qp.state() == QpState::Error;
    let came_to_rest = link.until(ROUNDS, || {
        look(ends, hurt);
        ends.iter().all(End::is_done) || ends.iter().all(over)
    });
    let states = ends
        .each_ref()
        .map(|end| (end.qp.state(), end.qp.end_reason()));
    assert!(came_to_rest, "neither completed nor ended: {states:?}");
    if !hurt {
        assert!(
            ends.iter()
                .all(|end| end.qp.state() == QpState::Rts && end.is_done()),
            "{states:?}"
        );
    }
    ends.iter().for_each(|end| end.qp.disconnect());
    let closed = link.until(ROUNDS, || {
        look(ends, true);
        ends.iter().all(over)
    });
    let states = ends
        .each_ref()
        .map(|end| (end.qp.state(), end.qp.end_reason()));
    assert!(closed, "the connection does not close: {states:?}");
    ends.iter().for_each(End::completed_all);
    // A Write completes when TCP has accepted its bytes, before they arrive. But both sides have
    // received a FIN, and it follows all bytes of the Writes. So memory holds these bytes.
    ends.iter().for_each(|end| end.memory(hurt));
}

/// Connects one host to another with new QPs. Returns `None` unless both QPs reach RTS.
fn connect(link: &Link, from: usize, to: usize) -> Option<[End; 2]> {
    let end = |host: usize| {
        let device = link.hosts[host].device.clone();
        End::new(device, Arc::clone(&link.clock), host as u64 + 1)
    };
    let (ours, theirs) = (end(from), end(to));
    let channel = EventChannel::new().expect("there are descriptors");
    let id = channel.create_id(&link.hosts[from].device, 0);
    let options = ConnectOptions::default().private_data(b"honest".to_vec());
    id.resolve_addr(None, address(to))
        .expect("the address is reachable");
    id.resolve_route().expect("the address is reachable");
    id.connect(&ours.qp, &options).expect("the QP is new");
    let mut failed = false;
    link.until(ROUNDS, || {
        while let Some(request) = link.hosts[to].listener.poll_request() {
            // A third host may also send requests.
            if request.private_data() == b"honest" && theirs.qp.state() == QpState::Idle {
                let _ = request.accept(&theirs.qp, &AcceptOptions::default());
            }
        }
        while let Some(event) = channel.try_get_event() {
            failed |= matches!(
                event.kind(),
                CmEventKind::Rejected | CmEventKind::Unreachable | CmEventKind::ConnectError
            );
        }
        failed || ours.qp.state() == QpState::Rts
    });
    let stand = [&ours, &theirs].map(|end| end.qp.state() == QpState::Rts);
    (stand == [true; 2]).then_some([ours, theirs])
}

/// Checks that both hosts still work: they connect and send messages.
fn afterwards(link: &Link, from: usize) {
    // Tries again, because requests of the third host occupy the listener until they time out.
    let ends = (0..5).find_map(|_| connect(link, from, 1 - from));
    let mut ends = ends.expect("the hosts can no longer connect");
    let [first, second] = &mut ends;
    second.receive();
    // A Send of 768 bytes, then a Write of 512 bytes.
    first.post(second, 4, &mut Input::new(&[3, 0]));
    first.post(second, 5, &mut Input::new(&[2, 0, 1, 0]));
    rest(link, &mut ends, false);
}
