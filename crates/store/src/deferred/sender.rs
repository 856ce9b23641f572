//! Sends the calls of one rule: takes them from the store, hands them to workers one after the other, and settles them.
//!
//! A call is handed out only after the limit has decided about the previous one, so the sender waits for room and does not
//! run into rejections. It takes about as many calls as it sends until the next look, and confirms those that it holds, so
//! that other instances claim only calls of an instance that has stopped.

mod pace;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::pace::SendPace;
use super::handle::{DeferredHandle, DeferredRule, Dispatch, MAX_REPORTS, Reporter};
use super::held::{HeldCall, HeldCalls};
use super::outcome::{ResponseVerdict, SendOutcome, SendReport, evaluate};
use super::parse::{NotHeld, Taken};
use super::stream::{CallSettlement, CallStreams};
use crate::redis::CallError;
use weir_net::jitter::{backoff, equal_jitter, full_jitter};
use weir_telemetry::metrics::{DeadReason, DeferredMetrics};

/// Maximum number of calls of a rule that this instance sends at once.
const MAX_IN_FLIGHT: usize = 256;
/// Maximum number of calls whose keys have no room that stay here; others go back to the store.
const MAX_PARKED: usize = 64;
/// Maximum bytes of encoded calls that are held. The last call that is taken may exceed it.
const MAX_HELD_BYTES: usize = 32 << 20;
/// Maximum bytes of encoded calls that are taken at once; one call may exceed it.
const MAX_TAKEN_BYTES: usize = 4 << 20;
/// Minimum pause of a call that goes back to the store because its key has no room.
const MIN_RETURN_PAUSE: Duration = Duration::from_secs(1);
/// Pause of a call whose listener does not exist here.
const NO_LISTENER_PAUSE: Duration = Duration::from_secs(30);
/// Maximum number of missing listeners that are reported.
const MAX_REPORTED_LISTENERS: usize = 16;
/// Interval at which held calls are confirmed; several times shorter than the time after which others claim them.
const KEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the calls of other instances are inspected.
const INSPECTION_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts to settle a call while the store is unavailable.
const BASE_SETTLE_PAUSE: Duration = Duration::from_millis(100);
const MAX_SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// What a sender needs.
#[derive(Debug)]
pub(super) struct SenderContext {
    pub(super) streams: Rc<CallStreams>,
    pub(super) handle: DeferredHandle,
    pub(super) metrics: DeferredMetrics,
    /// The rule; `None` once nothing is to be sent any more.
    pub(super) rule: watch::Receiver<Option<DeferredRule>>,
    /// Notified of calls that were appended here.
    pub(super) appended: Rc<Notify>,
}

/// The sender of one rule.
#[derive(Debug)]
pub(super) struct CallSender {
    context: SenderContext,
    rule: DeferredRule,
    is_stopping: bool,
    held: HeldCalls,
    /// The call about which the limit has not decided.
    undecided: Option<u64>,
    pace: SendPace,
    is_taking: bool,
    inspected: Box<str>,
    next_inspection: Instant,
    next_keep: Instant,
    is_keeping: bool,
    /// Whether calls are confirmed before others are taken. After an outage of the store, calls that are held here look
    /// like those of an instance that has stopped.
    must_keep: bool,
    tasks: JoinSet<TaskResult>,
    /// Missing listeners of calls, which have been reported.
    reported_listeners: BTreeSet<Box<str>>,
    reports: mpsc::Receiver<SendReport>,
    reporter: mpsc::Sender<SendReport>,
}

/// Result of a call to the store.
#[derive(Debug)]
enum TaskResult {
    Taken { requested: usize, result: Result<Taken, CallError> },
    Settled { number: u64 },
    Kept { sent_at: Instant, result: Result<NotHeld, CallError> },
}

impl CallSender {
    pub(super) fn new(context: SenderContext, rule: DeferredRule) -> Self {
        let (reporter, reports) = mpsc::channel(MAX_REPORTS);
        let now = Instant::now();
        Self {
            context,
            rule,
            is_stopping: false,
            held: HeldCalls::default(),
            undecided: None,
            pace: SendPace::new(now),
            is_taking: false,
            inspected: "-".into(),
            next_inspection: now,
            next_keep: now + KEEP_INTERVAL,
            is_keeping: false,
            must_keep: false,
            tasks: JoinSet::new(),
            reported_listeners: BTreeSet::new(),
            reports,
            reporter,
        }
    }

