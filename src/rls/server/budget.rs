//! How many connections the port has at once, apart from those of the proxy.
//!
//! Where there are as many as may be, the newest takes the place of another: first of the oldest that has never made a
//! call, then of the one whose last call was the longest ago. So connections that say nothing keep nobody out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Connections that have been told to end, and have not yet: the port has so many more for a moment at most.
const MAX_ENDING: usize = 64;

/// All connections of the port.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    /// Connections so far: the order in which they came, and a clock for which of them called last.
    arrivals: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By arrival, with the rank under which each is in `order`.
    connections: HashMap<u64, (Rank, Arc<Connection>)>,
    /// Those that stay, by a rank that they had once: ranks only rise.
    order: BTreeSet<(Rank, u64)>,
}

/// Whether a connection has ever called, and how many had arrived when it called last, or came. The lowest gives way.
type Rank = (bool, u64);

/// One connection.
#[derive(Debug)]
struct Connection {
    has_called: AtomicBool,
    last_call: AtomicU64,
    displaced: Notify,
}

/// The place of a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    arrival: u64,
    activity: Activity,
}

/// Where a connection notes its calls.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    budget: Arc<Budget>,
    connection: Arc<Connection>,
}

impl Budget {
    /// For `max` connections.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), arrivals: AtomicU64::new(0), open: Mutex::default() })
    }

    /// A place for one more connection; `None` where as many are ending as may.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        let mut open = self.open.lock();
        if open.order.len() >= self.max && !open.displace_one() {
            return None;
        }
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            has_called: AtomicBool::new(false),
            last_call: AtomicU64::new(arrival),
            displaced: Notify::new(),
        });
        let rank = connection.rank();
        open.connections.insert(arrival, (rank, Arc::clone(&connection)));
        open.order.insert((rank, arrival));
        drop(open);
        Some(Place { arrival, activity: Activity { budget: Arc::clone(self), connection } })
    }
}

impl Open {
    /// Tells the connection of the lowest rank to end; whether one more may be ending.
    fn displace_one(&mut self) -> bool {
        if self.connections.len() - self.order.len() >= MAX_ENDING {
            return false;
        }
        while let Some((rank, arrival)) = self.order.pop_first() {
            let Some((known, connection)) = self.connections.get_mut(&arrival) else { continue };
            let now = connection.rank();
            if now == rank {
                connection.displaced.notify_one();
                return true;
            }
            *known = now;
            self.order.insert((now, arrival));
        }
        false
    }
}

impl Connection {
    fn rank(&self) -> Rank {
        (self.has_called.load(Ordering::Relaxed), self.last_call.load(Ordering::Relaxed))
    }
}

impl Activity {
    /// The connection has made a call, or sent a message on a stream. Only its own thread writes, so this is two stores.
    pub(super) fn called(&self) {
        let Self { budget, connection } = self;
        connection.last_call.store(budget.arrivals.load(Ordering::Relaxed), Ordering::Relaxed);
        connection.has_called.store(true, Ordering::Relaxed);
    }
}

impl Place {
    /// Where the connection notes its calls.
    pub(super) const fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Whether the connection has ever made a call.
    pub(super) fn has_called(&self) -> bool {
        self.activity.connection.has_called.load(Ordering::Relaxed)
    }

    /// Ends when the connection has to give way.
    pub(super) async fn displaced(&self) {
        self.activity.connection.displaced.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.activity.budget.open.lock();
        if let Some((rank, _)) = open.connections.remove(&self.arrival) {
            open.order.remove(&(rank, self.arrival));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ending(place: &Place) -> bool {
        !place.activity.budget.open.lock().order.iter().any(|(_, arrival)| *arrival == place.arrival)
    }

    #[test]
    fn the_oldest_connection_without_a_call_gives_way_and_then_the_one_that_called_least_recently() {
        let budget = Budget::new(3);
        let [first, second, third] = std::array::from_fn(|_| budget.enter().unwrap());
        second.activity.called();
        third.activity.called();
        let fourth = budget.enter().unwrap();
        assert_eq!([&first, &second, &third].map(is_ending), [true, false, false]);
        drop(first);
        second.activity.called();
        fourth.activity.called();
        let fifth = budget.enter().unwrap();
        assert_eq!([&second, &third, &fourth].map(is_ending), [false, true, false]);
        drop((third, fifth));
        let sixth = budget.enter().unwrap();
        assert_eq!([&second, &fourth, &sixth].map(is_ending), [false, false, false], "there was room");
    }

    #[test]
    fn no_more_are_ending_at_once_than_may_be() {
        let budget = Budget::new(1);
        let mut places: Vec<_> = (0..=MAX_ENDING).map(|_| budget.enter().unwrap()).collect();
        assert!(budget.enter().is_none());
        places.remove(0);
        assert!(budget.enter().is_some());
        drop(places);
        let open = budget.open.lock();
        assert_eq!((open.connections.len(), open.order.len()), (0, 0));
    }
}
