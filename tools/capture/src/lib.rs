//! Reads, writes and decodes pcapng captures of iWARP traffic.
//!
//! * [`Capture`] writes one pcapng file or pipe with several interfaces, nanosecond timestamps,
//!   directions and comments. Devices and connections share it. When a recording call returns, the
//!   packet has reached the operating system, unless the reader of a pipe is slow. Neither a slow
//!   reader nor a write error stops the traffic.
//! * [`Flow`] synthesizes the packets of a kernel connection from the bytes that its owner sends
//!   and receives. The kernel does not expose the real packets.
//! * [`Reader`] iterates over the packets of pcapng and pcap files; [`Packet::tcp`] finds the TCP
//!   segment in a packet.
//! * [`decode`] (feature `decode`, on by default) turns packets into MPA frames and RDMA Messages,
//!   and reports violations of the RFCs.
//!
//! ```
//! use uwarp_capture::{Capture, Flow, LinkType, Reader};
//!
//! # let path = std::env::temp_dir().join(format!("uwarp-capture-{}.pcapng", std::process::id()));
//! let capture = Capture::create(&path)?;
//! let interface = capture.interface("tcp:192.0.2.1", LinkType::RawIp);
//! let (local, peer) = ("192.0.2.1:40000".parse()?, "192.0.2.2:7174".parse()?);
//! let mut flow = Flow::new(interface, local, peer, 1460);
//! flow.opened(true);
//! flow.sent(b"MPA ID Req Frame\x40\x01\x00\x00");
//!
//! for packet in Reader::open(&path)? {
//!     let packet = packet?;
//!     if let Some(segment) = packet.tcp() {
//!         let len = segment.payload.len();
//!         println!("{} -> {}: {len} bytes", segment.source, segment.destination);
//!     }
//! }
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Opening a capture in Wireshark
//! ```text
//! tshark -o tcp.try_heuristic_first:TRUE --disable-protocol rpcordma -r FILE.pcapng
//! ```
//! The first option is needed if Wireshark assigns the port to another protocol. Without the second
//! option, Wireshark mistakes Sends with short payloads for malformed RPC-over-RDMA.
//!
//! The MPA dissector of Wireshark requires a certain alignment of segments, and a [`Flow`] provides
//! it. An MPA Request or Reply ends its segment. An FPDU that does not fit into the rest of a
//! segment begins a new segment. With Markers, every FPDU has its own segment, even if it exceeds
//! the MSS, as in captures of a host with segmentation offload. Wireshark 4.0 then dissects
//! revisions 1 and 2 and FPDUs of any length completely and checks their CRCs, however the
//! application divided the bytes. These limits of Wireshark remain, however the segments are cut:
//! * If only one side asked for Markers, Wireshark assumes Markers in both directions. It dissects
//!   the direction with Markers, but does not find the FPDUs of the other.
//! * If an FPDU contains a Marker and ends exactly where the next Marker is due, Wireshark computes
//!   a length that is four bytes too long, and skips the FPDU. The next FPDU is shown with a wrong
//!   CRC.
//! * Payload after the second Marker of an FPDU is shown shifted. Headers and CRC are shown
//!   correctly.
//! * Markers are not found after the first 4 GiB of a direction, where sequence numbers wrap. This
//!   is concluded from the source of Wireshark.
//! * Wireshark warns about every Request of revision 2, and does not name IRD, ORD and the RTR
//!   bits.

mod block;
mod capture;
#[cfg(feature = "decode")]
pub mod decode;
mod flow;
mod fpdu;
mod headers;
mod live;
mod output;
mod reader;
mod segmenter;
mod tcp;

pub use capture::{Capture, CaptureOptions, Direction, Interface, LinkType, Spawn};
pub use flow::Flow;
pub use reader::{InterfaceInfo, Packet, ReadError, Reader};
pub use tcp::TcpSegment;
