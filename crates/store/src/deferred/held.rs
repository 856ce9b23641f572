//! Calls that this instance has taken from a stream and not settled.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::call::StoredCall;
use super::parse::{NotHeld, TakenCall};
use super::stream::CLAIM_AFTER;
use weir_net::jitter::{backoff, equal_jitter};

/// Pauses between looks at a limit that only calls in flight use up.
const BASE_PERMIT_PAUSE: Duration = Duration::from_millis(100);
const MAX_PERMIT_PAUSE: Duration = Duration::from_secs(1);

/// A call that this instance holds.
#[derive(Clone, Debug)]
pub(super) struct HeldCall {
    /// ID of its entry.
    pub(super) id: Arc<str>,
    /// Age when it was taken.
    age: Duration,
    taken: Instant,
    /// When this instance last confirmed that it holds the call, or took it.
    confirmed: Instant,
    /// Whether the store has lost the call while no other instance could have claimed it.
    is_only_copy: bool,
    /// Failed attempts.
    pub(super) attempts: u32,
    /// The call; `None` if it cannot be decoded, and once it is being settled.
    pub(super) call: Option<Arc<StoredCall>>,
    /// Bytes of the encoded call.
    bytes: usize,
    /// Decisions that only calls in flight of the same key were in its way.
    permit_rejections: u32,
}

/// A call whose key has no room.
#[derive(Debug)]
struct ParkedCall {
    held: HeldCall,
    /// Whether only calls in flight are in its way.
    is_permit: bool,
}

impl HeldCall {
    pub(super) fn new(taken: TakenCall) -> Self {
        let now = Instant::now();
        Self {
            call: StoredCall::decode(&taken.text).map(Arc::new),
            id: taken.id.into(),
            age: taken.age,
            taken: now,
            confirmed: now,
            is_only_copy: false,
            attempts: taken.attempts,
            bytes: taken.text.len(),
            permit_rejections: 0,
        }
    }

    /// Continues with what the store has returned for this call, which it counts as taken again.
    fn retake(&mut self, taken: &TakenCall) {
        let now = Instant::now();
        (self.taken, self.confirmed, self.is_only_copy) = (now, now, false);
        (self.age, self.attempts) = (taken.age, taken.attempts);
    }

    /// Drops the call itself, of which only the entry is needed.
    pub(super) fn drop_call(&mut self) {
        (self.call, self.bytes) = (None, 0);
    }

    /// Returns the pause before the next look at a limit that calls in flight, perhaps of other instances, use up.
    pub(super) fn permit_pause(&mut self) -> Duration {
        self.permit_rejections = self.permit_rejections.saturating_add(1);
        equal_jitter(backoff(BASE_PERMIT_PAUSE, MAX_PERMIT_PAUSE, self.permit_rejections))
    }

    /// Whether another instance may have claimed the call, because nothing has confirmed it for so long.
    pub(super) fn may_be_claimed(&self, now: Instant) -> bool {
        !self.is_only_copy && now.saturating_duration_since(self.confirmed) >= CLAIM_AFTER
    }

    /// Returns when the call becomes older than `max_age`.
    fn older_at(&self, max_age: Duration) -> Instant {
        self.taken + max_age.saturating_sub(self.age) + Duration::from_millis(1)
    }

    fn is_older(&self, max_age: Duration, now: Instant) -> bool {
        self.older_at(max_age) <= now
    }

    /// Returns the time since the call was appended.
    pub(super) fn age(&self, now: Instant) -> Duration {
        self.age.saturating_add(now.saturating_duration_since(self.taken))
    }
}

/// All calls that this instance holds of one rule.
#[derive(Debug, Default)]
pub(super) struct HeldCalls {
    /// Calls to be sent next.
    pub(super) queue: VecDeque<HeldCall>,
    /// Calls whose key has no room until a time; the number keeps times apart.
    parked: BTreeMap<(Instant, u64), ParkedCall>,
    /// Calls that were given to workers or are being settled, by number.
    dispatched: BTreeMap<u64, HeldCall>,
    last_number: u64,
}

impl HeldCalls {
    /// Queues calls that were taken from the store. Those that are held already are not queued again: after an outage of
    /// the store, the instance may have claimed them from itself, or another one has claimed and returned them.
    pub(super) fn add_taken(&mut self, taken: Vec<TakenCall>) {
        for call in taken {
            if let Some(held) = self.all_mut().find(|held| *held.id == *call.id) {
                held.retake(&call);
            } else {
                self.queue.push_back(HeldCall::new(call));
            }
        }
    }

    /// Returns the number of calls that were given to workers or are being settled.
    pub(super) fn dispatched(&self) -> usize {
        self.dispatched.len()
    }

    /// Returns the number of calls that wait for room.
    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Returns the time at which the first parked call is due.
    pub(super) fn next_parked(&self) -> Option<Instant> {
        self.parked.first_key_value().map(|((due, _), _)| *due)
    }

