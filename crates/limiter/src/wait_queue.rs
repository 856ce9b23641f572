//! Queues of requests that wait for room in a limit.
//!
//! Each counter for which requests wait has a queue. Only the first request of a queue is decided by the limiter. It
//! leaves when it is admitted, has waited too long, or is abandoned by its client; the next one is then the first. A
//! request that has to pass several limits waits in one queue at a time, so requests cannot block each other. There is
//! no clock and no runtime here: time is an argument, and waiting requests register a waker.

pub mod pace;

mod counter_queue;
mod offer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

pub use self::counter_queue::{Arrival, QueueOrder};
use self::counter_queue::{CounterQueue, Rank};
pub use self::offer::{Grant, Offer};
use self::pace::{Pace, PaceSlot, Pacer};
use super::Check;
use super::decision::Decision;
use super::key::CounterId;
use super::memory_budget::MemoryBudget;
use super::registry::LimitHandle;
use super::table::LimitId;
use super::timestamp::Timestamp;

/// Time for which the first request of a queue may be charged ahead. Timers have a resolution of a millisecond and are
/// late under load, and no unit must be lost meanwhile. It is longer than [`pace::LOOKAHEAD`], so that the limiter does
/// not reject what the pace admits.
pub const CHARGE_AHEAD: Duration = Duration::from_millis(25);
/// Number of shards. Requests of different counters rarely wait for the same lock.
const SHARDS: usize = 64;
/// Maximum number of paced counters in a shard. Requests of further counters are not paced.
const MAX_PACED: usize = 16_384;

/// Settings of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Maximum number of waiting requests.
    pub max_queued: u32,
    /// Which request is first.
    pub order: QueueOrder,
}

/// A limit of the configuration: ids are used again, together with a salt they are not.
type InstalledLimit = (LimitId, [u64; 2]);

fn installed_limit(handle: LimitHandle) -> InstalledLimit {
    (handle.id, handle.salt.words())
}

/// The queues of all counters.
#[derive(Debug)]
pub struct WaitQueues {
    shards: Box<[Mutex<QueueShard>]>,
    arrivals: AtomicU64,
    waiting: AtomicUsize,
    /// Memory of requests that wait, in these queues or for a delay.
    memory: MemoryBudget,
    /// Limits of the current configuration; `None` until one is known, which has all of them.
    installed: Mutex<Option<Arc<HashSet<InstalledLimit>>>>,
}

#[derive(Debug, Default)]
struct QueueShard {
    queues: HashMap<CounterId, CounterQueue>,
    /// Number of queues above which those that are not in use are removed.
    prune_above: usize,
}

/// Error: the queue is full, and the request would be its last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueFull;

/// Error: the queue was full, and a request that comes first has taken this one's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted;

/// Place of a request in a queue. Dropping it leaves the queue.
#[derive(Debug)]
pub struct Ticket {
    queues: Arc<WaitQueues>,
    counter: CounterId,
    rank: Rank,
}

/// Memory of a request that waits, given back when dropped.
#[derive(Debug)]
pub struct WaitingMemory {
    queues: Arc<WaitQueues>,
    bytes: usize,
}

impl WaitingMemory {
    /// Takes more, for `bytes` in all. Returns whether there is memory for them.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let has_room = more == 0 || self.queues.memory.try_take(more);
        if has_room {
            self.bytes = self.bytes.max(bytes);
        }
        has_room
    }
}

impl Drop for WaitingMemory {
    fn drop(&mut self) {
        self.queues.memory.give_back(self.bytes);
    }
}

impl Default for WaitQueues {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            arrivals: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            memory: MemoryBudget::unlimited(),
            installed: Mutex::default(),
        }
    }
}

impl WaitQueues {
    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Returns the number of requests that wait, in all queues.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns the budget of memory of all requests that wait.
    pub fn memory(&self) -> &MemoryBudget {
        &self.memory
    }

    /// Takes memory for a request that is to wait; `None` if there is none left.
    pub fn take_memory(self: &Arc<Self>, bytes: usize) -> Option<WaitingMemory> {
        self.memory.try_take(bytes).then(|| WaitingMemory { queues: Arc::clone(self), bytes })
    }

    /// Counts the memory of a request that waits, even if there is none left.
    pub fn count_memory(self: &Arc<Self>, bytes: usize) -> WaitingMemory {
        self.memory.take(bytes);
        WaitingMemory { queues: Arc::clone(self), bytes }
    }

