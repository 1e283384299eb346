//! Places for the clients that a server serves at once, each on a thread of its own.
//!
//! A client that is silent must not hold its place for ever:
//!
//! * In the middle of a ping, and before the first one, the server waits for [`Limits::silence`].
//! * Between two pings a pause is legal and has no limit. But if all places are taken, the client
//!   that has paused longest, and for longer than [`Limits::silence`], gives way to a new one.
//! * One address cannot take all places. If all are taken, and a new client's address has fewer by
//!   at least two than the address with the most, one of those gives way: the one for which the
//!   server has waited longest.
//!
//! The same clients give way if memory is too short for a new one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use uwarp_verbs::Qp;

/// Maximum time to wait until the thread of a client that gives way has ended. It ends at once,
/// unless the machine is overloaded.
pub(crate) const LEAVE: Duration = Duration::from_secs(1);

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of clients at a time. Further clients are rejected. Default: 256.
    pub max: usize,
    /// Time that a client may take for each step of a ping. `None`: any time, and no client gives
    /// way. Default: 30 s.
    pub silence: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max: 256,
            silence: Some(Duration::from_secs(30)),
        }
    }
}

impl Limits {
    /// Sets the maximum number of clients.
    #[must_use]
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    /// Sets the time that a client may take for each step of a ping.
    #[must_use]
    pub fn silence(mut self, silence: Option<Duration>) -> Self {
        self.silence = silence;
        self
    }
}

/// Wait of a server for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The client must do the next step of a ping, or begin its first one.
    Due,
    /// The client may begin another ping.
    BetweenPings,
}

/// All places of a server are taken. Its text is the private data of the rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    max: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server already serves {} at once, its limit",
            self.max
        )
    }
}

/// The places of a server.
#[derive(Debug)]
pub struct Clients {
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    limits: Limits,
    places: Mutex<Places>,
    /// Notified when a place becomes free.
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Place>,
}

#[derive(Debug)]
struct Place {
    from: IpAddr,
    qp: Option<Arc<Qp>>,
    /// Time at which the server began to wait for this client.
    since: Instant,
    /// The wait is a pause between two pings.
    is_pause: bool,
    gives_way: bool,
}

impl Places {
    /// Makes a client give way to a new one from this address. Returns its number, and its QP if it
    /// has one.
    fn leaver(&mut self, from: IpAddr, silence: Duration) -> Option<(u64, Option<Arc<Qp>>)> {
        let crowd = self.crowd(from);
        let may_leave = |(_, place): &(&u64, &mut Place)| {
            place.is_pause && place.since.elapsed() >= silence || crowd == Some(place.from)
        };
        let places = self.taken.iter_mut().filter(may_leave);
        let (id, place) = places.min_by_key(|(_, place)| place.since)?;
        place.gives_way = true;
        Some((*id, place.qp.clone()))
    }

    /// Returns the address with the most places, if it has at least two more than this one.
    fn crowd(&self, from: IpAddr) -> Option<IpAddr> {
        let mut counts = HashMap::from([(from, 0)]);
        for place in self.taken.values() {
            *counts.entry(place.from).or_insert(0) += 1;
        }
        let own = counts[&from];
        let (most, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        (count >= own + 2).then_some(most)
    }
}

impl Clients {
    /// Creates a table without clients.
    #[must_use]
    pub fn new(limits: Limits) -> Clients {
        Clients {
            table: Arc::new(Table {
                limits,
                places: Mutex::default(),
                freed: Condvar::new(),
            }),
        }
    }

    /// Takes a place for a new client from this address. If all are taken, a client that has paused
    /// for too long, or one of an address with many, is disconnected. The call then waits until its
    /// thread has given its place back.
    ///
    /// # Errors
    /// [`Full`] if no client gives way.
    pub fn admit(&self, from: IpAddr) -> Result<Seat, Full> {
        let from = from.to_canonical();
        let max = self.table.limits.max;
        let mut places = self.table.places.lock();
        if places.taken.len() >= max {
            self.dismiss(&mut places, from);
            if places.taken.len() >= max {
                return Err(Full { max });
            }
        }
        let id = places.next;
        places.next += 1;
        let place = Place {
            from,
            qp: None,
            since: Instant::now(),
            is_pause: false,
            gives_way: false,
        };
        places.taken.insert(id, place);
        Ok(Seat {
            id,
            table: Arc::clone(&self.table),
        })
    }

    /// Disconnects the client that [`Clients::admit`] would disconnect if all places were taken,
    /// because a new client from this address needs its memory. Waits until its thread has given
    /// its place back. Returns false if no client gives way.
    #[must_use]
    pub fn make_way(&self, from: IpAddr) -> bool {
        let mut places = self.table.places.lock();
        self.dismiss(&mut places, from.to_canonical())
    }

