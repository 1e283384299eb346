//! Inbox of a connection, where packets wait until the connection is driven.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::packet::{Packet, Pool};
use super::signal::Signal;
use crate::LlpError;

/// Number of packets accepted beyond twice the packet bound, for answers to received packets.
const ANSWERS: usize = 64;

/// A bounded inbox with a signal. Any thread may deliver packets; only the owner of the connection
/// takes them.
///
/// It has two bounds. At the first one, [`subscribe_if_full`](Self::subscribe_if_full) makes the
/// sender hold its packets back, like the full queue of a network card. The sender's signal is
/// raised when there is room again. Without this bound, small segments that are not read would
/// overflow any inbox long before TCP's window stops the sender. Each loss would cost a second.
///
/// Only packets that are sent without this check (answers to received packets) can exceed the first
/// bound. They are dropped at the second one, which is well above it.
///
/// Each bound limits both the number of packets and the total size of their buffers. The size of a
/// buffer counts and not the length of its packet, because a peer could send short packets that
/// occupy large buffers.
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    /// Number of waiting packets. This hint saves taking the lock.
    waiting: AtomicUsize,
    /// Total size of the buffers of waiting packets, in bytes. This hint saves taking the lock too.
    bytes: AtomicUsize,
    bounds: Bounds,
    pool: Arc<Pool>,
    pub(crate) signal: Signal,
    /// Longest IP packet that passes the whole path, according to ICMP messages. `usize::MAX` if
    /// nothing is known.
    pub(crate) path_mtu: AtomicUsize,
    /// Sequence number after the last byte sent, combined with [`SENT`] once it is valid.
    sent: AtomicU64,
    notice: Mutex<Option<Notice>>,
    /// True if there is a notice. This hint saves taking the lock of the notice.
    noticed: AtomicBool,
}

/// Bit of `sent` that marks its other bits as valid.
const SENT: u64 = 1 << 32;

/// Notice that a link leaves for a connection: an event other than a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The connection ends with this error in every stage.
    End(LlpError),
    /// The connection ends with this error unless it is already established.
    EndHandshake(LlpError),
}

/// Bounds of an inbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Number of packets at which senders hold packets back. Packets are dropped at twice this
    /// number plus [`ANSWERS`].
    pub(crate) packets: usize,
    /// Total size in bytes above which packets are dropped. Senders hold packets back at half of
    /// this size.
    pub(crate) bytes: usize,
}

impl Bounds {
    fn are_reached(&self, packets: usize, bytes: usize) -> bool {
        packets >= self.packets || bytes >= self.bytes / 2
    }

    fn has_room(&self, packets: usize, bytes: usize) -> bool {
        let most = self.packets.saturating_mul(2).saturating_add(ANSWERS);
        packets < most && bytes <= self.bytes
    }
}

struct Queue {
    packets: VecDeque<Packet>,
    /// Total size of the packets' buffers in bytes.
    bytes: usize,
    /// Sender to notify when there is room again.
    held_back: Option<Arc<Mailbox>>,
    /// True while the owner polls the link and will check the inbox afterwards, so that no signal
    /// is needed.
    attended: bool,
    closed: bool,
}

impl Mailbox {
    /// Creates an inbox with these bounds.
    pub(crate) fn new(bounds: Bounds, pool: Arc<Pool>) -> Result<Self, LlpError> {
        let queue = Queue {
            packets: VecDeque::new(),
            bytes: 0,
            held_back: None,
            attended: false,
            closed: false,
        };
        Ok(Self {
            queue: Mutex::new(queue),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            bounds,
            pool,
            signal: Signal::new()?,
            path_mtu: AtomicUsize::new(usize::MAX),
            sent: AtomicU64::new(0),
            notice: Mutex::default(),
            noticed: AtomicBool::new(false),
        })
    }

    /// Creates an inbox that belongs to no connection.
    #[cfg(test)]
    pub(crate) fn alone() -> Result<Self, LlpError> {
        let bounds = Bounds {
            packets: 1,
            bytes: usize::MAX,
        };
        Self::new(bounds, Arc::new(Pool::new(64)))
    }

    /// Leaves a notice for the connection and raises its signal. The new notice replaces an earlier
    /// one that is not [`Notice::End`].
    pub(crate) fn notify(&self, notice: Notice) {
        {
            let mut slot = self.notice.lock();
            if !matches!(*slot, Some(Notice::End(_))) {
                *slot = Some(notice);
            }
            self.noticed.store(true, Ordering::Release);
        }
        self.signal.raise();
    }

    /// Takes the notice, if there is one.
    pub(crate) fn take_notice(&self) -> Option<Notice> {
        if !self.noticed.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.notice.lock().take()
    }

