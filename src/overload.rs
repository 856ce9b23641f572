//! How much may be under way in all, and what is turned away before the process collapses.
//!
//! Numbers only, and whoever has a place gives it back by dropping it. What is counted is counted exactly, also where
//! several workers ask at once: nobody is let in beyond a bound, and nobody is turned away below it. What connections
//! and requests are, others know.

mod clients;

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use self::clients::Clients;

/// Memory has to fall by this share of its bound before requests are let in again, so that they are not let in and
/// turned away by turns.
const RELIEF: u64 = 20;

/// The bounds of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Connections of clients in all; `None` for half of the descriptors that the process may have.
    pub connections: Option<NonZeroUsize>,
    /// Connections of one client.
    pub connections_per_client: Option<NonZeroU32>,
    /// Requests under way in all.
    pub requests: Option<NonZeroUsize>,
    /// Memory from which on requests are turned away.
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

/// Why somebody is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are as many connections as may be.
    Connections,
    /// The client has as many as it may.
    Client,
    /// As many requests are under way as may be.
    Requests,
    /// Memory is short.
    Memory,
}

/// The state of the whole process.
#[derive(Debug)]
pub struct Overload {
    most_connections: usize,
    connections: Apart,
    clients: Option<Clients>,
    /// `None` where no request is ever turned away: then none pays for it.
    requests: Option<Arc<Requests>>,
}

/// A counter of its own cache lines: others are only read.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicUsize);

/// What requests are let in by.
#[derive(Debug)]
struct Requests {
    most: usize,
    under_way: Apart,
    memory: Option<u64>,
    memory_is_short: AtomicBool,
}

/// A connection's place.
#[derive(Debug)]
pub struct Place {
    overload: Arc<Overload>,
    client: Option<IpAddr>,
}

/// A request's place.
#[derive(Debug)]
pub struct Underway(Arc<Requests>);

impl Overload {
    /// By `settings`, in a process that may have so many descriptors and so many bytes of memory.
    pub fn new(settings: &Settings, descriptors: usize, memory: u64) -> Self {
        // A connection takes one and its request upstream another; files and the admin port take a few.
        let half = (descriptors / 2).max(1);
        let memory = settings.memory.map(|most| match most {
            Memory::Bytes(bytes) => bytes,
            Memory::Share(percent) => memory / 100 * u64::from(percent),
        });
        let requests = (settings.requests.is_some() || memory.is_some()).then(|| Requests {
            most: settings.requests.map_or(usize::MAX, NonZeroUsize::get),
            under_way: Apart::default(),
            memory,
            memory_is_short: AtomicBool::new(false),
        });
        Self {
            most_connections: settings.connections.map_or(half, NonZeroUsize::get),
            connections: Apart::default(),
            clients: settings.connections_per_client.map(Clients::new),
            requests: requests.map(Arc::new),
        }
    }

    /// Connections of clients that may be open in all.
    pub const fn most_connections(&self) -> usize {
        self.most_connections
    }

    /// A place for a connection, if there is one left.
    ///
    /// # Errors
    /// That there is none.
    pub fn connect(self: &Arc<Self>) -> Result<Place, Refusal> {
        match self.connections.take(self.most_connections) {
            true => Ok(Place { overload: Arc::clone(self), client: None }),
            false => Err(Refusal::Connections),
        }
    }

    /// A place for a request, if there is one left; `None` where nobody counts.
    ///
    /// # Errors
    /// What there is too much of.
    pub fn begin(&self) -> Result<Option<Underway>, Refusal> {
        let Some(requests) = &self.requests else { return Ok(None) };
        if requests.memory_is_short.load(Ordering::Relaxed) {
            return Err(Refusal::Memory);
        }
        match requests.under_way.take(requests.most) {
            true => Ok(Some(Underway(Arc::clone(requests)))),
            false => Err(Refusal::Requests),
        }
    }

    /// Whether anybody wants to know how much memory is in use.
    pub fn minds_memory(&self) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.memory.is_some())
    }

    /// So many bytes are in use. Whether memory has become short, or has ceased to be, if either.
    pub fn note_memory(&self, used: u64) -> Option<bool> {
        let requests = self.requests.as_ref()?;
        let most = requests.memory?;
        let was_short = requests.memory_is_short.load(Ordering::Relaxed);
        let bound = if was_short { most.saturating_sub(most / RELIEF) } else { most };
        let is_short = used >= bound;
        requests.memory_is_short.store(is_short, Ordering::Relaxed);
        (is_short != was_short).then_some(is_short)
    }
}

impl Place {
    /// The connection is this client's; whether it may have another.
    pub fn claim(&mut self, client: IpAddr) -> bool {
        match &self.overload.clients {
            Some(clients) if self.client.is_none() => {
                let taken = clients.take(client);
                self.client = taken.then_some(client);
                taken
            }
            _ => true,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let (Some(clients), Some(client)) = (&self.overload.clients, self.client) {
            clients.give_back(client);
        }
        self.overload.connections.give_back();
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.under_way.give_back();
    }
}

impl Apart {
    /// Adds one, unless there are `most`. Adding first and taking back what is too much would turn somebody away
    /// who comes between the two.
    fn take(&self, most: usize) -> bool {
        let add = |count: usize| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn give_back(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
