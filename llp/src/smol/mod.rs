//! TCP in user space, by smoltcp, and the in-memory link between two hosts of one process. Other
//! links (`Link`) carry the same stack, [`crate::ethernet`] among them.
//!
//! smoltcp looks at every socket of a set for every packet, so each connection is an interface and
//! a set of one socket by itself, and a demultiplexer of our own stands in front:
//! ```text
//!  owner of a connection                            owner of its peer
//!  SmolConnection: Interface + 1 socket             SmolConnection
//!        | transmit                                       ^ drive, try_recv, try_send
//!        v                                                |
//!      Link ---> Stack of the other host: table ---> Mailbox: packets + eventfd
//!                    | SYN                                ^
//!                    +---> Backlog ---> SmolListener -----+ (begins a connection per SYN)
//! ```
//! The thread that sends a packet puts it into the inbox of the connection it is for and raises
//! that connection's descriptor. The rest of the work is done by whoever drives that connection.
//!
//! # Locks
//! A connection or a listener has one owner and no lock. What threads share is locked by leaves
//! only: the table of a stack, the queue of a mailbox, of a backlog, and the pool of buffers. **No
//! thread holds two of them at a time** (a drop of a packet, an answer of the stack and a signal
//! all happen after the lock that led to them was released), and none is held across a call of
//! smoltcp or a system call. So there is no order to keep and no way to wait in a circle: in
//! particular, sending never waits for the connection at the other end, however long its owner
//! keeps it. Why no wake-up is lost is told at `Signal`. A link with locks of its own tells there how
//! they go together.
//!
//! # Full inboxes, and loss
//! The in-memory link keeps the order and damages nothing, unless faults are asked for
//! ([`FaultSettings`]). An inbox holds a bounded number of packets
//! ([`MemorySettings::inbox`]). When it is full, the connection at the other end holds its packets
//! back, as if the queue of its network card were full, and its descriptor is raised once the inbox
//! was emptied. Only what TCP sends in answer to a segment does not wait for that; well
//! beyond the bound it is dropped. SYNs beyond a listener's backlog are ignored and come again after a second.
//!
//! # Segments and FPDUs
//! With [`SendHints`](crate::SendHints), every segment begins with an FPDU and holds a whole number of
//! them, as RFC 5044 section 3 and appendix A.1 ask of an MPA-aware TCP: as many as EMSS allows, or
//! the pieces of EMSS bytes of one that is longer. smoltcp cuts its buffer wherever a window ends,
//! so it is given one segment at a time, when the peer's window takes it whole; what does not fit
//! waits for an acknowledgement on our side of `try_send`. A congestion window is smoltcp's secret:
//! what it does not take whole waits in smoltcp's buffer, by Nagle's algorithm, which is used for
//! nothing else. It does not hold
//! * for what TCP sends again: smoltcp cuts that anew, at EMSS from the first byte that was not
//!   acknowledged;
//! * when a window stays too small for the next FPDU with nothing in flight: RFC 9293 section
//!   3.8.6.2.1 has it filled, at once when it is half of the largest that the peer offered, else
//!   after 200 ms. So a peer whose whole window is smaller than a segment gets parts of FPDUs;
//! * with [`Congestion::Reno`] and [`Congestion::Cubic`] for two more: the first segment of a
//!   connection on which nothing was acknowledged yet, if it is longer than 2048 bytes, and the
//!   segment that was waiting for the congestion window when TCP's timer fired, which goes out
//!   together with what is sent again;
//! * for an FPDU of a batch that was framed before EMSS became smaller;
//! * within a call whose pieces end in the middle of its first FPDU.
//!
//! On a link that cuts segments by itself (offload), one segment of smoltcp's is a burst of nearly 64 KiB: as many segments
//! of the wire as have whole FPDUs and one length (but for the last), cut at that length. So all of this holds for the segments
//! on the wire; what is sent again is cut at the length of those before. Where FPDUs are to be longer than a segment
//! ([`SendHints::over_segments`](crate::SendHints::over_segments)), bursts are as long as they can be, and cut at EMSS wherever FPDUs end.
//!
//! No receiver may rely on it (RFC 5044 section 5). Bytes without ends are one run that TCP may cut
//! anywhere.
//!
//! # EMSS
//! EMSS is computed here: the smaller of what the MTU leaves after the IP and TCP headers and of
//! the MSS that the peer's SYN named (536 without one). TCP options that would shorten a data
//! segment are not used. Offload changes nothing of this: EMSS is what one segment on the wire carries. A smaller MTU of the path, when the link learns of one, counts from the
//! next segment on, also for what is sent again. Below 576 bytes (IPv4) the packets stay that
//! large and routers may fragment them; with IPv6, 1280 bytes is what every path takes.

mod align;
mod backlog;
mod burst;
mod clock;
mod connection;
mod dataless;
mod device;
mod external_link;
mod fault;
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
mod table;
mod user;
mod window;
mod window_fixup;

pub(crate) use connection::{SmolConnection, local_for};
pub(crate) use fault::{FaultInjector, FaultyLink};
pub(crate) use mailbox::{Mailbox, Notice};
pub(crate) use packet::{LARGEST, Left, Packet, Pool, Spares, Sums};
pub(crate) use reserved::SmolPort;
pub(crate) use segment::{FlowKey, Segment};
pub(crate) use settings::{LATEST_ACK, MIN_IPV6_MTU, StackSettings};
pub(crate) use signal::Signal;
pub(crate) use stack::{Link, Route, Stack};
pub(crate) use user::User;

pub use clock::{Clock, SystemClock};
pub use external_link::Carrier;

pub use fault::{FaultCounts, FaultSettings};
pub use memory::{MemoryNetwork, MemorySettings};
pub use settings::Congestion;
