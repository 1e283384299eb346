//! Where packets for one connection wait until somebody drives it.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::packet::{Packet, Pool};
use super::signal::Signal;
use crate::LlpError;

/// How many packets an inbox of any size takes beyond what makes it full.
const ANSWERS: usize = 64;

/// A bounded inbox with a signal. Any thread delivers; the owner of the connection takes.
///
/// It has two bounds. From the first on, [`is_full`](Self::is_full) tells the sender to hold its
/// packets back, as the queue of a network card does, and its signal is raised once there is room
/// again. Without that, a run of small segments which nobody takes in would overflow any inbox
/// long before the window of TCP stops the sender, and each loss costs a second. Only what is sent
/// without asking (answers to what arrives) gets past it, and is dropped at the second bound, which
/// is well above the first.
///
/// Both count packets, and the bytes of the buffers that these are in, whatever of them they fill: a peer on the other
/// side of a wire chooses how long its packets are.
pub(crate) struct Mailbox {
    queue: Mutex<Queue>,
    /// How many packets wait; a hint that saves a lock.
    waiting: AtomicUsize,
    /// The bytes of their buffers; a hint as well.
    octets: AtomicUsize,
    bounds: Bounds,
    pool: Arc<Pool>,
    pub(crate) signal: Signal,
    /// The longest IP packet that passes the whole path, as far as routers have told;
    /// `usize::MAX` while nothing is known.
    pub(crate) path_mtu: AtomicUsize,
    /// The sequence number behind what was sent so far, with [`SENT`] above it once there is one.
    sent: AtomicU64,
    notice: Mutex<Option<Notice>>,
    /// A hint that saves the lock of the notice.
    noticed: AtomicBool,
}

/// The bit of `sent` that says that the rest of it means something.
const SENT: u64 = 1 << 32;

/// What a connection has to know beyond the packets that arrive for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// It ends with this error, whatever its stage.
    End(LlpError),
    /// It ends with this error unless it stands already.
    EndHandshake(LlpError),
}

/// What makes an inbox full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Packets from which on senders hold back. Somewhat above twice that, what still comes is dropped.
    pub(crate) packets: usize,
    /// Bytes beyond which what comes is dropped. From half of that on, senders hold back.
    pub(crate) octets: usize,
}

impl Bounds {
    fn are_reached(&self, packets: usize, octets: usize) -> bool {
        packets >= self.packets || octets >= self.octets / 2
    }

    fn has_room(&self, packets: usize, octets: usize) -> bool {
        let most = self.packets.saturating_mul(2).saturating_add(ANSWERS);
        packets < most && octets <= self.octets
    }
}

struct Queue {
    packets: VecDeque<Packet>,
    /// The bytes of their buffers.
    octets: usize,
    /// Raised as well, while a listener drives the connection through its handshake.
    parent: Option<Arc<Signal>>,
    /// Whom to tell when there is room again.
    held_back: Option<Arc<Mailbox>>,
    /// The owner looks here in a moment, without being told.
    attended: bool,
    closed: bool,
}

impl Mailbox {
    /// With these bounds; `parent` is the signal of the listener it begins at.
    pub(crate) fn new(
        bounds: Bounds,
        pool: Arc<Pool>,
        parent: Option<Arc<Signal>>,
    ) -> Result<Self, LlpError> {
        let queue = Queue {
            packets: VecDeque::new(),
            octets: 0,
            parent,
            held_back: None,
            attended: false,
            closed: false,
        };
        Ok(Self {
            queue: Mutex::new(queue),
            waiting: AtomicUsize::new(0),
            octets: AtomicUsize::new(0),
            bounds,
            pool,
            signal: Signal::new()?,
            path_mtu: AtomicUsize::new(usize::MAX),
            sent: AtomicU64::new(0),
            notice: Mutex::default(),
            noticed: AtomicBool::new(false),
        })
    }

    /// One that is nobody's.
    #[cfg(test)]
    pub(crate) fn alone() -> Result<Self, LlpError> {
        let bounds = Bounds {
            packets: 1,
            octets: usize::MAX,
        };
        Self::new(bounds, Arc::new(Pool::new(64)), None)
    }

