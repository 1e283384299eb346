//! TCP in user space, by smoltcp, and the in-memory link between two hosts of one process. Other
//! links (`Link`), such as [`crate::ethernet`], use the same stack.
//!
//! smoltcp tries every socket of a socket set for every packet. So each connection has its own
//! interface with a set of one socket, and uwarp's own demultiplexer finds the connection of a
//! packet:
//! ```text
//!  owner of a connection                            owner of its peer
//!  SmolConnection: Interface + 1 socket             SmolConnection
//!        | transmit                                       ^ drive, try_recv, try_send
//!        v                                                |
//!      Link ---> Stack of the other host: table ---> Mailbox: packets + eventfd
//!                    | SYN              | end of handshake ^
//!                    v                  v                  |
//!               Handshakes           Backlog ---> SmolListener (creates the connection)
//! ```
//! The thread that sends a packet puts it into the inbox of the receiving connection and makes that
//! connection's descriptor readable. The thread that drives the receiving connection processes the
//! packet.
//!
//! # Locks
//! A connection or a listener has one owner and no lock. Shared state has small locks: on the table
//! of a stack, its handshakes, the queue of a mailbox, the queue of a backlog, and the pool of
//! buffers. **No thread
//! holds two of them at a time.** Packets are dropped, answers are sent and signals are raised only
//! after the lock was released. No lock is held during a call of smoltcp or a system call.
//!
//! So no lock order is needed, and no deadlock is possible. In particular, sending never waits for
//! the owner of the connection at the other end. `Signal` explains why no wake-up is lost. A link
//! with locks of its own documents their order.
//!
//! # Full inboxes, and loss
//! The in-memory link keeps the order of packets and damages none, unless faults are configured
//! ([`FaultSettings`]). An inbox holds a bounded number of packets ([`MemorySettings::inbox`]).
//! When it is full, the sending connection holds its packets back, as if the queue of its network
//! card were full. The sending connection's descriptor becomes readable when the inbox has been
//! emptied.
//!
//! Packets that TCP sends in answer to a segment are not held back; they are dropped at a limit
//! well beyond the bound. Handshakes that end beyond a listener's backlog have no effect until TCP
//! sends the peer's next segment again.
//!
//! # Segments and FPDUs
//! With [`SendHints`](crate::SendHints), every segment begins with an FPDU and holds as many whole
//! FPDUs as EMSS allows. RFC 5044 section 3 and appendix A.1 ask this of an MPA-aware TCP. An FPDU
//! longer than EMSS is sent in pieces of EMSS bytes.
//!
//! smoltcp cuts a segment where a window ends. So smoltcp is given one segment at a time, when the
//! peer's window has room for the whole segment. `try_send` does not accept bytes that do not fit;
//! these bytes wait for an acknowledgement. The congestion window is private to smoltcp. A segment
//! that does not fit into the congestion window as a whole waits in smoltcp's buffer. Nagle's
//! algorithm keeps it there, and has no other purpose here.
//!
//! Segments do not begin with an FPDU in these cases:
//! * retransmissions: smoltcp cuts the bytes again, every EMSS bytes from the first unacknowledged
//!   byte;
//! * a window that stays too small for the next FPDU with nothing in flight: RFC 9293 section
//!   3.8.6.2.1 requires the sender to fill the window. That happens at once if the window is half
//!   of the largest that the peer offered, otherwise after 200 ms. A peer whose whole window is
//!   smaller than a segment therefore gets parts of FPDUs;
//! * with [`Congestion::Reno`] and [`Congestion::Cubic`], the first segment of a connection on
//!   which nothing was acknowledged yet, if it is longer than 2048 bytes;
//! * with these two congestion controls, also a segment that was waiting for the congestion window
//!   when TCP's timer fired; it is sent together with the retransmission;
//! * an FPDU that was framed before EMSS became smaller;
//! * a call of `try_send` whose pieces end in the middle of its first FPDU.
//!
//! On a link that cuts segments by itself (offload), one segment of smoltcp is a burst of nearly 64
//! KiB. The link cuts it into segments of one length (the last may be shorter), each with whole
//! FPDUs. All of the above then holds for the segments on the wire. Retransmissions are cut at the
//! segment length of the last burst. If FPDUs are to be longer than a segment
//! ([`SendHints::over_segments`](crate::SendHints::over_segments)), bursts are as long as possible,
//! and cut every EMSS bytes without regard to FPDUs.
//!
//! No receiver may rely on this alignment (RFC 5044 section 5). Bytes without hints may be cut
//! anywhere.
//!
//! # EMSS
//! EMSS is the smaller of two values: the MTU less the IP and TCP headers, and the MSS option in
//! the peer's SYN (536 if there is none). TCP options that would shorten a data segment are not
//! used. With offload, EMSS is still the size of one segment on the wire. If the link learns of a
//! smaller MTU on the path, this MTU applies to all later segments, including retransmissions. The
//! assumed MTU is never below 576 bytes for IPv4, where routers may fragment the packets, and 1280
//! bytes for IPv6, which every path supports.

mod align;
mod backlog;
mod burst;
mod challenge;
mod clock;
mod connection;
mod dataless;
mod device;
mod external_link;
mod fault;
mod handshakes;
mod join;
mod link;
mod listener;
mod mailbox;
mod memory;
mod packet;
mod reserved;
mod segment;
mod settings;
mod signal;
mod stack;
mod syn_ack;
mod table;
mod user;
mod window;
mod window_fixup;

pub(crate) use connection::{SmolConnection, local_for};
pub(crate) use fault::{FaultInjector, FaultyLink};
pub(crate) use mailbox::{Mailbox, Notice};
pub(crate) use packet::{ChecksumState, LARGEST, Packet, PacketOffload, Pool, Spares};
pub(crate) use reserved::SmolPort;
pub(crate) use segment::{FlowKey, Segment};
pub(crate) use settings::{LATEST_ACK, MIN_IPV6_MTU, StackSettings};
pub(crate) use signal::Signal;
pub(crate) use stack::{Link, Route, Stack};
pub(crate) use user::User;

pub use clock::{Clock, ManualClock, SystemClock};
pub use external_link::Carrier;

pub use fault::{FaultCounts, FaultSettings};
pub use memory::{MemoryNetwork, MemorySettings};
pub use settings::Congestion;