    /// Sends calls until the rule is gone and everything that is in flight is settled.
    pub(super) async fn run(mut self) {
        let appended = Rc::clone(&self.context.appended);
        while !self.start_work() {
            let next_wake = self.next_wake();
            tokio::select! {
                Some(report) = self.reports.recv() => self.handle_report(report),
                Some(joined) = self.tasks.join_next() => {
                    if let Ok(result) = joined {
                        self.handle_result(result);
                    }
                }
                changed = self.context.rule.changed(), if !self.is_stopping => {
                    let rule = self.context.rule.borrow_and_update().clone();
                    match rule.filter(|_| changed.is_ok()) {
                        Some(rule) => self.rule = rule,
                        None => self.is_stopping = true,
                    }
                }
                () = appended.notified() => self.pace.calls_appended(Instant::now()),
                () = sleep_until(next_wake) => {}
            }
        }
    }

    /// Starts everything that is due. Returns whether the sender has ended.
    fn start_work(&mut self) -> bool {
        let now = Instant::now();
        self.keep(now);
        self.held.unpark(now);
        for old in self.held.take_older(self.rule.deferral.max_age, now) {
            self.bury(old, DeadReason::MaxAge, None);
        }
        if self.is_stopping {
            for unsent in self.held.take_unsent() {
                self.settle(unsent, |held| CallSettlement::Retry {
                    pause: Duration::ZERO,
                    attempts: held.attempts,
                });
            }
        } else {
            self.take(now);
            self.dispatch(now);
        }
        self.is_stopping && self.held.dispatched() == 0 && !self.is_taking
    }

    /// Returns when there is work without a further event.
    fn next_wake(&self) -> Instant {
        let take = (!self.is_taking && !self.must_keep && self.has_room()).then(|| self.pace.next_take());
        let keep = self.must_keep.then(|| self.pace.next_take());
        let is_waiting = !self.held.queue.is_empty() && self.undecided.is_none();
        let send = is_waiting.then(|| self.pace.paused_until());
        let old = self.held.next_older(self.rule.deferral.max_age);
        let due = [take, keep, send, self.held.next_parked(), old].into_iter().flatten();
        // What is overdue waits for an event, such as the end of a call in flight.
        let now = Instant::now();
        due.filter(|due| *due > now).fold(self.next_keep.max(now + MIN_SLEEP), Instant::min)
    }

    /// Whether more calls can be taken.
    fn has_room(&self) -> bool {
        self.held.queue.len() < self.pace.target()
            && self.held.dispatched() < MAX_IN_FLIGHT
            && self.held.parked() <= MAX_PARKED
            && self.held.bytes() < MAX_HELD_BYTES
    }

    fn take(&mut self, now: Instant) {
        if self.is_taking || self.must_keep || !self.has_room() || !self.pace.may_take(now) {
            return;
        }
        self.is_taking = true;
        let requested = self.pace.target();
        let max_bytes = MAX_TAKEN_BYTES.min(MAX_HELD_BYTES.saturating_sub(self.held.bytes()));
        let inspected = (now >= self.next_inspection).then(|| self.inspected.clone());
        if inspected.is_some() {
            self.next_inspection = now + equal_jitter(INSPECTION_INTERVAL);
        }
        let (streams, rule) = (Rc::clone(&self.context.streams), Arc::clone(&self.rule.name));
        self.tasks.spawn_local(async move {
            let result = streams.take(&rule, requested, max_bytes, inspected.as_deref()).await;
            TaskResult::Taken { requested, result }
        });
    }

    fn keep(&mut self, now: Instant) {
        let is_due = now >= self.next_keep || (self.must_keep && self.pace.may_take(now));
        if self.is_keeping || !is_due {
            return;
        }
        self.next_keep = now + KEEP_INTERVAL;
        let ids: Vec<_> = self.held.ids().cloned().collect();
        if ids.is_empty() {
            self.must_keep = false;
            return;
        }
        self.is_keeping = true;
        let (streams, rule) = (Rc::clone(&self.context.streams), Arc::clone(&self.rule.name));
        self.tasks.spawn_local(async move {
            let result = streams.keep(&rule, ids.iter().map(|id| &**id)).await;
            TaskResult::Kept { sent_at: now, result }
        });
    }