    /// Leaves word for the connection and raises its signal. What ends it in any stage counts for
    /// more than what does so in one.
    pub(crate) fn notify(&self, notice: Notice) {
        {
            let mut slot = self.notice.lock();
            if !matches!(*slot, Some(Notice::End(_))) {
                *slot = Some(notice);
            }
            self.noticed.store(true, Ordering::Release);
        }
        self.raise();
    }

    /// The word that was left, if any.
    pub(crate) fn take_notice(&self) -> Option<Notice> {
        if !self.noticed.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.notice.lock().take()
    }

    /// Notes that the path takes no longer packets than this; gives whether that is news.
    pub(crate) fn limit_mtu(&self, mtu: usize) -> bool {
        let news = self.path_mtu.fetch_min(mtu, Ordering::AcqRel) > mtu;
        if news {
            self.raise();
        }
        news
    }

    /// Whether packets wait, or a notice.
    pub(crate) fn has_news(&self) -> bool {
        self.has_packets() || self.noticed.load(Ordering::Acquire)
    }

    /// Notes that bytes up to the sequence number `end` were sent.
    pub(crate) fn note_sent(&self, end: u32) {
        // Only the owner of the connection writes here.
        let before = self.sent.load(Ordering::Relaxed);
        let newer = u32::try_from(before & !SENT)
            .is_ok_and(|sent| end.wrapping_sub(sent) < 1 << 31 || before & SENT == 0);
        if newer {
            self.sent.store(SENT | u64::from(end), Ordering::Release);
        }
    }

    /// Whether `seq` may be that of a segment that is under way, when at most `window` bytes are:
    /// what somebody who does not see the connection could only guess (RFC 5927 section 4.1).
    pub(crate) fn is_under_way(&self, seq: u32, window: usize) -> bool {
        let sent = self.sent.load(Ordering::Acquire);
        let back = u32::try_from(sent & !SENT).map(|end| end.wrapping_sub(seq));
        sent & SENT != 0
            && back.is_ok_and(|back| {
                back > 0 && usize::try_from(back).is_ok_and(|back| back <= window)
            })
    }

