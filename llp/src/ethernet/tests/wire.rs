//! A wire that is full or closed, and a gateway that does not answer.

use super::*;
use crate::SendHints;
use crate::smol::ManualClock;

/// Drives both ends until all bytes are transferred. Waits only on their descriptors.
fn transfer(client: &mut dyn Llp, server: &mut dyn Llp, bytes: &[u8]) -> Vec<u8> {
    let (mut sent, mut got) = (0, Vec::new());
    let mut buffer = [0; 5000];
    while got.len() < bytes.len() {
        client.clear_readiness();
        client.drive();
        let taken = client
            .try_send(&[Piece::from(&bytes[sent..])], SendHints::NONE)
            .unwrap();
        sent += taken;
        server.clear_readiness();
        server.drive();
        let mut progress = taken > 0;
        while let Recv::Data(count) = server.try_recv(&mut buffer).unwrap() {
            got.extend_from_slice(&buffer[..count]);
            progress = true;
        }
        if !progress {
            readable_one_of(client.fd(), server.fd());
        }
    }
    got
}

#[test]
fn a_wire_that_is_always_full_loses_nothing() {
    for capacity in [1, 3] {
        let (one, other) = MemoryWire::pair([OWN, PEER], 600, capacity).unwrap();
        // TCP's clock stands still, so that a lost packet is never sent again.
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let open = |wire, last| {
            let settings = LinkSettings {
                addresses: vec![(IpAddr::from([192, 0, 2, last]), 24)],
                gateways: Vec::new(),
                clock: Arc::clone(&clock),
                congestion: crate::smol::Congestion::None,
                inbox: 4096,
                ..settings(last)
            };
            EthernetNetwork::open(Box::new(wire), &settings).unwrap()
        };
        let (a, b) = (open(one, 1), open(other, 2));
        let mut listener = b.listen("192.0.2.2:0".parse().unwrap(), 4).unwrap();
        let mut client = a.connect(None, listener.local_addr()).unwrap();
        let mut server = None;
        loop {
            client.clear_readiness();
            listener.clear_readiness();
            let stands = client.connect_progress().unwrap();
            server = server.or(listener.try_accept().unwrap());
            if stands && server.is_some() {
                break;
            }
            readable_one_of(client.fd(), listener.fd());
        }
        let bytes: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
        let got = transfer(&mut *client, &mut *server.unwrap(), &bytes);
        assert!(got == bytes);
        assert_eq!((a.counters().unsent, b.counters().unsent), (0, 0));
    }
}

#[test]
fn connections_fail_when_their_gateway_is_silent_and_not_those_by_another_way() {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    let timing = Timing {
        retry: Duration::from_millis(20),
        ..Timing::default()
    };
    let host = EthernetNetwork::open_with(Box::new(own), &settings(1), timing).unwrap();
    introduce(&far, "192.0.2.2");
    let (mut near, _) = syn(&host, &far, "192.0.2.2:7");
    let mut beyond = host
        .connect(None, "198.51.100.7:7".parse().unwrap())
        .unwrap();
    let addr: SocketAddr = "198.51.100.7:7".parse().unwrap();
    assert_eq!(failure(&mut *beyond), LlpError::Unreachable { addr });
    assert_eq!(near.connect_progress(), Ok(false));
}

/// A wire that reports when it is dropped.
struct Closing(MemoryWire, mpsc::Sender<()>);