    /// Adds a call to those that are dispatched or being settled; returns its number.
    pub(super) fn add_dispatched(&mut self, call: HeldCall) -> u64 {
        self.last_number += 1;
        self.dispatched.insert(self.last_number, call);
        self.last_number
    }

    /// Removes a dispatched call.
    pub(super) fn remove(&mut self, number: u64) -> Option<HeldCall> {
        self.dispatched.remove(&number)
    }

    /// Parks a call until `due`, or with `is_permit` until a call of the same key ends.
    pub(super) fn park(&mut self, held: HeldCall, due: Instant, is_permit: bool) {
        self.last_number += 1;
        self.parked.insert((due, self.last_number), ParkedCall { held, is_permit });
    }

    /// Queues parked calls that are due, behind the others: otherwise a key that has no room again would hold them back.
    pub(super) fn unpark(&mut self, now: Instant) {
        while let Some(parked) = self.parked.first_entry().filter(|parked| parked.key().0 <= now) {
            self.queue.push_back(parked.remove().held);
        }
    }

    /// Queues a parked call for which a call of the same key, which has ended, was in the way.
    pub(super) fn unpark_of_key(&mut self, ended: &HeldCall) {
        let Some(ended) = &ended.call else { return };
        let is_next = |parked: &ParkedCall| {
            parked.is_permit && parked.held.call.as_ref().is_some_and(|call| call.key == ended.key)
        };
        let next = self.parked.iter().find(|(_, parked)| is_next(parked)).map(|(due, _)| *due);
        if let Some(parked) = next.and_then(|due| self.parked.remove(&due)) {
            self.queue.push_back(parked.held);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.all().map(|held| held.bytes).sum()
    }

    /// Takes the calls that were not given to workers and are older than `max_age`.
    pub(super) fn take_older(&mut self, max_age: Duration, now: Instant) -> Vec<HeldCall> {
        if self.next_older(max_age).is_none_or(|due| due > now) {
            return Vec::new();
        }
        let (old, rest) = self.queue.drain(..).partition(|held| held.is_older(max_age, now));
        self.queue = rest;
        let mut old: Vec<_> = VecDeque::into(old);
        let parked = std::mem::take(&mut self.parked).into_iter();
        let (old_parked, rest): (BTreeMap<_, _>, _) =
            parked.partition(|(_, parked)| parked.held.is_older(max_age, now));
        self.parked = rest;
        old.extend(old_parked.into_values().map(|parked| parked.held));
        old
    }

    /// Returns when the first of these calls becomes older than `max_age`.
    pub(super) fn next_older(&self, max_age: Duration) -> Option<Instant> {
        let parked = self.parked.values().map(|parked| &parked.held);
        self.queue.iter().chain(parked).map(|held| held.older_at(max_age)).min()
    }

    /// Applies a confirmation that was sent at `sent_at`: calls that were not given to workers and that this instance
    /// does not hold any more are dropped, since others send them or have sent them. Returns how many.
    pub(super) fn confirm(&mut self, not_held: &NotHeld, sent_at: Instant) -> usize {
        for held in self.all_mut().filter(|held| held.taken <= sent_at) {
            if not_held.missing.contains(&*held.id) {
                // No other instance has settled a call that it could not claim, so the store has lost it.
                held.is_only_copy = !held.may_be_claimed(sent_at);
            } else {
                (held.confirmed, held.is_only_copy) = (sent_at, false);
            }
        }
        let is_lost = |held: &HeldCall| {
            let is_settled = !held.is_only_copy && not_held.missing.contains(&*held.id);
            held.taken <= sent_at && (is_settled || not_held.lost.contains(&*held.id))
        };
        let before = self.queue.len() + self.parked.len();
        self.queue.retain(|held| !is_lost(held));
        self.parked.retain(|_, parked| !is_lost(&parked.held));
        before - self.queue.len() - self.parked.len()
    }

    /// Takes all calls that were not given to workers.
    pub(super) fn take_unsent(&mut self) -> Vec<HeldCall> {
        let parked = std::mem::take(&mut self.parked).into_values().map(|parked| parked.held);
        self.queue.drain(..).chain(parked).collect()
    }

    /// Yields the entries of all calls.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.all().map(|held| &held.id)
    }

