//! Two devices with TCP in user space, over IP or over an Ethernet with ARP, NDP and ICMP, and between them what the input makes of a link: packets are lost, doubled, late and
//! in another order; some are damaged; and a stranger sends what he likes, also into the connection that stands. As long as
//! nothing was damaged and nobody interfered, everything completes with the bytes of the model. Else what completes with
//! success is right all the same, no byte of memory has a value that nobody wrote there, and either everything completes or
//! both ends find an error. Afterwards the hosts make a new connection, in one direction or the other, as if nothing had been.
//!
//! Nothing is said of the checksums of TCP, which smoltcp does not look at under a fuzzer: the CRC of MPA has to find what is
//! damaged.

mod ethernet;
mod hosts;
mod stranger;

use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::{AcceptOptions, CmEventKind, ConnectOptions, EventChannel, QpState};

use crate::input::Input;
use crate::live::End;
use hosts::{Link, address};

/// At most so many steps in one input.
const MAX_STEPS: usize = 120;
/// Turns of both hosts in which everything has to come to an end.
const ROUNDS: usize = 20_000;
/// A connection that stands as long as this without its packets may be given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Steps. Bit 7 of the first one: the hosts are on an Ethernet.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let link = Link::new(data.first().is_some_and(|first| first & 0x80 != 0));
    let mut ends = connect(&link, 0, 1).expect("nobody is in the way");
    // The responder may not send before an FPDU of the initiator has come.
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

/// One step of the input. Whether the connection may not survive it.
fn step(link: &Link, ends: &mut [End; 2], echoes: &mut [usize; 2], input: &mut Input<'_>) -> bool {
    let step = input.u8();
    let from = usize::from(step & 1);
    match step >> 1 & 15 {
        0..=2 => {
            link.carry(from, usize::from(input.u8() % 16) + 1);
        }
        // Lost, late, doubled.
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
        8 if link.on_ethernet => ethernet::honest(link, from, &mut echoes[from], input),
        10 if link.on_ethernet => {
            ethernet::false_witness(link, from, input);
            return true;
        }
        8 => {
            let packet = input.slice(1600);
            link.deliver(from, packet);
            // It may be of the connection.
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

/// An byte of a packet under way changes.
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

/// The link is good again: everything completes, or both ends find out that it cannot.
fn rest(link: &Link, ends: &mut [End; 2], hurt: bool) {
    let over = |end: &End| end.qp.state() == QpState::Error;
    let came_to_rest = link.until(ROUNDS, || {
        look(ends, hurt);
        ends.iter().all(End::is_done) || ends.iter().all(over)
    });
    let states = ends
        .each_ref()
        .map(|end| (end.qp.state(), end.qp.end_reason()));
    assert!(came_to_rest, "neither done nor over: {states:?}");
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
    assert!(closed, "it does not close: {states:?}");
    ends.iter().for_each(End::completed_all);
    // A Write is complete when TCP has it, and there when the FIN behind it has come.
    ends.iter().for_each(|end| end.memory(hurt));
}

/// A connection from one host to the other, with new QPs; `None` if there is none.
fn connect(link: &Link, from: usize, to: usize) -> Option<[End; 2]> {
    let end = |host: usize| {
        let device = link.hosts[host].device.clone();
        End::new(device, Arc::clone(&link.clock), host as u64 + 1)
    };
    let (ours, theirs) = (end(from), end(to));
    let channel = EventChannel::new().expect("there are descriptors");
    let id = channel.create_id(&link.hosts[from].device, 0);
    let options = ConnectOptions::default().private_data(b"honest".to_vec());
    id.resolve_addr(None, address(to)).expect("there is a way");
    id.resolve_route().expect("there is a way");
    id.connect(&ours.qp, &options).expect("the QP is new");
    let mut failed = false;
    link.until(ROUNDS, || {
        while let Some(request) = link.hosts[to].listener.poll_request() {
            // Strangers may ask too.
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

/// Both hosts still work: a connection from one to the other, and messages.
fn afterwards(link: &Link, from: usize) {
    // What a stranger has begun goes away in time.
    let ends = (0..5).find_map(|_| connect(link, from, 1 - from));
    let mut ends = ends.expect("the hosts do not connect any more");
    let [first, second] = &mut ends;
    second.receive();
    // A Send and a Write of some bytes.
    first.post(second, 4, &mut Input::new(&[3, 0]));
    first.post(second, 5, &mut Input::new(&[2, 0, 1, 0]));
    rest(link, &mut ends, false);
}
