//! One worker's connections to the destinations of a forward proxy.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::destination::Destination;
use super::{ForwardProxy, MAX_DESTINATIONS, MAX_IDLE_CONNECTIONS};
use crate::Upstream;
use weir_telemetry::metrics::Metrics;

/// Time in seconds after its last request for which a destination without addresses is kept.
const FAILED_RETENTION: u64 = 5;

/// One worker's destinations, at most [`MAX_DESTINATIONS`].
#[derive(Debug)]
pub struct DestinationPool {
    proxy: Arc<ForwardProxy>,
    metrics: Arc<Metrics>,
    entries: RefCell<HashMap<Destination, PooledDestination>>,
    /// Seconds since the pool was created.
    seconds: Cell<u64>,
}

#[derive(Debug)]
struct PooledDestination {
    upstream: Rc<Upstream>,
    /// The second of the last request.
    used_at: u64,
}

impl DestinationPool {
    /// Creates a pool without destinations.
    pub fn new(proxy: &Arc<ForwardProxy>, metrics: &Arc<Metrics>) -> Self {
        Self {
            proxy: Arc::clone(proxy),
            metrics: Arc::clone(metrics),
            entries: RefCell::default(),
            seconds: Cell::new(0),
        }
    }

    pub fn proxy(&self) -> &Arc<ForwardProxy> {
        &self.proxy
    }

    /// Returns the connections to a destination. If it is new, its name is resolved on behalf of `client`.
    pub fn upstream(&self, destination: Destination, client: IpAddr) -> Rc<Upstream> {
        let (mut entries, now) = (self.entries.borrow_mut(), self.seconds.get());
        if let Some(known) = entries.get_mut(&destination) {
            known.used_at = now;
            return Rc::clone(&known.upstream);
        }
        if entries.len() >= MAX_DESTINATIONS {
            let oldest =
                entries.iter().min_by_key(|(_, entry)| entry.used_at).map(|(oldest, _)| oldest.clone());
            // Requests in flight keep their connections.
            oldest.map(|oldest| entries.remove(&oldest));
        }
        let cluster = self.proxy.cluster(&destination, client, &self.metrics);
        let upstream = Rc::new(Upstream::new(&cluster, &self.metrics));
        entries.insert(destination, PooledDestination { upstream: Rc::clone(&upstream), used_at: now });
        upstream
    }

    /// Whether there is no destination, so that time need not advance.
    pub fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// Advances the time by one tick.
    pub fn tick(&self) {
        self.entries.borrow().values().for_each(|entry| entry.upstream.tick());
        self.close_surplus();
    }

    /// Closes idle connections beyond [`MAX_IDLE_CONNECTIONS`], those of the destinations used least recently first.
    fn close_surplus(&self) {
        let entries = self.entries.borrow();
        let mut idle: usize = entries.values().map(|entry| entry.upstream.idle_connections()).sum();
        if idle <= MAX_IDLE_CONNECTIONS {
            return;
        }
        let mut oldest_first: Vec<&PooledDestination> = entries.values().collect();
        oldest_first.sort_unstable_by_key(|entry| entry.used_at);
        for PooledDestination { upstream, .. } in oldest_first {
            if idle <= MAX_IDLE_CONNECTIONS {
                return;
            }
            idle = idle.saturating_sub(upstream.idle_connections());
            upstream.close_unused();
        }
    }

    /// Advances the time by one second: drops destinations that have not been used for the idle timeout.
    pub fn tick_second(&self) {
        let now = self.seconds.get().saturating_add(1);
        self.seconds.set(now);
        let idle_timeout = self.proxy.settings().upstream.idle_timeout.as_secs().max(1);
        self.entries.borrow_mut().retain(|_, PooledDestination { upstream, used_at }| {
            let retention = if upstream.no_address().is_some() { FAILED_RETENTION } else { idle_timeout };
            upstream.tick_second();
            now.saturating_sub(*used_at) <= retention
        });
    }
}
