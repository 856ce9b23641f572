//! Balance of connections: a new one goes to the worker with the fewest open connections.
//!
//! The kernel distributes connections by a hash, which is even only for many connections. A proxy in front has a handful
//! of long-lived ones. A worker that accepts a connection while another has fewer therefore hands it over to that worker
//! (Envoy: exact connection balance). Only new connections move.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::clock::Stopwatch;

/// Maximum hand-overs of a worker within [`WINDOW`]. A hand-over wakes another thread. Where clients open thousands of
/// connections a second, none of them lives long enough to pay for that, and the kernel's hash is even.
const MAX_HANDOVERS: u32 = 64;
const WINDOW: Duration = Duration::from_secs(1);

/// Maximum connections that wait for a worker to take them.
const MAX_QUEUED: usize = 64;

/// One worker's part of the balance; `C` is a connection that no worker serves yet.
#[derive(Debug)]
pub struct BalanceMember<C> {
    /// Chooses the workers of connections that this worker accepts.
    pub balancer: ConnectionBalancer<C>,
    /// Connections that other workers have accepted for this worker.
    pub incoming: IncomingConnections<C>,
}

/// Chooses the workers of connections that one worker accepts.
#[derive(Debug)]
pub struct ConnectionBalancer<C> {
    workers: Arc<[BalancedWorker<C>]>,
    /// Index of the accepting worker.
    own: usize,
    budget: HandoverBudget,
}

/// Connections that other workers have accepted for one worker.
#[derive(Debug)]
pub struct IncomingConnections<C>(mpsc::Receiver<PlacedConnection<C>>);

/// A connection and its place among those of the worker that is to serve it.
#[derive(Debug)]
pub struct PlacedConnection<C> {
    pub connection: C,
    /// To be kept while the connection is open.
    pub place: ConnectionPlace,
}

/// One of a worker's open connections; dropping it ends the count.
#[derive(Debug)]
pub struct ConnectionPlace(Arc<WorkerConnectionCount>);

#[derive(Debug)]
struct BalancedWorker<C> {
    open: Arc<WorkerConnectionCount>,
    queue: mpsc::Sender<PlacedConnection<C>>,
}

/// Number of a worker's open connections, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct WorkerConnectionCount(AtomicUsize);

/// Returns the parts of `workers` workers that balance their connections among themselves.
pub fn members<C>(workers: usize) -> Vec<BalanceMember<C>> {
    let (queues, incoming): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(MAX_QUEUED)).unzip();
    let workers: Arc<[_]> =
        queues.into_iter().map(|queue| BalancedWorker { open: Arc::default(), queue }).collect();
    let member = |(own, incoming)| BalanceMember {
        balancer: ConnectionBalancer {
            workers: Arc::clone(&workers),
            own,
            budget: HandoverBudget::default(),
        },
        incoming: IncomingConnections(incoming),
    };
    incoming.into_iter().enumerate().map(member).collect()
}

/// The place of an accepted connection.
#[derive(Debug)]
pub enum ReservedPlace<'a, C> {
    /// With the worker that has accepted it.
    Own(ConnectionPlace),
    /// With another worker.
    Other(Handover<'a, C>),
}

/// A connection that has a place with another worker and is still to be sent.
#[derive(Debug)]
pub struct Handover<'a, C> {
    balancer: &'a ConnectionBalancer<C>,
    to: &'a BalancedWorker<C>,
    place: ConnectionPlace,
}