    /// Puts a packet in, or drops it when the inbox is full, as a link does with what it cannot
    /// hold. Gives it back when the connection is gone: somebody else may want it.
    pub(crate) fn deliver(&self, packet: Packet) -> Result<(), Packet> {
        let (parent, attended) = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(packet);
            }
            let octets = queue.octets.saturating_add(packet.capacity());
            if !self.bounds.has_room(queue.packets.len(), octets) {
                drop(queue);
                tracing::debug!(bounds = ?self.bounds, "inbox full, packet dropped");
                self.pool.give_one(packet);
                return Ok(());
            }
            queue.packets.push_back(packet);
            queue.octets = octets;
            self.octets.store(octets, Ordering::Relaxed);
            self.waiting.store(queue.packets.len(), Ordering::Release);
            (queue.parent.clone(), queue.attended)
        };
        if !attended {
            self.signal.raise();
        }
        if let Some(parent) = parent {
            parent.raise();
        }
        Ok(())
    }

    /// Runs `poll`, during which packets come without a signal: the owner, who calls this, has to look for them then.
    pub(crate) fn attend(&self, poll: impl FnOnce()) {
        self.queue.lock().attended = true;
        poll();
        self.queue.lock().attended = false;
    }

    /// Whether a sender has to hold its packets back. If so, the signal of `sender` is raised when
    /// there is room again.
    pub(crate) fn is_full(&self, sender: &Arc<Mailbox>) -> bool {
        let waiting = self.waiting.load(Ordering::Acquire);
        let octets = self.octets.load(Ordering::Relaxed);
        if !self.bounds.are_reached(waiting, octets) {
            return false;
        }
        let mut queue = self.queue.lock();
        let full = self.bounds.are_reached(queue.packets.len(), queue.octets) && !queue.closed;
        if full {
            queue.held_back = Some(Arc::clone(sender));
        }
        full
    }

    /// Whether packets wait.
    pub(crate) fn has_packets(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// Takes all packets, by exchanging the queue for an empty one.
    pub(crate) fn take(&self, empty: &mut VecDeque<Packet>) {
        debug_assert!(empty.is_empty());
        let held_back = {
            let mut queue = self.queue.lock();
            mem::swap(&mut queue.packets, empty);
            queue.octets = 0;
            self.octets.store(0, Ordering::Relaxed);
            self.waiting.store(0, Ordering::Release);
            queue.held_back.take()
        };
        if let Some(sender) = held_back {
            sender.raise();
        }
    }

    /// Raises the signals of those who drive the connection.
    pub(crate) fn raise(&self) {
        let parent = self.queue.lock().parent.clone();
        self.signal.raise();
        if let Some(parent) = parent {
            parent.raise();
        }
    }

    /// From now on only the connection's own signal counts; it is raised, so that the new owner
    /// looks at what the listener's driving has brought already.
    pub(crate) fn leave_listener(&self) {
        self.queue.lock().parent = None;
        self.signal.raise();
    }

    /// Takes no more packets, and gives those that wait.
    pub(crate) fn close(&self) -> VecDeque<Packet> {
        let (left, held_back) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            queue.parent = None;
            queue.octets = 0;
            self.octets.store(0, Ordering::Relaxed);
            self.waiting.store(0, Ordering::Release);
            (mem::take(&mut queue.packets), queue.held_back.take())
        };
        if let Some(sender) = held_back {
            sender.raise();
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

    fn bounded(packets: usize, octets: usize) -> Mailbox {
        let bounds = Bounds { packets, octets };
        Mailbox::new(bounds, Arc::new(Pool::new(64)), None).unwrap()
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
            taken.iter().map(|p| p.octets()[0]).collect::<Vec<_>>(),
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
    fn an_inbox_holds_no_more_octets_of_buffers_than_its_bound() {
        let (mailbox, sender) = (bounded(1000, 300_000), Arc::new(mailbox(1)));
        let short = || {
            // Few bytes in a large buffer count as the buffer does.
            let mut packet = Packet::new(65_536);
            packet.resize(40);
            packet
        };
        let full: Vec<bool> = (0..100)
            .map(|_| {
                assert!(mailbox.deliver(short()).is_ok());
                mailbox.is_full(&sender)
            })
            .collect();
        assert_eq!(full[..4], [false, false, true, true]);
        let mut taken = VecDeque::new();
        mailbox.take(&mut taken);
        assert_eq!(taken.len(), 4);
        assert!(sender.signal.is_raised() && !mailbox.is_full(&sender));
        assert!(mailbox.deliver(short()).is_ok() && mailbox.has_packets());
    }

    #[test]
    fn a_sender_that_was_held_back_is_told_when_there_is_room() {
        let (full, sender) = (mailbox(1), Arc::new(mailbox(1)));
        assert!(!full.is_full(&sender));
        assert!(full.deliver(numbered(1)).is_ok());
        assert!(full.is_full(&sender));
        assert!(!sender.signal.is_raised());
        full.take(&mut VecDeque::new());
        assert!(sender.signal.is_raised());
        assert!(!full.is_full(&sender));
    }

    #[test]
    fn a_sender_that_was_held_back_is_told_when_the_inbox_closes() {
        let (full, sender) = (mailbox(1), Arc::new(mailbox(1)));
        assert!(full.deliver(numbered(1)).is_ok());
        assert!(full.is_full(&sender));
        full.close();
        assert!(sender.signal.is_raised());
        assert!(!full.is_full(&sender));
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
            mailbox.deliver(numbered(7)).err().map(|p| p.octets()[0]),
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
        assert!(!mailbox.is_under_way(0, 100));
        mailbox.note_sent(u32::MAX - 9);
        mailbox.note_sent(40);
        mailbox.note_sent(u32::MAX - 20);
        assert!(mailbox.is_under_way(39, 100));
        assert!(mailbox.is_under_way(u32::MAX - 49, 100));
        assert!(!mailbox.is_under_way(40, 100));
        assert!(!mailbox.is_under_way(u32::MAX - 70, 100));
    }
}
