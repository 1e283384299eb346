//! A host whose wire cuts segments and completes checksums. The host at the other end has no
//! offload.

use parking_lot::Mutex;

use super::*;
use crate::wire::complete;
use crate::{LlpListener, SendHints};

/// A wire that performs the offloaded work, as a kernel or a network card does.
struct Cutting {
    wire: MemoryWire,
    seen: Arc<Mutex<Seen>>,
}

/// Record of the traffic on the wire.
#[derive(Default)]
struct Seen {
    /// Length of the longest packet sent.
    longest: usize,
    /// Sequence number and data length of each segment on the cable.
    segments: Vec<(u32, usize)>,
    /// MSS option of the SYN that was sent.
    mss: Option<u16>,
}

impl Cutting {
    fn send_cut(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        offload: PacketOffload,
    ) -> Result<(), LlpError> {
        let ChecksumState::Partial { start, offset } = offload.sums else {
            assert_eq!(
                offload.segment, 0,
                "a packet with complete checksums is not cut"
            );
            assert!(self.wire.send(header, packet)?);
            return Ok(());
        };
        let data = usize::from(start) + usize::from(packet[usize::from(start) + 12] >> 4) * 4;
        let each = match offload.segment {
            0 => usize::MAX,
            each => usize::from(each),
        };
        let length = |packet: &[u8]| (packet.len() - usize::from(start)) as u16;
        let mut at = 0usize;
        loop {
            let end = packet
                .len()
                .min(at.saturating_add(each).saturating_add(data));
            let mut part = [&packet[..data], &packet[data + at..end]].concat();
            let tcp = usize::from(start);
            // The partial sum includes the length in the pseudo-header, which differs for each
            // part.
            let sum = u32::from(u16::from_be_bytes([packet[tcp + 16], packet[tcp + 17]]));
            let sum = sum + u32::from(!length(packet)) + u32::from(length(&part));
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
            part[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
            let seq = u32::from_be_bytes(packet[tcp + 4..tcp + 8].try_into().unwrap());
            let seq = seq.wrapping_add(at as u32);
            part[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
            if end < packet.len() {
                // FIN and PSH belong to the last part.
                part[tcp + 13] &= !0b1001;
            }
            if part[0] >> 4 == 4 {
                let mut ip = Ipv4Packet::new_unchecked(&mut part);
                assert!(at > 0 || ip.verify_checksum());
                ip.set_total_len((end - at) as u16);
                ip.fill_checksum();
            } else {
                let bytes = (end - at) as u16 - 40;
                Ipv6Packet::new_unchecked(&mut part).set_payload_len(bytes);
            }
            complete(&mut part, ChecksumState::Partial { start, offset });
            assert!(part.len() <= self.wire.mtu(), "{} bytes", part.len());
            assert!(self.wire.send(header, &part)?, "the cable is full");
            if end > data + at {
                self.seen.lock().segments.push((seq, end - data - at));
            }
            at = end - data;
            if end == packet.len() {
                return Ok(());
            }
        }
    }
}

impl Wire for Cutting {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        offload: PacketOffload,
    ) -> Result<bool, LlpError> {
        {
            let mut seen = self.seen.lock();
            seen.longest = seen.longest.max(packet.len());
            seen.mss = seen
                .mss
                .or(Segment::parse(packet).and_then(|segment| segment.mss));
        }
        self.send_cut(header, packet, offload).map(|()| true)
    }
    fn offloads(&self) -> bool {
        true
    }
    fn recv(&self, header: &mut [u8; HEADER], packet: &mut Packet) -> Result<Received, LlpError> {
        self.wire.recv(header, packet)
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.wire.fd()
    }
    fn mac(&self) -> Mac {
        self.wire.mac()
    }
    fn mtu(&self) -> usize {
        self.wire.mtu()
    }
    fn describe(&self) -> String {
        "a cable that cuts".to_owned()
    }
}

/// Creates a host whose wire cuts segments, and a host without offload. Returns both, and the
/// record of the first host's wire.
fn hosts(mtu: usize) -> (EthernetNetwork, EthernetNetwork, Arc<Mutex<Seen>>) {
    let (own, far) = MemoryWire::pair([OWN, PEER], mtu, 1 << 16).unwrap();
    let seen = Arc::new(Mutex::default());
    let cutting = Cutting {
        wire: own,
        seen: Arc::clone(&seen),
    };
    let host = EthernetNetwork::open(Box::new(cutting), &settings(1)).unwrap();
    let peer = EthernetNetwork::open(Box::new(far), &settings(2)).unwrap();
    (host, peer, seen)
}

fn connection(
    from: &EthernetNetwork,
    listener: &mut dyn LlpListener,
) -> (Box<dyn Llp>, Box<dyn Llp>) {
    let mut client = from.connect(None, listener.local_addr()).unwrap();
    let server = loop {
        listener.clear_readiness();
        client.clear_readiness();
        client.drive();
        if let Some(server) = listener.try_accept().unwrap() {
            break server;
        }
        readable_one_of(client.fd(), listener.fd());
    };
    while !client.connect_progress().unwrap() {
        readable_one_of(client.fd(), server.fd());
        client.clear_readiness();
        client.drive();
    }
    (client, server)
}

/// Transfers `bytes` from one end to the other. `ends` are the ends of the FPDUs.
fn transfer(from: &mut dyn Llp, to: &mut dyn Llp, bytes: &[u8], ends: &[u64]) {
    transfer_with(from, to, bytes, ends, false);
}

fn transfer_with(from: &mut dyn Llp, to: &mut dyn Llp, bytes: &[u8], ends: &[u64], over: bool) {
    let (mut sent, mut got) = (0, Vec::new());
    let mut buffer = vec![0; 100_000];
    while got.len() < bytes.len() {
        from.clear_readiness();
        from.drive();
        to.clear_readiness();
        to.drive();
        // A call without `ends` would permit cuts anywhere in the unsent bytes, so there is no
        // further call after the last byte.
        let more = if sent < bytes.len() {
            let rest = &ends[ends.partition_point(|end| *end <= sent as u64)..];
            let hints = match rest {
                [] => SendHints::NONE,
                rest if over => SendHints::new(sent as u64, rest).over_segments(),
                rest => SendHints::new(sent as u64, rest),
            };
            from.try_send(&[Piece::from(&bytes[sent..])], hints)
                .unwrap()
        } else {
            0
        };
        sent += more;
        match to.try_recv(&mut buffer).unwrap() {
            Recv::Data(count) => got.extend_from_slice(&buffer[..count]),
            _ if more == 0 => readable_one_of(from.fd(), to.fd()),
            _ => {}
        }
    }
    assert!(got == bytes, "other bytes arrived");
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(5);
    (0..count).map(|_| random.u8(..)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn every_segment_on_the_wire_begins_with_an_fpdu_and_is_within_the_mtu(
        mtu in prop_oneof![Just(1500usize), Just(1501), Just(9000), 1280usize..3000],
        v6 in any::<bool>(),
        alike in any::<bool>(),
        passive in any::<bool>(),
        sizes in proptest::collection::vec(5usize..360, 1..40),
    ) {
        let (host, peer, seen) = hosts(mtu);
        let at = |number| if v6 { format!("[2001:db8::{number}]:0") } else { format!("192.0.2.{number}:0") };
        let (mut sender, mut receiver) = if passive {
            let mut listener = host.listen(at(1).parse().unwrap(), 1).unwrap();
            let (client, server) = connection(&peer, &mut *listener);
            (server, client)
        } else {
            let mut listener = peer.listen(at(2).parse().unwrap(), 1).unwrap();
            connection(&host, &mut *listener)
        };
        let emss = mtu - if v6 { 60 } else { 40 };
        prop_assert_eq!(sender.emss(), emss);
        prop_assert_eq!(seen.lock().mss, Some(emss as u16));
        let bytes = random_bytes(400_000);
        // The first transfer is acknowledged before the next one begins, like an MPA request.
        transfer(&mut *sender, &mut *receiver, &bytes[..100], &[100]);
        seen.lock().segments.clear();
        let sizes = sizes.iter().map(|size| if alike { emss & !3 } else { size * 4 }).cycle();
        let ends: Vec<u64> = sizes
            .scan(0, |at, size| { *at += size.min(emss) as u64; Some(*at) })
            .take_while(|end| *end <= 400_000)
            .collect();
        let whole = *ends.last().unwrap() as usize;
        transfer(&mut *sender, &mut *receiver, &bytes[..whole], &ends);
        {
            let seen = seen.lock();
            prop_assert!(seen.longest > 20_000 || !alike, "{}", seen.longest);
            let first = seen.segments[0].0;
            for (seq, bytes) in &seen.segments {
                let at = u64::from(seq.wrapping_sub(first));
                prop_assert!(at == 0 || ends.contains(&at), "{at} is within an FPDU");
                prop_assert!(ends.contains(&(at + *bytes as u64)), "{bytes} at {at}");
            }
        }
        // Transfers without FPDUs, in both directions.
        transfer(&mut *receiver, &mut *sender, &bytes, &[]);
        transfer(&mut *sender, &mut *receiver, &bytes, &[]);
    }
}

#[test]
fn fpdus_that_may_go_over_segments_leave_in_full_bursts_and_others_segment_by_segment() {
    const FPDU: usize = 64_236;
    for (mtu, over) in [(1500, true), (9000, true), (1500, false)] {
        let (host, peer, seen) = hosts(mtu);
        let mut listener = peer.listen("192.0.2.2:0".parse().unwrap(), 1).unwrap();
        let (mut sender, mut receiver) = connection(&host, &mut *listener);
        let bytes = random_bytes(10 * FPDU);
        let ends: Vec<u64> = (1..=10).map(|number| (number * FPDU) as u64).collect();
        transfer(&mut *sender, &mut *receiver, &bytes[..100], &[100]);
        {
            let mut seen = seen.lock();
            (seen.longest, seen.segments) = (0, Vec::new());
        }
        transfer_with(&mut *sender, &mut *receiver, &bytes, &ends, over);
        let seen = seen.lock();
        let emss = mtu - 40;
        assert!(seen.segments.iter().all(|(_, bytes)| *bytes <= emss));
        let longest = 40 + if over { 65_495 / emss * emss } else { emss };
        assert_eq!(seen.longest, longest, "MTU {mtu}");
        let full = seen.segments.iter().filter(|(_, bytes)| *bytes == emss);
        assert!(
            full.count() > 10 * FPDU / emss * 8 / 10,
            "{:?}",
            seen.segments
        );
    }
}

#[test]
fn a_segment_with_a_wrong_checksum_that_nobody_vouches_for_is_dropped() {
    let (own, far) = MemoryWire::pair([OWN, PEER], 1500, 1 << 10).unwrap();
    let seen = Arc::new(Mutex::default());
    let host = EthernetNetwork::open(Box::new(Cutting { wire: own, seen }), &settings(1)).unwrap();
    introduce(&far, "192.0.2.2");
    let (mut client, syn) = syn(&host, &far, "192.0.2.2:7174");
    let syn = Segment::parse(&syn).unwrap();
    let reset = TcpRepr {
        src_port: 7174,
        dst_port: syn.key.remote.port(),
        control: TcpControl::Rst,
        seq_number: TcpSeqNumber(0),
        ack_number: Some(syn.seq + 1),
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    let mut bytes = vec![0; reset.buffer_len()];
    let (from, to) = (ip("192.0.2.2").into(), ip("192.0.2.1").into());
    let mut tcp = TcpPacket::new_unchecked(&mut bytes);
    reset.emit(&mut tcp, &from, &to, &ChecksumCapabilities::default());
    let right = packet_with("192.0.2.2", "192.0.2.1", IpProtocol::Tcp, &bytes);
    bytes[17] ^= 1;
    let wrong = packet_with("192.0.2.2", "192.0.2.1", IpProtocol::Tcp, &bytes);
    send(&far, EtherType::Ipv4, &wrong);
    while host.counters().malformed == 0 {
        std::thread::yield_now();
    }
    assert_eq!(client.connect_progress(), Ok(false));
    send(&far, EtherType::Ipv4, &right);
    let addr = "192.0.2.2:7174".parse().unwrap();
    assert_eq!(failure(&mut *client), LlpError::Refused { addr });
}