    /// Limits the packet length because of the path's MTU, and raises the signal. Returns true if
    /// the limit is lower than before.
    pub(crate) fn limit_mtu(&self, mtu: usize) -> bool {
        let news = self.path_mtu.fetch_min(mtu, Ordering::AcqRel) > mtu;
        if news {
            self.signal.raise();
        }
        news
    }

    /// Returns true if packets or a notice wait.
    pub(crate) fn has_news(&self) -> bool {
        self.has_packets() || self.noticed.load(Ordering::Acquire)
    }

    /// Records that bytes up to the sequence number `end` were sent. An older number has no effect.
    pub(crate) fn note_sent(&self, end: u32) {
        // Only the owner of the connection writes `sent`, so the load and the store need not be one
        // atomic operation.
        let before = self.sent.load(Ordering::Relaxed);
        let newer = u32::try_from(before & !SENT)
            .is_ok_and(|sent| end.wrapping_sub(sent) < 1 << 31 || before & SENT == 0);
        if newer {
            self.sent.store(SENT | u64::from(end), Ordering::Release);
        }
    }

    /// Returns true if `seq` is within the last `window` bytes sent, and can therefore belong to a
    /// segment in flight. An attacker who cannot see the connection's packets could only guess such
    /// a number (RFC 5927 section 4.1).
    pub(crate) fn is_in_flight(&self, seq: u32, window: usize) -> bool {
        let sent = self.sent.load(Ordering::Acquire);
        let back = u32::try_from(sent & !SENT).map(|end| end.wrapping_sub(seq));
        sent & SENT != 0
            && back.is_ok_and(|back| {
                back > 0 && usize::try_from(back).is_ok_and(|back| back <= window)
            })
    }