impl Wire for Closing {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        offload: PacketOffload,
    ) -> Result<bool, LlpError> {
        self.0.send_with(header, packet, offload)
    }
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        self.0.recv(header, packet)
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
    fn mac(&self) -> Mac {
        self.0.mac()
    }
    fn mtu(&self) -> usize {
        self.0.mtu()
    }
    fn describe(&self) -> String {
        self.0.describe()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn the_last_owner_closes_the_wire_and_ends_its_thread() {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    let (sender, closed) = mpsc::channel();
    let host = EthernetNetwork::open(Box::new(Closing(own, sender)), &settings(1)).unwrap();
    introduce(&far, "192.0.2.2");
    let listener = host.listen("192.0.2.1:0".parse().unwrap(), 1).unwrap();
    let (client, _) = syn(&host, &far, "192.0.2.2:7");
    drop((host, listener));
    // The connection still keeps the link open.
    send(&far, EtherType::Ipv4, &ping_v4(b"still there"));
    assert_eq!(pong_v4(&far), b"still there");
    assert_eq!(closed.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(client);
    // Only the thread and the stack share the wire. So the thread has ended when the wire is
    // dropped.
    assert_eq!(closed.recv_timeout(STALLED), Ok(()));
}

#[test]
fn the_last_user_closes_the_link_even_while_its_thread_holds_the_stack() {
    let (host, _far) = host_and_wire();
    let shared = Arc::downgrade(&host.shared);
    // The thread holds the stack in the same way while it delivers a packet.
    let stack = Arc::clone(&host.stack);
    let other = host.clone();
    drop(host);
    assert!(shared.strong_count() > 1 && !stack.link().describe().is_empty());
    drop(other);
    // The thread has ended: only the stack held by this test still uses the link.
    assert_eq!(shared.strong_count(), 1);
}

/// Makes a segment without data for the client that sent this SYN.
fn bare_segment(syn: &Segment, control: TcpControl, ack: usize, window: u16) -> Vec<u8> {
    let tcp = TcpRepr {
        src_port: syn.key.local.port(),
        dst_port: syn.key.remote.port(),
        control,
        seq_number: TcpSeqNumber(if control == TcpControl::Syn { 99 } else { 100 }),
        ack_number: Some(syn.seq + ack),
        window_len: window,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let mut bytes = vec![0; tcp.buffer_len()];
    let (from, to) = (ip("192.0.2.2").into(), ip("192.0.2.1").into());
    let mut packet = TcpPacket::new_unchecked(&mut bytes);
    tcp.emit(&mut packet, &from, &to, &ChecksumCapabilities::default());
    packet_with("192.0.2.2", "192.0.2.1", IpProtocol::Tcp, &bytes)
}

/// An acknowledgement of unsent bytes is answered with the current position, and has no other
/// effect (RFC 9293 section 3.10.7.4).
#[test]
fn bytes_that_never_left_cannot_be_acknowledged() {
    let (host, far) = host_and_wire();
    introduce(&far, "192.0.2.2");
    let (mut client, syn) = syn(&host, &far, "192.0.2.2:7174");
    let syn = Segment::parse(&syn).unwrap();
    let drive = |client: &mut dyn Llp| {
        readable(client.fd());
        client.clear_readiness();
        client.drive();
    };
    let say = |control, ack, window| {
        let segment = bare_segment(&syn, control, ack, window);
        send(&far, EtherType::Ipv4, &segment);
    };
    say(TcpControl::Syn, 1, 0);
    while !client.connect_progress().unwrap() {
        drive(&mut *client);
    }
    let bytes = [7; 50];
    // The peer's window is closed, so the bytes are not sent.
    let sent = client.try_send(&[Piece::from(&bytes[..])], SendHints::NONE);
    assert_eq!(sent, Ok(50));
    say(TcpControl::None, 51, 1000);
    drive(&mut *client);
    assert!(!client.flushed());
    // The last `drive` may have run only a timer. This closure therefore waits until a segment of
    // the requested kind arrives.
    let next_segment = |client: &mut dyn Llp, with_data: bool| {
        let wait = || {
            readable_one_of(far.fd(), client.fd());
            client.clear_readiness();
            client.drive();
        };
        next_after(&far, wait, |_, bytes| {
            let segment = Segment::parse(bytes)?;
            // A window probe has one byte.
            ((segment.payload > 1) == with_data && !segment.syn).then_some(segment)
        })
    };
    assert!(next_segment(&mut *client, false).ack.is_some());
    say(TcpControl::None, 1, 1000);
    drive(&mut *client);
    let data = next_segment(&mut *client, true);
    assert_eq!((data.seq, data.payload), (syn.seq + 1, 50));
    say(TcpControl::None, 51, 1000);
    while !client.flushed() {
        drive(&mut *client);
    }
}