    /// Hands the next call to a worker, if the limit may have room.
    fn dispatch(&mut self, now: Instant) {
        while self.undecided.is_none()
            && self.pace.may_send(now, self.held.dispatched())
            && self.held.dispatched() < MAX_IN_FLIGHT
        {
            let Some(next) = self.held.queue.pop_front() else { return };
            if next.may_be_claimed(now) {
                // The process was suspended, or the store is away: first it is confirmed.
                return self.held.queue.push_front(next);
            }
            let Some(call) = next.call.clone() else {
                self.bury(next, DeadReason::Invalid, None);
                continue;
            };
            let number = self.held.add_dispatched(next);
            self.undecided = Some(number);
            let reporter = Reporter::new(number, self.reporter.clone());
            self.context.handle.dispatch(Dispatch { rule: Arc::clone(&self.rule.name), call, reporter });
        }
    }

    fn handle_report(&mut self, SendReport { number, outcome }: SendReport) {
        let was_undecided = self.undecided.take_if(|undecided| *undecided == number).is_some();
        if outcome == SendOutcome::Admitted {
            return;
        }
        let Some(held) = self.held.remove(number) else { return };
        if !was_undecided {
            // It has released its permit.
            self.pace.call_ended(Instant::now());
            self.held.unpark_of_key(&held);
        }
        match outcome {
            SendOutcome::Admitted => {}
            SendOutcome::NoRoom(wait) => self.wait_for_room(held, wait),
            SendOutcome::NoListener => self.return_without_listener(held),
            SendOutcome::Responded { status, retry_after } => self.handle_response(held, status, retry_after),
            // The process ends, not the call's attempts.
            SendOutcome::Aborted if self.is_stopping => {
                self.settle(held, |held| CallSettlement::Retry {
                    pause: Duration::ZERO,
                    attempts: held.attempts,
                });
            }
            SendOutcome::Aborted => self.retry(held, None, Duration::ZERO),
        }
    }

    /// Holds a call until its limit has room. Without a `wait`, only calls in flight have used up the limit.
    fn wait_for_room(&mut self, mut held: HeldCall, wait: Duration) {
        let now = Instant::now();
        if !self.rule.is_keyed {
            self.held.queue.push_front(held);
            self.pace.limit_reached(now, wait);
        } else if self.held.parked() < MAX_PARKED {
            let is_permit = wait.is_zero();
            let wait = if is_permit { held.permit_pause() } else { wait };
            self.held.park(held, now + wait, is_permit);
        } else {
            let pause = equal_jitter(wait.max(MIN_RETURN_PAUSE));
            self.settle(held, |held| CallSettlement::Retry { pause, attempts: held.attempts });
        }
    }

    /// Puts a call back whose listener does not exist here. Another instance may have it, or this one later.
    fn return_without_listener(&mut self, held: HeldCall) {
        let listener = held.call.as_ref().map(|call| &*call.listener).unwrap_or_default();
        if self.reported_listeners.len() < MAX_REPORTED_LISTENERS
            && self.reported_listeners.insert(listener.into())
        {
            let rule = &*self.rule.name;
            tracing::warn!(
                rule,
                listener,
                "deferred calls of a listener that is not configured are not sent"
            );
        }
        let pause = equal_jitter(NO_LISTENER_PAUSE);
        self.settle(held, |held| CallSettlement::Retry { pause, attempts: held.attempts });
    }

    fn handle_response(&mut self, held: HeldCall, status: StatusCode, retry_after: Option<Duration>) {
        match evaluate(status) {
            ResponseVerdict::Sent => {
                self.pace.responded();
                self.context.metrics.record_sent();
                self.settle(held, |_| CallSettlement::Sent);
            }
            ResponseVerdict::Dead => {
                self.pace.responded();
                self.bury(held, DeadReason::Status, Some(status));
            }
            ResponseVerdict::Retry => {
                let is_limited = status == StatusCode::TOO_MANY_REQUESTS || retry_after.is_some();
                if is_limited && !self.rule.is_keyed {
                    let pause = retry_after.unwrap_or(self.rule.deferral.first_backoff);
                    self.pace.upstream_limited(Instant::now(), pause);
                }
                match retry_after {
                    Some(pause) if status == StatusCode::TOO_MANY_REQUESTS => self.postpone(held, pause),
                    retry_after => self.retry(held, Some(status), retry_after.unwrap_or_default()),
                }
            }
        }
    }

    /// Schedules the next attempt after the upstream has asked for a pause, which uses up no attempt.
    fn postpone(&mut self, held: HeldCall, pause: Duration) {
        let pause = pause.max(equal_jitter(self.rule.deferral.first_backoff));
        if held.age(Instant::now()).saturating_add(pause) > self.rule.deferral.max_age {
            return self.bury(held, DeadReason::MaxAge, Some(StatusCode::TOO_MANY_REQUESTS));
        }
        self.context.metrics.record_retried();
        self.settle(held, |held| CallSettlement::Retry { pause, attempts: held.attempts });
    }