    /// Adds a packet and raises the signal. Drops the packet if the inbox is full, as a link does.
    /// Returns the packet if the inbox was closed, because another connection may now have the same
    /// addresses.
    pub(crate) fn deliver(&self, packet: Packet) -> Result<(), Packet> {
        let attended = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(packet);
            }
            let bytes = queue.bytes.saturating_add(packet.capacity());
            if !self.bounds.has_room(queue.packets.len(), bytes) {
                drop(queue);
                tracing::debug!(bounds = ?self.bounds, "inbox full, packet dropped");
                self.pool.give_one(packet);
                return Ok(());
            }
            queue.packets.push_back(packet);
            queue.bytes = bytes;
            self.bytes.store(bytes, Ordering::Relaxed);
            self.waiting.store(queue.packets.len(), Ordering::Release);
            queue.attended
        };
        if !attended {
            self.signal.raise();
        }
        Ok(())
    }

    /// Runs `poll` and suppresses the signal for packets that arrive meanwhile. The caller must own
    /// the connection, and has to check the inbox afterwards.
    pub(crate) fn attend(&self, poll: impl FnOnce()) {
        self.queue.lock().attended = true;
        poll();
        self.queue.lock().attended = false;
    }

    /// Returns true if a sender has to hold its packets back. In that case, the signal of `sender`
    /// is raised once there is room again.
    pub(crate) fn subscribe_if_full(&self, sender: &Arc<Mailbox>) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        let bytes = self.bytes.load(Ordering::Relaxed);
        if !self.bounds.are_reached(waiting, bytes) {
            return false;
        }
        let mut queue = self.queue.lock();
        let full = self.bounds.are_reached(queue.packets.len(), queue.bytes) && !queue.closed;
        if full {
            queue.held_back = Some(Arc::clone(sender));
        }
        full
    }

    /// Returns true if packets wait.
    pub(crate) fn has_packets(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Takes all packets, by swapping the queue with `empty`. Raises the signal of a sender that
    /// was held back.
    pub(crate) fn take(&self, empty: &mut VecDeque<Packet>) {
        debug_assert!(empty.is_empty());
        let held_back = {
            let mut queue = self.queue.lock();
            mem::swap(&mut queue.packets, empty);
            queue.bytes = 0;
            self.bytes.store(0, Ordering::Relaxed);
            self.waiting.store(0, Ordering::Release);
            queue.held_back.take()
        };
        if let Some(sender) = held_back {
            sender.signal.raise();
        }
    }

    /// Closes the inbox. Returns the packets that are still in it.
    pub(crate) fn close(&self) -> VecDeque<Packet> {
        let (left, held_back) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            queue.bytes = 0;
            self.bytes.store(0, Ordering::Relaxed);
            self.waiting.store(0, Ordering::Release);
            (mem::take(&mut queue.packets), queue.held_back.take())
        };
        if let Some(sender) = held_back {
            sender.signal.raise();
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr};

    fn mailbox(packets: usize) -> Mailbox {
        bounded(packets, usize::MAX)
    }

    fn bounded(packets: usize, bytes: usize) -> Mailbox {
        let bounds = Bounds { packets, bytes };
        Mailbox::new(bounds, Arc::new(Pool::new(64))).unwrap()
    }

    fn numbered(number: u8) -> Packet {
        let mut packet = Packet::new(1);
        packet.resize(1).fill(number);
        packet
    }

    #[test]
    fn packets_come_out_in_the_order_they_went_in() {
        let mailbox = mailbox(10);
        for number in 0..3 {
            assert!(mailbox.deliver(numbered(number)).is_ok());
        }
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        assert_eq!(
            taken.iter().map(|p| p.bytes()[0]).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(!mailbox.has_packets());
    }

    #[test]
    fn an_inbox_drops_what_comes_beyond_its_second_bound() {
        let mailbox = mailbox(2);
        for number in 0..100 {
            assert!(mailbox.deliver(numbered(number)).is_ok());
        }
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        assert_eq!(taken.len(), 4 + ANSWERS);
    }

    #[test]
    fn an_inbox_holds_no_more_bytes_of_buffers_than_its_bound() {
        let (mailbox, sender) = (bounded(1000, 300_000), Arc::new(mailbox(1)));
        let short = || {
            // A few bytes in a large buffer count as the whole buffer.
            let mut packet = Packet::new(65_536);
            packet.resize(40);
            packet
        };
        let full: Vec<bool> = (0..100)
            .map(|_| {
                assert!(mailbox.deliver(short()).is_ok());
                mailbox.subscribe_if_full(&sender)
            })
            .collect();
        assert_eq!(full[..4], [false, false, true, true]);
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        assert_eq!(taken.len(), 4);
        assert!(sender.signal.is_raised() && !mailbox.subscribe_if_full(&sender));
        assert!(mailbox.deliver(short()).is_ok() && mailbox.has_packets());
    }

    #[test]
    fn a_sender_that_was_held_back_is_told_when_there_is_room() {
        let (full, sender) = (mailbox(1), Arc::new(mailbox(1)));
        assert!(!full.subscribe_if_full(&sender));
        assert!(full.deliver(numbered(1)).is_ok());
        assert!(full.subscribe_if_full(&sender));
        assert!(!sender.signal.is_raised());
        full.take(&mut VecDeque::new());
        assert!(sender.signal.is_raised());
        assert!(!full.subscribe_if_full(&sender));
    }

    #[test]
    fn a_sender_that_was_held_back_is_told_when_the_inbox_closes() {
        let (full, sender) = (mailbox(1), Arc::new(mailbox(1)));
        assert!(full.deliver(numbered(1)).is_ok());
        assert!(full.subscribe_if_full(&sender));
        full.close();
        assert!(sender.signal.is_raised());
        assert!(!full.subscribe_if_full(&sender));
    }

    #[test]
    fn who_looks_in_any_case_is_not_told() {
        let mailbox = mailbox(2);
        mailbox.attend(|| assert!(mailbox.deliver(numbered(1)).is_ok()));
        assert!(mailbox.has_packets() && !mailbox.signal.is_raised());
        assert!(mailbox.deliver(numbered(2)).is_ok());
        assert!(mailbox.signal.is_raised());
    }

    #[test]
    fn a_closed_inbox_gives_the_packet_back() {
        let mailbox = mailbox(2);
        assert!(mailbox.deliver(numbered(1)).is_ok());
        assert_eq!(mailbox.close().len(), 1);
        assert!(!mailbox.has_packets());
        assert_eq!(
            mailbox.deliver(numbered(7)).err().map(|p| p.bytes()[0]),
            Some(7)
        );
    }

    #[test]
    fn what_ends_a_connection_in_any_stage_counts_for_more() {
        let mailbox = mailbox(1);
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let end = Notice::End(LlpError::Reset { addr });
        assert!(!mailbox.has_news());
        mailbox.notify(end);
        mailbox.notify(Notice::EndHandshake(LlpError::Unreachable { addr }));
        assert!(mailbox.has_news() && mailbox.signal.is_raised());
        assert_eq!(mailbox.take_notice(), Some(end));
        assert_eq!(mailbox.take_notice(), None);
    }

    #[test]
    fn only_sequence_numbers_of_what_is_under_way_are_believed() {
        let mailbox = mailbox(1);
        assert!(!mailbox.is_in_flight(0, 100));
        mailbox.note_sent(u32::MAX - 9);
        mailbox.note_sent(40);
        mailbox.note_sent(u32::MAX - 20);
        assert!(mailbox.is_in_flight(39, 100));
        assert!(mailbox.is_in_flight(u32::MAX - 49, 100));
        assert!(!mailbox.is_in_flight(40, 100));
        assert!(!mailbox.is_in_flight(u32::MAX - 70, 100));
    }
}
