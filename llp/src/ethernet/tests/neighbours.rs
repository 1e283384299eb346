//! Announcements of own addresses, address conflicts, and floods of invented neighbours.

use super::*;

#[test]
fn our_addresses_are_probed_and_announced() {
    let (_host, wire) = host_and_wire();
    let mut probed = Vec::new();
    let mut announced = Vec::new();
    // The host has three addresses: 192.0.2.1, 2001:db8::1 and a link-local one.
    while probed.len() < 3 || announced.len() < 3 {
        let message = next(&wire, |_, bytes| {
            arp::parse_arp(bytes).or_else(|| arp::parse_ndp(bytes))
        });
        match message.sender {
            None => probed.push(message.target),
            Some((addr, mac)) => {
                assert_eq!(mac, OWN);
                announced.push(addr);
            }
        }
    }
    let all = ["192.0.2.1", "2001:db8::1", "fe80::ff:fe00:1"].map(ip);
    assert_eq!((&probed[..], &announced[..]), (&all[..], &all[..]));
}

struct Teller(parking_lot::Mutex<mpsc::Sender<NetworkEvent>>);

impl NetworkWatcher for Teller {
    fn network_event(&self, event: NetworkEvent) {
        self.0.lock().send(event).unwrap();
    }
}

/// Returns a watcher, which has to be kept alive, and the events that it receives.
fn watched(network: &dyn Network) -> (Arc<dyn NetworkWatcher>, mpsc::Receiver<NetworkEvent>) {
    let (sender, receiver) = mpsc::channel();
    let teller: Arc<dyn NetworkWatcher> = Arc::new(Teller(parking_lot::Mutex::new(sender)));
    network.watch(Arc::downgrade(&teller));
    (teller, receiver)
}

#[test]
fn a_reset_by_the_kernel_of_this_host_is_told_as_what_it_is() {
    let (host, wire) = host_and_wire();
    let (_teller, events) = watched(&host);
    introduce(&wire, "192.0.2.2");
    let (mut client, _) = syn(&host, &wire, "192.0.2.2:7");
    let reset = TcpRepr {
        src_port: client.local_addr().port(),
        dst_port: 7,
        control: TcpControl::Rst,
        seq_number: TcpSeqNumber(1),
        ack_number: None,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let mut bytes = vec![0; reset.buffer_len()];
    let (source, destination) = (ip("192.0.2.1").into(), ip("192.0.2.2").into());
    reset.emit(
        &mut TcpPacket::new_unchecked(&mut bytes[..]),
        &source,
        &destination,
        &ChecksumCapabilities::default(),
    );
    let packet = packet_with("192.0.2.1", "192.0.2.2", IpProtocol::Tcp, &bytes);
    let header = frame::header(PEER, OWN, EtherType::Ipv4);
    wire.send_as_kernel(&header, &packet);
    wire.send_as_kernel(&header, &packet);
    let error = failure(&mut *client);
    let addr = ip("192.0.2.1");
    assert_eq!(error, LlpError::KernelHasAddress { addr });
    assert!(error.to_string().contains("ip addr del 192.0.2.1"));
    assert_eq!(events.recv(), Ok(NetworkEvent::AddressConflict(error)));
    send(&wire, EtherType::Ipv4, &ping_v4(b"done"));
    assert_eq!(pong_v4(&wire), b"done");
    assert!(events.try_recv().is_err(), "reported more than once");
    assert_eq!(host.fault(), None);
}

#[test]
fn a_flood_of_made_up_neighbours_pushes_out_none_that_we_talk_to() {
    let (own, wire) = MemoryWire::pair([OWN, PEER], 1500, 4096).unwrap();
    // The test answers no questions, so no repeated question may become due.
    let timing = Timing {
        retry: Duration::from_secs(3600),
        ..Timing::default()
    };
    let host = EthernetNetwork::open_with(Box::new(own), &settings(1), timing).unwrap();
    introduce(&wire, "192.0.2.2");
    send(&wire, EtherType::Ipv4, &ping_v4(b"one"));
    assert_eq!(pong_v4(&wire), b"one");
    let mut packet = Packet::new(0);
    for number in 0..5_000u32 {
        let ask = Ask {
            addr: ip("2001:db8::1"),
            to: None,
        };
        let made_up = ip(&format!(
            "2001:db8::{:x}:{:x}",
            number >> 8,
            number & 0xff | 0x100
        ));
        arp::write_question(ask, Some(made_up), [2, 9, 9, 9, 9, 9], &mut packet);
        send(&wire, EtherType::Ipv6, packet.bytes());
        if number % 64 == 0 {
            // The answers are not needed, but must not fill the cable.
            while !matches!(
                wire.recv(&mut [0; HEADER], &mut Packet::new(0)).unwrap(),
                Received::Nothing
            ) {}
        }
    }
    send(&wire, EtherType::Ipv4, &ping_v4(b"two"));
    // The host must answer the ping without asking for the MAC address of 192.0.2.2.
    let asked = next(&wire, |header, bytes| {
        let question = arp::parse_arp(bytes).is_some_and(|message| {
            message.target == ip("192.0.2.2") && frame::parse(header).0 == BROADCAST
        });
        if question {
            return Some(true);
        }
        bytes.ends_with(b"two").then_some(false)
    });
    assert!(!asked);
    assert_eq!(host.counters().unsent, 0);
}
