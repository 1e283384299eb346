//! pcapng captures for uwarp: a writer that devices and connections share, packets made up for
//! connections whose real ones the kernel keeps to itself, and a reader.
//!
//! * [`Capture`] writes one pcapng file or pipe: several interfaces, nanosecond time stamps,
//!   directions, comments. Every packet is with the operating system when the call returns; a write
//!   error ends the capture and never the traffic.
//! * [`Flow`] makes up the IP and TCP headers of one kernel connection from what its owner sends and
//!   receives.
//! * [`Reader`] iterates over the packets of pcapng and pcap files; [`Packet::tcp`] finds the TCP
//!   segment in a packet.
//! * [`decode`] (feature `decode`, on by default) turns packets into MPA frames and RDMA Messages, and tells what breaks the
//!   RFCs.
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
//!         println!("{} -> {}: {} octets", segment.source, segment.destination, segment.payload.len());
//!     }
//! }
//! # std::fs::remove_file(&path)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Looking at a capture with Wireshark
//! ```text
//! tshark -o tcp.try_heuristic_first:TRUE --disable-protocol rpcordma -r FILE.pcapng
//! ```
//! The first option matters when a port belongs to another protocol in Wireshark's table; without
//! the second one Sends with short payloads are taken for malformed RPC-over-RDMA.
//!
//! Wireshark's MPA dissector asks for some alignment of segments, and a [`Flow`] gives it that: an
//! MPA Request or Reply ends its segment, an FPDU that does not fit behind others begins one, and
//! with Markers every FPDU is one, even above the MSS (as captures of a host with segmentation
//! offload show it). Then 4.0 dissects, in full and with a checked CRC, revisions 1 and 2 and FPDUs
//! of any length, whatever pieces the bytes came in. What it cannot do, however the segments are
//! cut:
//! * Markers that only one side asked for: the direction without Markers is read as if it had
//!   them, and its FPDUs are lost. The direction with Markers is dissected.
//! * An FPDU with a Marker inside that ends right where the next Marker is due: it is counted four
//!   bytes too long and passed over, and the next one shows a wrong CRC.
//! * Payload behind the second Marker of an FPDU is shown shifted (headers and the CRC are right).
//! * Markers behind the first 4 GiB of a direction, where sequence numbers wrap (by its source).
//! * It warns of every revision 2 Request, and does not show IRD, ORD and the RTR bits in words.

mod block;
mod capture;
#[cfg(feature = "decode")]
pub mod decode;
mod flow;
mod fpdu;
mod headers;
mod live;
mod reader;
mod segmenter;
mod tcp;
#[cfg(test)]
#[path = "../tests/wire/mod.rs"]
mod wire;

pub use capture::{Capture, Direction, Interface, LinkType};
pub use flow::Flow;
pub use reader::{InterfaceInfo, Packet, ReadError, Reader};
pub use tcp::TcpSegment;