    fn dismiss(&self, places: &mut MutexGuard<'_, Places>, from: IpAddr) -> bool {
        // A client that gave way before is asked again if its thread has not ended yet.
        let silence = self.table.limits.silence;
        let Some((id, qp)) = silence.and_then(|limit| places.leaver(from, limit)) else {
            return false;
        };
        // Ends the wait of its thread.
        if let Some(qp) = qp {
            MutexGuard::unlocked(places, || qp.abort());
        }
        let stays = |places: &mut Places| places.taken.contains_key(&id);
        let waited = self.table.freed.wait_while_for(places, stays, LEAVE);
        !waited.timed_out()
    }
}

/// Place of one client. Dropping it gives the place back.
#[derive(Debug)]
pub struct Seat {
    id: u64,
    table: Arc<Table>,
}

impl Seat {
    fn with<R>(&self, act: impl FnOnce(&mut Place) -> R) -> Option<R> {
        self.table.places.lock().taken.get_mut(&self.id).map(act)
    }

    /// Sets the QP of the client. It is aborted when the client gives way.
    pub fn attach(&self, qp: &Arc<Qp>) {
        self.with(|place| place.qp = Some(Arc::clone(qp)));
    }

    /// Records that the server begins to wait for its client. Returns the limit of the wait.
    #[must_use]
    pub fn begin_wait(&self, turn: Turn) -> Option<Duration> {
        let is_pause = turn == Turn::BetweenPings;
        self.with(|place| {
            place.since = Instant::now();
            place.is_pause = is_pause;
        });
        self.table.limits.silence.filter(|_| !is_pause)
    }

    /// Returns true if the client gives its place to a new one.
    #[must_use]
    pub fn gives_way(&self) -> bool {
        self.with(|place| place.gives_way).unwrap_or_default()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let place = self.table.places.lock().taken.remove(&self.id);
        // The QP may be destroyed here, which must not happen with the lock held.
        drop(place);
        self.table.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(host: u8) -> IpAddr {
        [192, 0, 2, host].into()
    }

    #[test]
    fn a_dropped_seat_is_free_again() {
        let clients = Clients::new(Limits::default().max(2));
        let (first, _second) = (
            clients.admit(from(1)).unwrap(),
            clients.admit(from(1)).unwrap(),
        );
        let full = clients.admit(from(1)).unwrap_err();
        assert_eq!(
            full.to_string(),
            "the server already serves 2 at once, its limit"
        );
        drop(first);
        assert!(clients.admit(from(1)).is_ok());
    }

    #[test]
    fn only_a_client_between_two_pings_gives_way_and_the_one_that_paused_longest_first() {
        let limits = Limits::default().max(3).silence(Some(Duration::ZERO));
        let clients = Clients::new(limits);
        let seats = [(); 3].map(|()| clients.admit(from(1)).unwrap());
        assert_eq!(seats[0].begin_wait(Turn::Due), limits.silence);
        assert_eq!(seats[2].begin_wait(Turn::BetweenPings), None);
        assert_eq!(seats[1].begin_wait(Turn::BetweenPings), None);
        let [first, second, third] = seats;
        let newcomer = std::thread::scope(|scope| {
            let newcomer = scope.spawn(|| clients.admit(from(1)));
            while !third.gives_way() {
                std::thread::yield_now();
            }
            drop(third);
            newcomer.join().unwrap()
        });
        assert!(newcomer.is_ok());
        assert!(!first.gives_way() && !second.gives_way());
    }

    #[test]
    fn a_client_gives_way_to_one_that_needs_its_memory_while_places_are_free() {
        let clients = Clients::new(Limits::default());
        let seats = [1, 1, 1].map(|host| clients.admit(from(host)).unwrap());
        assert!(!clients.make_way(from(1)), "it has the most itself");
        let [first, second, third] = seats;
        let has_left = std::thread::scope(|scope| {
            let newcomer = scope.spawn(|| clients.make_way(from(2)));
            while !first.gives_way() {
                std::thread::yield_now();
            }
            drop(first);
            newcomer.join().unwrap()
        });
        assert!(has_left && !second.gives_way() && !third.gives_way());
    }

    #[test]
    fn without_a_limit_nobody_gives_way() {
        let clients = Clients::new(Limits::default().max(1).silence(None));
        let seat = clients.admit(from(1)).unwrap();
        assert_eq!(seat.begin_wait(Turn::Due), None);
        assert_eq!(seat.begin_wait(Turn::BetweenPings), None);
        assert!(clients.admit(from(1)).is_err());
        assert!(!seat.gives_way());
    }

    #[test]
    fn one_address_cannot_take_all_places() {
        let clients = Clients::new(Limits::default().max(3));
        let [first, second, third] = [1, 1, 1].map(|host| clients.admit(from(host)).unwrap());
        assert!(clients.admit(from(1)).is_err(), "it has the most itself");
        // The server has waited longest for the second one.
        let _ = (first.begin_wait(Turn::Due), third.begin_wait(Turn::Due));
        let newcomer = std::thread::scope(|scope| {
            let newcomer = scope.spawn(|| clients.admit(from(2)));
            while !second.gives_way() {
                std::thread::yield_now();
            }
            drop(second);
            newcomer.join().unwrap()
        });
        assert!(newcomer.is_ok());
        assert!(!first.gives_way() && !third.gives_way());
        assert!(clients.admit(from(2)).is_err(), "two against one is even");
    }
}
