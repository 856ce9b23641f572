//! Overload protection: limits on concurrent connections and requests and on memory; load beyond them is shed.
//!
//! Holds counters only; dropping a permit releases it. Counts are exact across workers: nothing is admitted above a
//! limit, and nothing is shed below it.

mod clients;

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use self::clients::ClientConnections;

/// Hysteresis: memory in use must fall by 1/20 of its limit before requests are admitted again.
const MEMORY_HYSTERESIS: u64 = 20;

/// Share of the container's memory from which on requests are shed by default, in percent.
pub const DEFAULT_MEMORY_PERCENT: u8 = 90;
/// Default budgets are this part of the memory, within the following bounds in bytes.
const BUDGET_SHARE: u64 = 8;
const MIN_BUDGET: usize = 8 * 1024 * 1024;
const MAX_BUDGET: usize = 64 * 1024 * 1024;

/// Maximum of a number that is not limited.
const UNLIMITED: usize = usize::MAX;

/// Limits of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverloadSettings {
    /// Maximum downstream connections; `None` means half of the file descriptors that the process may open.
    pub connections: Option<NonZeroUsize>,
    /// Maximum connections of one client.
    pub connections_per_client: Option<NonZeroU32>,
    /// Maximum requests in flight.
    pub requests: Option<NonZeroUsize>,
    /// Memory in use at which requests are shed.
    pub memory: MemoryLimit,
    /// Maximum bytes of responses that clients do not read; `None` for a share of the memory.
    pub unsent: Option<usize>,
    /// Maximum bytes of requests that wait for room in limits; `None` for a share of the memory.
    pub waiting: Option<usize>,
}

/// Memory that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// The limit of its control group, or else the memory of the machine, in bytes.
    pub bytes: u64,
    /// Whether it is a limit, beyond which the kernel ends the process.
    pub is_limit: bool,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// [`DEFAULT_MEMORY_PERCENT`] of the limit of the container, if it has one; otherwise unlimited.
    #[default]
    Auto,
    /// Unlimited.
    Off,
    Bytes(u64),
    /// Percentage of the memory of the container, or of the machine if the container has no limit.
    Percent(u8),
}

/// The limit because of which a connection or a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadShed {
    /// All downstream connections.
    Connections,
    /// Connections of one client.
    Client,
    /// Requests in flight.
    Requests,
    /// Memory in use.
    Memory,
    /// Responses that clients do not read.
    Unsent,
    /// Requests that wait for room in limits.
    Waiting,
}

/// Overload state of the whole process.
#[derive(Debug)]
pub struct OverloadManager {
    /// File descriptors that the process may open.
    descriptors: usize,
    available: AvailableMemory,
    max_connections: AtomicUsize,
    connections: PaddedCounter,
    clients: ClientConnections,
    requests: Arc<RequestLimits>,
    /// Notified when the settings change.
    changed: Notify,
}

/// Counter on cache lines of its own: the fields beside it are only read, and writes to it must not invalidate them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicUsize);

/// Limits of requests, and their current state.
#[derive(Debug, Default)]
struct RequestLimits {
    /// Maximum number in flight; [`UNLIMITED`] for none.
    max: AtomicUsize,
    in_flight: PaddedCounter,
    /// Bytes from which on requests are shed; the maximum for never.
    memory: AtomicU64,
    memory_is_short: AtomicBool,
}

impl AvailableMemory {
    /// Returns the bytes from which on requests are shed; `None` for never.
    fn shed_from(self, limit: MemoryLimit) -> Option<u64> {
        let percent = |percent: u8| self.bytes / 100 * u64::from(percent);
        match limit {
            MemoryLimit::Auto => self.is_limit.then(|| percent(DEFAULT_MEMORY_PERCENT)),
            MemoryLimit::Off => None,
            MemoryLimit::Bytes(bytes) => Some(bytes),
            MemoryLimit::Percent(share) => Some(percent(share)),
        }
    }

    /// Returns the default of a budget of memory that clients can make grow, in bytes.
    pub fn default_budget(self) -> usize {
        usize::try_from(self.bytes / BUDGET_SHARE).unwrap_or(usize::MAX).clamp(MIN_BUDGET, MAX_BUDGET)
    }
}

/// Permit for one connection; dropping it releases it.
#[derive(Debug)]
pub struct ConnectionPermit {
    overload: Arc<OverloadManager>,
    client: Option<IpAddr>,
}

/// Permit for one request in flight; dropping it releases it.
#[derive(Debug)]
pub struct InFlightPermit(Arc<RequestLimits>);

impl OverloadManager {
    /// Creates the state for a process that may open `descriptors` file descriptors and use `memory` bytes.
    pub fn new(settings: &OverloadSettings, descriptors: usize, memory: AvailableMemory) -> Self {
        let created = Self {
            descriptors,
            available: memory,
            max_connections: AtomicUsize::default(),
            connections: PaddedCounter::default(),
            clients: ClientConnections::default(),
            requests: Arc::default(),
            changed: Notify::new(),
        };
        created.apply(settings);
        created
    }

