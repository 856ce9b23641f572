//! Overload protection: limits on concurrent connections and requests and on memory; load beyond them is shed.
//!
//! Counters only; a permit is released by dropping it. The counts are exact across workers: nothing is admitted beyond a
//! limit, and nothing is shed below it.

mod clients;

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use self::clients::Clients;

/// Hysteresis: memory has to fall by one part in so many of its limit before requests are admitted again.
const MEMORY_HYSTERESIS: u64 = 20;

/// The limits of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Downstream connections in all; `None` for half of the descriptors that the process may have.
    pub connections: Option<NonZeroUsize>,
    /// Connections of one client.
    pub connections_per_client: Option<NonZeroU32>,
    /// Requests in flight in all.
    pub requests: Option<NonZeroUsize>,
    /// Memory in use from which on requests are shed.
    pub memory: Option<Memory>,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// In bytes.
    Bytes(u64),
    /// In percent of what the container, or else the machine, has.
    Share(u8),
}

/// The limit by which a connection or a request was shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadShed {
    /// Connections in all.
    Connections,
    /// Connections of one client.
    Client,
    /// Requests in flight.
    Requests,
    /// Memory in use.
    Memory,
}

/// The state of the whole process.
#[derive(Debug)]
pub struct Overload {
    max_connections: usize,
    connections: PaddedCounter,
    clients: Option<Clients>,
    /// `None` where no request is ever shed: then none pays for it.
    requests: Option<Arc<Requests>>,
}

/// A counter on cache lines of its own: the fields beside it are only read.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicUsize);

/// The limits of requests.
#[derive(Debug)]
struct Requests {
    max: usize,
    in_flight: PaddedCounter,
    memory: Option<u64>,
    memory_is_short: AtomicBool,
}

/// A connection's permit.
#[derive(Debug)]
pub struct ConnectionPermit {
    overload: Arc<Overload>,
    client: Option<IpAddr>,
}

/// A request's permit.
#[derive(Debug)]
pub struct InFlightPermit(Arc<Requests>);

impl Overload {
    /// By `settings`, in a process that may have so many descriptors and so many bytes of memory.
    pub fn new(settings: &Settings, descriptors: usize, memory: u64) -> Self {
        // A connection takes one and its request upstream another; files and the admin port take a few.
        let half = (descriptors / 2).max(1);
        let memory = settings.memory.map(|max| match max {
            Memory::Bytes(bytes) => bytes,
            Memory::Share(percent) => memory / 100 * u64::from(percent),
        });
        let requests = (settings.requests.is_some() || memory.is_some()).then(|| Requests {
            max: settings.requests.map_or(usize::MAX, NonZeroUsize::get),
            in_flight: PaddedCounter::default(),
            memory,
            memory_is_short: AtomicBool::new(false),
        });
        Self {
            max_connections: settings.connections.map_or(half, NonZeroUsize::get),
            connections: PaddedCounter::default(),
            clients: settings.connections_per_client.map(Clients::new),
            requests: requests.map(Arc::new),
        }
    }

    /// Downstream connections that may be open in all.
    pub const fn max_connections(&self) -> usize {
        self.max_connections
    }

    /// A permit for a connection.
    ///
    /// # Errors
    /// That there is none left.
    pub fn acquire_connection(self: &Arc<Self>) -> Result<ConnectionPermit, LoadShed> {
        match self.connections.acquire(self.max_connections) {
            true => Ok(ConnectionPermit { overload: Arc::clone(self), client: None }),
            false => Err(LoadShed::Connections),
        }
    }

    /// A permit for a request; `None` where requests are not limited.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn acquire_request(&self) -> Result<Option<InFlightPermit>, LoadShed> {
        let Some(requests) = &self.requests else { return Ok(None) };
        if requests.memory_is_short.load(Ordering::Relaxed) {
            return Err(LoadShed::Memory);
        }
        match requests.in_flight.acquire(requests.max) {
            true => Ok(Some(InFlightPermit(Arc::clone(requests)))),
            false => Err(LoadShed::Requests),
        }
    }

    /// Whether memory in use is limited.
    pub fn limits_memory(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.memory.is_some())
    }

    /// Records the bytes in use. Whether memory has become short, or has ceased to be, if either.
    pub fn record_memory(&self, used: u64) -> Option<bool> {
        let requests = self.requests.as_ref()?;
        let max = requests.memory?;
        let was_short = requests.memory_is_short.load(Ordering::Relaxed);
        let bound = if was_short { max.saturating_sub(max / MEMORY_HYSTERESIS) } else { max };
        let is_short = used >= bound;
        requests.memory_is_short.store(is_short, Ordering::Relaxed);
        (is_short != was_short).then_some(is_short)
    }
}

impl ConnectionPermit {
    /// Counts the connection for `client`, once; whether the client may have another.
    pub fn count_client(&mut self, client: IpAddr) -> bool {
        match &self.overload.clients {
            Some(clients) if self.client.is_none() => {
                let is_admitted = clients.acquire(client);
                self.client = is_admitted.then_some(client);
                is_admitted
            }
            _ => true,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let (Some(clients), Some(client)) = (&self.overload.clients, self.client) {
            clients.release(client);
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
    /// Adds one, unless there are `max`. To add first and subtract again would shed what comes between the two.
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