impl<C> ConnectionBalancer<C> {
    /// Counts an accepted connection for the worker with the fewest open ones: this one, or the other that it is to be
    /// sent to.
    ///
    /// The count must still be the one that was found to be the least. Two workers that accept at the same time thus
    /// cannot take the same place, and as long as no connection closes, counts differ by at most one.
    pub fn reserve(&self) -> ReservedPlace<'_, C> {
        loop {
            let own = &self.workers[self.own];
            let least = self.least();
            let is_own = std::ptr::eq(least.worker, own);
            if !is_own && !self.budget.has_left() {
                return ReservedPlace::Own(own.open.add());
            }
            let Some(place) = least.worker.open.add_to(least.count) else { continue };
            if is_own {
                return ReservedPlace::Own(place);
            }
            self.budget.spend();
            return ReservedPlace::Other(Handover { balancer: self, to: least.worker, place });
        }
    }

    /// Returns the worker with the fewest connections: this one, if no other has fewer.
    fn least(&self) -> LeastLoaded<'_, C> {
        let own = LeastLoaded::from(&self.workers[self.own]);
        let others = self.workers.iter().map(LeastLoaded::from);
        others.fold(own, |least, other| if other.count < least.count { other } else { least })
    }
}

impl<C> Handover<'_, C> {
    /// Sends the connection. Returns it if the other worker cannot take it, with a place at this one.
    pub fn send(self, connection: C) -> Option<PlacedConnection<C>> {
        let Self { balancer, to, place } = self;
        // The queue is full, or closed because the other worker drains.
        let unsent = to.queue.try_send(PlacedConnection { connection, place }).err()?.into_inner();
        let place = balancer.workers[balancer.own].open.add();
        Some(PlacedConnection { connection: unsent.connection, place })
    }
}

/// A worker and the number of its open connections.
#[derive(Debug)]
struct LeastLoaded<'a, C> {
    worker: &'a BalancedWorker<C>,
    count: usize,
}

impl<'a, C> From<&'a BalancedWorker<C>> for LeastLoaded<'a, C> {
    fn from(worker: &'a BalancedWorker<C>) -> Self {
        Self { worker, count: worker.open.count() }
    }
}

impl WorkerConnectionCount {
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn add(self: &Arc<Self>) -> ConnectionPlace {
        self.0.fetch_add(1, Ordering::Relaxed);
        ConnectionPlace(Arc::clone(self))
    }

    /// Adds one if the count is `expected`.
    fn add_to(self: &Arc<Self>, expected: usize) -> Option<ConnectionPlace> {
        let added = self.0.compare_exchange(expected, expected + 1, Ordering::Relaxed, Ordering::Relaxed);
        added.is_ok().then(|| ConnectionPlace(Arc::clone(self)))
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C> IncomingConnections<C> {
    /// Passes the connections to `handle` until `stop` completes, and then those that are still queued. From then on,
    /// the other workers keep theirs.
    pub async fn serve(
        mut self,
        stop: impl Future<Output = ()>,
        mut handle: impl FnMut(PlacedConnection<C>),
    ) {
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                received = self.0.recv() => match received {
                    Some(placed) => handle(placed),
                    None => return,
                },
            }
        }
        self.0.close();
        // Completes when no other worker is in the middle of sending.
        while let Some(placed) = self.0.recv().await {
            handle(placed);
        }
    }
}

/// Number of hand-overs that are left in the current window.
#[derive(Debug)]
struct HandoverBudget {
    left: Cell<u32>,
    window: Cell<Stopwatch>,
}

impl Default for HandoverBudget {
    fn default() -> Self {
        Self { left: Cell::new(MAX_HANDOVERS), window: Cell::new(Stopwatch::start()) }
    }
}

impl HandoverBudget {
    /// Whether a hand-over is left; begins the next window if it is due.
    fn has_left(&self) -> bool {
        self.left.get() > 0 || self.renew(self.window.get().elapsed())
    }

    /// Begins the next window if the current one has lasted for `elapsed`.
    fn renew(&self, elapsed: Duration) -> bool {
        let is_due = elapsed >= WINDOW;
        if is_due {
            self.left.set(MAX_HANDOVERS);
            self.window.set(Stopwatch::start());
        }
        is_due
    }

    /// Uses one. The first use of a window begins it, so that a quiet time before does not allow two windows at once.
    fn spend(&self) {
        if self.left.get() == MAX_HANDOVERS {
            self.window.set(Stopwatch::start());
        }
        self.left.set(self.left.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