    /// Applies new settings. Connections and requests that were not counted before are not counted now, if they are counted
    /// for the first time.
    pub fn apply(&self, settings: &OverloadSettings) {
        // A connection takes one descriptor and its upstream request another. Files, the admin port and pipes take a few.
        let half = (self.descriptors / 2).max(1);
        let connections = settings.connections.map_or(half, NonZeroUsize::get);
        self.max_connections.store(connections, Ordering::Relaxed);
        self.clients.set_max(settings.connections_per_client);
        let requests = settings.requests.map_or(UNLIMITED, NonZeroUsize::get);
        self.requests.max.store(requests, Ordering::Relaxed);
        let memory = self.available.shed_from(settings.memory);
        self.requests.memory.store(memory.unwrap_or(u64::MAX), Ordering::Relaxed);
        if memory.is_none() {
            self.requests.memory_is_short.store(false, Ordering::Relaxed);
        }
        self.changed.notify_one();
    }

    /// Returns the maximum number of pipes for spliced bodies, which take two descriptors each: a sixteenth of all.
    pub const fn max_pipes(&self) -> usize {
        self.descriptors / 32
    }

    /// Returns the memory that the process may use.
    pub const fn available_memory(&self) -> AvailableMemory {
        self.available
    }

    /// Returns the maximum number of downstream connections.
    pub fn max_connections(&self) -> usize {
        self.max_connections.load(Ordering::Relaxed)
    }

    /// Waits until memory in use is limited.
    pub async fn until_memory_limited(&self) {
        while !self.limits_memory() {
            self.changed.notified().await;
        }
    }

    /// Acquires a permit for a connection.
    ///
    /// # Errors
    /// If the maximum number of connections is open.
    pub fn acquire_connection(self: &Arc<Self>) -> Result<ConnectionPermit, LoadShed> {
        match self.connections.acquire(self.max_connections()) {
            true => Ok(ConnectionPermit { overload: Arc::clone(self), client: None }),
            false => Err(LoadShed::Connections),
        }
    }

    /// Acquires a permit for a request; `None` if requests are not limited.
    ///
    /// # Errors
    /// The limit that has been reached.
    pub fn acquire_request(&self) -> Result<Option<InFlightPermit>, LoadShed> {
        let requests = &self.requests;
        if self.is_memory_short() {
            return Err(LoadShed::Memory);
        }
        match requests.max.load(Ordering::Relaxed) {
            // Not even counted, so that requests cost nothing in this case.
            UNLIMITED => Ok(None),
            max if requests.in_flight.acquire(max) => Ok(Some(InFlightPermit(Arc::clone(requests)))),
            _ => Err(LoadShed::Requests),
        }
    }

    /// Whether memory in use is limited.
    pub fn limits_memory(&self) -> bool {
        self.requests.memory.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether requests are shed because memory is short.
    pub fn is_memory_short(&self) -> bool {
        // The watcher may have found that just when the limit was removed.
        self.requests.memory_is_short.load(Ordering::Relaxed) && self.limits_memory()
    }

    /// Records the bytes of memory in use. Returns `Some(true)` if memory has become short, `Some(false)` if it no
    /// longer is, and `None` if nothing has changed.
    pub fn record_memory(&self, used: u64) -> Option<bool> {
        let requests = &self.requests;
        let max = requests.memory.load(Ordering::Relaxed);
        let was_short = requests.memory_is_short.load(Ordering::Relaxed);
        let bound = if was_short { max.saturating_sub(max / MEMORY_HYSTERESIS) } else { max };
        let is_short = used >= bound;
        requests.memory_is_short.store(is_short, Ordering::Relaxed);
        (is_short != was_short).then_some(is_short)
    }
}

impl ConnectionPermit {
    /// Counts the connection for `client` and returns whether the client may open it. Only the first successful call
    /// counts.
    pub fn count_client(&mut self, client: IpAddr) -> bool {
        let clients = &self.overload.clients;
        if self.client.is_some() || !clients.are_limited() {
            return true;
        }
        let is_admitted = clients.acquire(client);
        self.client = is_admitted.then_some(client);
        is_admitted
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.overload.clients.release(client);
        }
        self.overload.connections.release();
    }
}

impl Drop for InFlightPermit {
    fn drop(&mut self) {
        self.0.in_flight.release();
    }
}

impl PaddedCounter {
    /// Adds one unless the count is `max`. Adding first and subtracting again could shed a concurrent caller below the
    /// limit.
    fn acquire(&self, max: usize) -> bool {
        let add = |count: usize| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn release(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