    fn all(&self) -> impl Iterator<Item = &HeldCall> {
        let parked = self.parked.values().map(|parked| &parked.held);
        self.queue.iter().chain(parked).chain(self.dispatched.values())
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut HeldCall> {
        let parked = self.parked.values_mut().map(|parked| &mut parked.held);
        self.queue.iter_mut().chain(parked).chain(self.dispatched.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(id: &str) -> TakenCall {
        TakenCall { id: id.into(), age: Duration::ZERO, attempts: 0, text: bytes::Bytes::new() }
    }

    #[test]
    fn calls_that_are_held_are_not_queued_again() {
        let mut held = HeldCalls::default();
        held.add_taken(vec![taken("1-0"), taken("2-0"), taken("3-0")]);
        let [sent, parked] = [(), ()].map(|()| held.queue.pop_front().unwrap());
        held.add_dispatched(sent);
        held.park(parked, Instant::now(), false);
        held.add_taken(["1-0", "2-0", "3-0", "4-0"].map(taken).into());
        assert_eq!(held.queue.iter().map(|held| &*held.id).collect::<Vec<_>>(), ["3-0", "4-0"]);
    }

    fn not_held(lost: &[&str], missing: &[&str]) -> NotHeld {
        let set = |ids: &[&str]| ids.iter().map(|id| Box::from(*id)).collect();
        NotHeld { lost: set(lost), missing: set(missing) }
    }

    fn queued(held: &HeldCalls) -> Vec<&str> {
        held.queue.iter().map(|held| &*held.id).collect()
    }

    #[test]
    fn calls_that_another_instance_has_taken_over_are_dropped() {
        let mut held = HeldCalls::default();
        held.add_taken(["1-0", "2-0", "3-0", "4-0"].map(taken).into());
        let [sent, parked] = [(), ()].map(|()| held.queue.pop_front().unwrap());
        let number = held.add_dispatched(sent);
        held.park(parked, Instant::now(), false);
        let sent_at = Instant::now();
        assert_eq!(held.confirm(&not_held(&["1-0", "2-0", "4-0", "9-0"], &[]), sent_at), 2);
        assert_eq!((queued(&held), held.parked()), (vec!["3-0"], 0));
        assert!(held.remove(number).is_some(), "a call in flight cannot be recalled");
        // The reply is about the time before the call was taken again.
        held.add_taken(vec![taken("4-0")]);
        assert_eq!(held.confirm(&not_held(&["4-0"], &[]), sent_at - Duration::from_millis(1)), 0);
    }

    #[test]
    fn call_that_is_taken_again_while_it_is_held_survives_an_earlier_confirmation() {
        let mut held = HeldCalls::default();
        held.add_taken(["1-0", "2-0", "3-0"].map(taken).into());
        let [sent, parked] = [(), ()].map(|()| held.queue.pop_front().unwrap());
        let number = held.add_dispatched(sent);
        held.park(parked, Instant::now(), false);
        // Another instance has claimed the calls, and returns them after a failed attempt.
        let sent_at = Instant::now();
        let again = |id: &str| TakenCall { attempts: 1, age: CLAIM_AFTER, ..taken(id) };
        while Instant::now() == sent_at {
            std::hint::spin_loop();
        }
        held.add_taken(["1-0", "2-0", "3-0"].map(again).into());
        assert_eq!(held.confirm(&not_held(&["1-0", "2-0", "3-0"], &[]), sent_at), 0);
        assert_eq!((queued(&held), held.parked()), (vec!["3-0"], 1));
        assert_eq!((held.queue[0].attempts, held.queue[0].age >= CLAIM_AFTER), (1, true));
        assert_eq!(held.remove(number).map(|held| held.attempts), Some(1));
    }

    #[test]
    fn call_that_the_store_has_lost_is_kept_unless_another_instance_may_have_sent_it() {
        let mut held = HeldCalls::default();
        held.add_taken(vec![taken("1-0")]);
        let missing = not_held(&[], &["1-0"]);
        let start = Instant::now();
        assert_eq!(held.confirm(&missing, start + CLAIM_AFTER / 2), 0, "it could not be claimed");
        assert_eq!(held.confirm(&not_held(&[], &[]), start + CLAIM_AFTER / 2), 0);
        assert_eq!(held.confirm(&missing, start + CLAIM_AFTER), 0, "it was confirmed meanwhile");
        for count in 2..10 {
            let now = start + CLAIM_AFTER * count;
            assert_eq!(held.confirm(&missing, now), 0, "it is the only copy");
            assert!(!held.queue[0].may_be_claimed(now), "it is sent");
        }
        // A replica that has the call has become the primary.
        assert_eq!(held.confirm(&not_held(&[], &[]), start + CLAIM_AFTER * 10), 0);
        assert_eq!(held.confirm(&missing, start + CLAIM_AFTER * 11), 1, "another instance may have sent it");
        assert!(held.queue.is_empty());
    }

    #[test]
    fn call_in_flight_that_the_store_has_lost_is_kept_when_its_limit_has_no_room() {
        let mut held = HeldCalls::default();
        held.add_taken(vec![taken("1-0")]);
        let sent = held.queue.pop_front().unwrap();
        let number = held.add_dispatched(sent);
        let (start, missing) = (Instant::now(), not_held(&[], &["1-0"]));
        assert_eq!(held.confirm(&missing, start + CLAIM_AFTER / 2), 0);
        let rejected = held.remove(number).unwrap();
        held.park(rejected, start, false);
        assert_eq!((held.confirm(&missing, start + CLAIM_AFTER * 2), held.parked()), (0, 1));
    }
}
