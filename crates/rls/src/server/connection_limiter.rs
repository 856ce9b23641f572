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
const MAX_CLOSING: usize = 64;

/// All connections of the listener.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    max_connections: usize,
    /// Number of accepted connections; it also serves as a clock for the last calls.
    arrivals: AtomicU64,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    /// Connections by arrival number, with the rank that each has in `by_rank`.
    connections: HashMap<u64, (ActivityRank, Arc<TrackedConnection>)>,
    /// Connections that are not being closed, by a past rank; ranks only increase.
    by_rank: BTreeSet<(ActivityRank, u64)>,
}

/// Whether a connection has made a call, and the arrival number at its last call or its start. The lowest is displaced.
type ActivityRank = (bool, u64);

/// One connection.
#[derive(Debug)]
struct TrackedConnection {
    has_called: AtomicBool,
    last_call: AtomicU64,
    displaced: Notify,
}

/// Permit of a connection, returned on drop.
#[derive(Debug)]
pub struct GrpcConnectionPermit {
    arrival: u64,
    activity: ConnectionActivity,
}

/// Records the calls of a connection.
#[derive(Clone, Debug)]
pub(super) struct ConnectionActivity {
    limiter: Arc<ConnectionLimiter>,
    connection: Arc<TrackedConnection>,
}

impl ConnectionLimiter {
    /// Creates a limiter for `max` connections.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max_connections: max.max(1), arrivals: AtomicU64::new(0), open: Mutex::default() })
    }

    /// Returns a permit for another connection; `None` if too many are being closed.
    pub(super) fn acquire(self: &Arc<Self>) -> Option<GrpcConnectionPermit> {
        let mut open = self.open.lock();
        if open.by_rank.len() >= self.max_connections && !open.displace_one() {
            return None;
        }
        let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(TrackedConnection {
            has_called: AtomicBool::new(false),
            last_call: AtomicU64::new(arrival),
            displaced: Notify::new(),
        });
        let rank = connection.rank();
        open.connections.insert(arrival, (rank, Arc::clone(&connection)));
        open.by_rank.insert((rank, arrival));
        drop(open);
        Some(GrpcConnectionPermit {
            arrival,
            activity: ConnectionActivity { limiter: Arc::clone(self), connection },
        })
    }
}

impl OpenConnections {
    /// Closes the connection with the lowest rank; returns false if too many are being closed.
    fn displace_one(&mut self) -> bool {
        if self.connections.len() - self.by_rank.len() >= MAX_CLOSING {
            return false;
        }
        while let Some((rank, arrival)) = self.by_rank.pop_first() {
            let Some((known, connection)) = self.connections.get_mut(&arrival) else { continue };
            let now = connection.rank();
            if now == rank {
                connection.displaced.notify_one();
                return true;
            }
            *known = now;
            self.by_rank.insert((now, arrival));
        }
        false
    }
}

impl TrackedConnection {
    fn rank(&self) -> ActivityRank {
        (self.has_called.load(Ordering::Relaxed), self.last_call.load(Ordering::Relaxed))
    }
}

impl ConnectionActivity {
    /// Records a call, or a message on a stream. Only the connection's thread writes, so this is two stores.
    pub(super) fn record_call(&self) {
        let Self { limiter, connection } = self;
        connection.last_call.store(limiter.arrivals.load(Ordering::Relaxed), Ordering::Relaxed);
        connection.has_called.store(true, Ordering::Relaxed);
    }
}

impl GrpcConnectionPermit {
    /// Returns the recorder of calls.
    pub(super) const fn activity(&self) -> &ConnectionActivity {
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

impl Drop for GrpcConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.activity.limiter.open.lock();
        if let Some((rank, _)) = open.connections.remove(&self.arrival) {
            open.by_rank.remove(&(rank, self.arrival));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_closing(permit: &GrpcConnectionPermit) -> bool {
        !permit.activity.limiter.open.lock().by_rank.iter().any(|(_, arrival)| *arrival == permit.arrival)
    }

    #[test]
    fn new_connection_displaces_the_oldest_without_a_call_then_the_least_recently_used() {
        let limiter = ConnectionLimiter::new(3);
        let [first, second, third] = std::array::from_fn(|_| limiter.acquire().unwrap());
        second.activity.record_call();
        third.activity.record_call();
        let fourth = limiter.acquire().unwrap();
        assert_eq!([&first, &second, &third].map(is_closing), [true, false, false]);
        drop(first);
        second.activity.record_call();
        fourth.activity.record_call();
        let fifth = limiter.acquire().unwrap();
        assert_eq!([&second, &third, &fourth].map(is_closing), [false, true, false]);
        drop((third, fifth));
        let sixth = limiter.acquire().unwrap();
        assert_eq!([&second, &fourth, &sixth].map(is_closing), [false, false, false], "below the maximum");
    }

    #[test]
    fn new_connection_is_rejected_while_too_many_are_closing() {
        let limiter = ConnectionLimiter::new(1);
        let mut permits: Vec<_> = (0..=MAX_CLOSING).map(|_| limiter.acquire().unwrap()).collect();
        assert!(limiter.acquire().is_none());
        permits.remove(0);
        assert!(limiter.acquire().is_some());
        drop(permits);
        let open = limiter.open.lock();
        assert_eq!((open.connections.len(), open.by_rank.len()), (0, 0));
    }
}