    /// Schedules the next attempt after a failed one, not before `min_pause` has elapsed.
    fn retry(&mut self, mut held: HeldCall, status: Option<StatusCode>, min_pause: Duration) {
        let deferral = &self.rule.deferral;
        self.pace.failed(Instant::now(), deferral.first_backoff, deferral.max_backoff);
        held.attempts = held.attempts.saturating_add(1);
        let attempts = held.attempts;
        let pause =
            full_jitter(backoff(deferral.first_backoff, deferral.max_backoff, attempts)).max(min_pause);
        if attempts >= deferral.attempts.get() {
            return self.bury(held, DeadReason::Attempts, status);
        }
        if held.age(Instant::now()).saturating_add(pause) > deferral.max_age {
            return self.bury(held, DeadReason::MaxAge, status);
        }
        self.context.metrics.record_retried();
        self.settle(held, |_| CallSettlement::Retry { pause, attempts });
    }

    /// Moves a call to the dead-letter stream.
    fn bury(&mut self, held: HeldCall, reason: DeadReason, status: Option<StatusCode>) {
        let id = held.call.as_ref().map(|call| call.id_text()).unwrap_or_default();
        tracing::warn!(
            rule = &*self.rule.name,
            id,
            reason = reason.as_str(),
            ?status,
            "deferred call not sent"
        );
        self.context.metrics.record_dead(reason);
        let (status, max_dead) = (status.map(|status| status.as_u16()), self.rule.deferral.max_stored.get());
        self.settle(held, |held| CallSettlement::Dead { reason, attempts: held.attempts, status, max_dead });
    }

    /// Settles a call in the store, which is tried until it succeeds: until then, the call counts as in flight.
    fn settle(&mut self, mut held: HeldCall, settlement: impl FnOnce(&HeldCall) -> CallSettlement) {
        let (id, settlement) = (Arc::clone(&held.id), settlement(&held));
        // It is not needed any more, and the store may be away for long.
        held.drop_call();
        let number = self.held.add_dispatched(held);
        let (streams, rule) = (Rc::clone(&self.context.streams), Arc::clone(&self.rule.name));
        self.tasks.spawn_local(async move {
            let mut failures = 0_u32;
            while let Err(error) = streams.settle(&rule, &id, &settlement).await {
                tracing::debug!(%error, rule = &*rule, "cannot settle a deferred call");
                failures = failures.saturating_add(1);
                sleep(equal_jitter(backoff(BASE_SETTLE_PAUSE, MAX_SETTLE_PAUSE, failures))).await;
            }
            TaskResult::Settled { number }
        });
    }

    fn handle_result(&mut self, result: TaskResult) {
        let now = Instant::now();
        match result {
            TaskResult::Settled { number } => drop(self.held.remove(number)),
            TaskResult::Kept { sent_at, result: Ok(not_held) } => {
                (self.is_keeping, self.must_keep) = (false, false);
                let dropped = self.held.confirm(&not_held, sent_at);
                if dropped > 0 {
                    let rule = &*self.rule.name;
                    tracing::debug!(rule, dropped, "another instance has taken over deferred calls");
                }
            }
            TaskResult::Kept { result: Err(error), .. } => {
                (self.is_keeping, self.must_keep) = (false, true);
                tracing::debug!(%error, rule = &*self.rule.name, "cannot confirm deferred calls");
                self.pace.take_failed(now);
            }
            TaskResult::Taken { requested, result: Ok(taken) } => {
                self.is_taking = false;
                let was_empty = self.held.queue.is_empty();
                self.pace.taken(now, requested, taken.calls.len(), was_empty, taken.next_retry);
                self.context.metrics.record_claimed(taken.claimed);
                self.inspected = taken.inspected.unwrap_or_else(|| std::mem::take(&mut self.inspected));
                self.held.add_taken(taken.calls);
            }
            TaskResult::Taken { result: Err(error), .. } => {
                (self.is_taking, self.must_keep) = (false, true);
                tracing::debug!(%error, rule = &*self.rule.name, "cannot take deferred calls");
                self.pace.take_failed(now);
            }
        }
    }
}

/// Minimum sleep of a sender, so that it cannot spin.
const MIN_SLEEP: Duration = Duration::from_millis(1);