    /// Returns the number of a request in the order of arrival.
    pub fn next_arrival(&self) -> u64 {
        self.arrivals.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether another request of the queue of `counter` comes first. `ticket` is the place of the request, if it
    /// waits.
    ///
    /// A request that waits in another queue is compared by the order of arrival alone. This order is the same in all
    /// queues, so that the request that arrived first is always decided, and no two requests send each other from queue
    /// to queue.
    pub fn is_behind(
        &self,
        counter: CounterId,
        settings: QueueSettings,
        arrival: &Arrival,
        ticket: Option<&Ticket>,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let shard = self.shard(counter);
        let Some(queue) = shard.queues.get(&counter) else { return false };
        let Some(first) = queue.first() else { return false };
        match ticket {
            None => first < queue.rank(settings.order, arrival),
            Some(ticket) if ticket.counter == counter => first < ticket.rank,
            Some(_) => first.is_earlier_than(arrival),
        }
    }

    /// Returns a lower bound of the number of requests that come before one that joins now.
    pub fn ahead(&self, counter: CounterId, settings: QueueSettings, arrival: &Arrival) -> usize {
        let shard = self.shard(counter);
        shard.queues.get(&counter).map_or(0, |queue| queue.ahead(settings.order, arrival))
    }

    /// Returns the number of requests in the queue of `counter` that can be admitted now, as far as their pace permits.
    pub(super) fn demand(&self, counter: CounterId) -> u32 {
        if self.is_empty() {
            return 0;
        }
        self.shard(counter).queues.get(&counter).map_or(0, CounterQueue::demand)
    }

    /// Takes a place in the pace of `counter`; [`Self::cancel_pace`] returns it.
    pub fn reserve_pace(&self, counter: CounterId, pace: &Pace, now: Timestamp) -> PaceSlot {
        let mut shard = self.shard(counter);
        shard.pacer(counter, pace, now).map_or(PaceSlot::UNPACED, |pacer| pacer.reserve(pace, now))
    }

    /// Returns a lower bound of the time until a request has its place in the pace of `counter`, behind `ahead` others.
    pub fn min_pace_wait(&self, counter: CounterId, pace: &Pace, ahead: usize, now: Timestamp) -> Duration {
        let shard = self.shard(counter);
        let pacer = shard.queues.get(&counter).and_then(|queue| queue.pacer.as_ref());
        pacer.map_or_else(
            || Pacer::new(pace, now).min_wait_behind(pace, ahead, now),
            |pacer| pacer.min_wait_behind(pace, ahead, now),
        )
    }

    /// Returns the place in the pace of a request that the limiter has not admitted. `is_limit_reached`: the limit of this
    /// counter has no room.
    pub fn cancel_pace(&self, counter: CounterId, is_limit_reached: bool, now: Timestamp) {
        let mut shard = self.shard(counter);
        if let Some(pacer) = shard.queues.get_mut(&counter).and_then(|queue| queue.pacer.as_mut()) {
            pacer.cancel(is_limit_reached, now);
        }
    }

    /// Adds a request to the queue of `counter`. If the queue is full, the request takes the place of the last one, unless
    /// it would be the last one itself.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn join(
        self: &Arc<Self>,
        counter: CounterId,
        settings: QueueSettings,
        arrival: &Arrival,
    ) -> Result<Ticket, QueueFull> {
        let mut shard = self.shard(counter);
        let queue = shard.queues.entry(counter).or_default();
        let joined = queue.join(settings, arrival);
        if joined.is_ok() {
            // Under the lock: a ticket of the same queue must not be subtracted before it is added.
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
        let (rank, evicted) = joined?;
        if evicted.is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        drop(shard);
        evicted.flatten().into_iter().for_each(Waker::wake);
        Ok(Ticket { queues: Arc::clone(self), counter, rank })
    }

    /// Makes the first request of the queue of `counter` try again, because the limit may have room.
    pub fn wake_first(&self, counter: CounterId) {
        if self.is_empty() {
            return;
        }
        let waker = self.shard(counter).queues.get_mut(&counter).and_then(CounterQueue::notify_first);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Replaces the limits of the current configuration. Makes the first request of every queue try again, and all of
    /// them if a limit was removed.
    pub(super) fn set_installed(&self, limits: impl Iterator<Item = LimitHandle>) {
        let limits: Arc<HashSet<_>> = Arc::new(limits.map(installed_limit).collect());
        let before = self.installed.lock().replace(Arc::clone(&limits));
        let is_removal = before.is_some_and(|before| !before.is_subset(&limits));
        for shard in &self.shards {
            let mut wakers = Vec::new();
            for queue in shard.lock().queues.values_mut() {
                match is_removal {
                    true => wakers.extend(queue.notify_all()),
                    false => wakers.extend(queue.notify_first()),
                }
            }
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Returns whether the current configuration has the limit, and not another one that has got its id.
    pub fn is_installed(&self, limit: LimitHandle) -> bool {
        self.installed.lock().as_ref().is_none_or(|installed| installed.contains(&installed_limit(limit)))
    }

    /// Returns whether no request waits for `counter`. Does not wait for the lock of its queue, so that a caller may hold
    /// that of another one: if it is held, the result is `false`.
    fn is_surely_empty(&self, counter: CounterId) -> bool {
        let shard = self.shards[shard_of(counter)].try_lock();
        shard.is_some_and(|shard| shard.queues.get(&counter).is_none_or(|queue| queue.first().is_none()))
    }

    fn shard(&self, counter: CounterId) -> MutexGuard<'_, QueueShard> {
        self.shards[shard_of(counter)].lock()
    }
}

fn shard_of(counter: CounterId) -> usize {
    counter.0[0] as usize % SHARDS
}

impl QueueShard {
    /// Returns the pacer of a counter; `None` if there are too many.
    fn pacer(&mut self, counter: CounterId, pace: &Pace, now: Timestamp) -> Option<&mut Pacer> {
        if self.queues.len() > self.prune_above.max(SHARDS) {
            self.queues.retain(|_, queue| queue.is_in_use(now));
            self.prune_above = self.queues.len().saturating_mul(2);
        }
        if self.queues.len() >= MAX_PACED && !self.queues.contains_key(&counter) {
            return None;
        }
        let queue = self.queues.entry(counter).or_default();
        Some(queue.pacer.get_or_insert_with(|| Pacer::new(pace, now)))
    }
}

impl Ticket {
    /// Returns the counter in whose queue the request is.
    pub const fn counter(&self) -> CounterId {
        self.counter
    }

    /// Returns whether the request is the first of its queue.
    pub fn is_first(&self) -> bool {
        let shard = self.queues.shard(self.counter);
        shard.queues.get(&self.counter).is_some_and(|queue| queue.first() == Some(self.rank))
    }

    /// Completes when the request is the first of its queue, or when another request has admitted it, for which `offer` is
    /// left in the queue. [`Self::take_grant`] must follow, however the wait ends.
    ///
    /// # Errors
    /// [`Evicted`].
    pub fn poll_first(
        &self,
        cx: &mut Context<'_>,
        offer: &mut Option<Box<Offer>>,
    ) -> Poll<Result<(), Evicted>> {
        self.poll(cx, offer, CounterQueue::take_turn)
    }

    /// Completes when the limit of the counter may have room, or has changed, or when another request has admitted this
    /// one, for which `offer` is left in the queue. [`Self::take_grant`] must follow, however the wait ends.
    ///
    /// # Errors
    /// [`Evicted`].
    pub fn poll_notified(
        &self,
        cx: &mut Context<'_>,
        offer: &mut Option<Box<Offer>>,
    ) -> Poll<Result<(), Evicted>> {
        self.poll(cx, offer, CounterQueue::take_notification)
    }

    /// Returns the decision of another request that has admitted this one. If there is none, no other request decides it
    /// from now on.
    pub fn take_grant(&self) -> Option<Grant> {
        let mut shard = self.queues.shard(self.counter);
        let queue = shard.queues.get_mut(&self.counter)?;
        let grant = queue.take_grant(self.rank)?;
        if queue.is_removable() {
            shard.queues.remove(&self.counter);
        }
        Some(grant)
    }

    /// Leaves the queue, because the request is admitted, and decides the requests that are first then and have an offer,
    /// as far as the limit has room. `decide` charges checks if it does not reject.
    pub fn leave_admitted(&self, now: Timestamp, decide: impl FnMut(&[Check]) -> Decision) {
        let mut wakers = SmallVec::<[Waker; 4]>::new();
        let mut shard = self.queues.shard(self.counter);
        let Some(queue) = shard.queues.get_mut(&self.counter) else { return };
        let left = queue.leave(self.rank);
        let has_left = left.is_some();
        wakers.extend(left.flatten());
        let admitted = queue.admit_first(&self.queues, now, decide, &mut wakers);
        if admitted > 0 {
            wakers.extend(queue.notify_next());
        }
        if queue.is_removable() {
            shard.queues.remove(&self.counter);
        }
        self.queues.waiting.fetch_sub(usize::from(has_left) + admitted, Ordering::Relaxed);
        drop(shard);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn poll(
        &self,
        cx: &mut Context<'_>,
        offer: &mut Option<Box<Offer>>,
        is_ready: impl FnOnce(&mut CounterQueue, Rank) -> bool,
    ) -> Poll<Result<(), Evicted>> {
        let mut shard = self.queues.shard(self.counter);
        let Some(queue) = shard.queues.get_mut(&self.counter) else { return Poll::Ready(Err(Evicted)) };
        if queue.granted.contains_key(&self.rank) {
            return Poll::Ready(Ok(()));
        }
        if !queue.contains(self.rank) {
            return Poll::Ready(Err(Evicted));
        }
        let is_reconfigured = queue.take_reconfiguration(self.rank);
        if is_ready(queue, self.rank) || is_reconfigured {
            return Poll::Ready(Ok(()));
        }
        queue.register(self.rank, cx.waker());
        if let Some(offer) = offer.take() {
            queue.set_offer(self.rank, offer);
        }
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut shard = self.queues.shard(self.counter);
        let Some(queue) = shard.queues.get_mut(&self.counter) else { return };
        // The units of an unclaimed grant are used, as those of a request that is charged ahead.
        let granted = queue.take_grant(self.rank);
        let left = queue.leave(self.rank);
        if granted.is_none() && left.is_none() {
            return;
        }
        if queue.is_removable() {
            shard.queues.remove(&self.counter);
        }
        self.queues.waiting.fetch_sub(usize::from(left.is_some()), Ordering::Relaxed);
        drop(shard);
        left.flatten().into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests;
