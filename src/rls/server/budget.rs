//! Maximum number of the listener's connections, apart from those of the proxy.
//!
//! At the maximum, a new connection displaces another: the oldest one without any call, or else the one whose last call
//! is the oldest. So idle connections do not keep others out.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Maximum connections that are being closed, in addition to the maximum of the listener.
const MAX_ENDING: usize = 64;

/// All connections of the listener.
#[derive(Debug)]
pub(super) struct Budget {
    max: usize,
    /// Number of accepted connections; it also serves as a clock for the last calls.
    arrivals: AtomicU64,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Connections by arrival number, with the rank that each has in `order`.
    connections: HashMap<u64, (Rank, Arc<Connection>)>,
    /// Connections that are not being closed, by a past rank; ranks only increase.
    order: BTreeSet<(Rank, u64)>,
}

/// Whether a connection has made a call, and the arrival number at its last call or its start. The lowest is displaced.
type Rank = (bool, u64);

/// One connection.
#[derive(Debug)]
struct Connection {
    has_called: AtomicBool,
    last_call: AtomicU64,
    displaced: Notify,
}

/// Permit of a connection, returned on drop.
#[derive(Debug)]
pub(super) struct Place {
    arrival: u64,
    activity: Activity,
}

/// Records the calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct Activity {
    budget: Arc<Budget>,
    connection: Arc<Connection>,
}

impl Budget {
    /// Creates a budget of `max` connections.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max: max.max(1), arrivals: AtomicU64::new(0), open: Mutex::default() })
    }

    /// Returns a permit for another connection; `None` if too many are being closed.
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
    /// Closes the connection with the lowest rank; returns false if too many are being closed.
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
    /// Records a call, or a message on a stream. Only the connection's thread writes, so this is two stores.
    pub(super) fn called(&self) {
        let Self { budget, connection } = self;
        connection.last_call.store(budget.arrivals.load(Ordering::Relaxed), Ordering::Relaxed);
        connection.has_called.store(true, Ordering::Relaxed);
    }
}

impl Place {
    /// Returns the recorder of calls.
    pub(super) const fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Returns whether the connection has made a call.
    pub(super) fn has_called(&self) -> bool {
        self.activity.connection.has_called.load(Ordering::Relaxed)
    }

    /// Completes when the connection must be closed for another one.
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
        assert_eq!([&second, &fourth, &sixth].map(is_ending), [false, false, false], "below the maximum");
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
