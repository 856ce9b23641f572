//! The thread's task: appends calls for workers, runs a sender for each rule, and refreshes the status.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::handle::{AppendRequest, DeferredHandle, DeferredRule, NotStored, RequestQueue, StoreRequest};
use super::parse::StreamTime;
use super::sender::{CallSender, SenderContext};
use super::status::{DeferredRuleStatus, DeferredStatus};
use super::stream::{AppendOutcome, CallStreams};
use crate::settings::StoreSettings;
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Clock;
use weir_net::drain::{DrainManager, DrainPhase};
use weir_net::jitter::jittered;
use weir_telemetry::metrics::{AcceptOutcome, DeferredMetrics, Metrics};

/// Interval between refreshes of the status.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum timeout of appending large calls, and of the calls with which senders take and settle calls.
const MIN_BULK_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum bytes of an encoded call that is appended on the connection for small ones.
const MAX_SMALL_CALL: usize = 16 * 1024;

/// What the task needs.
#[derive(Debug)]
pub struct DeferredTaskResources {
    /// The workers' interface.
    pub handle: DeferredHandle,
    /// The requests of workers.
    pub requests: RequestQueue,
    /// The process's clock.
    pub clock: Arc<Clock>,
    /// The process's metrics.
    pub metrics: Arc<Metrics>,
    /// The process's graceful shutdown.
    pub drain: Arc<DrainManager>,
    /// Random number of this instance.
    pub instance_id: u64,
}

/// Lead of the store's clock over this process's, in microseconds, as of the last reply.
#[derive(Clone, Debug, Default)]
struct ClockLead(Rc<Cell<Option<i64>>>);

/// State of the streams.
#[derive(Debug)]
struct Refresh {
    status: Vec<DeferredRuleStatus>,
    /// Rules that ever stored calls.
    known_rules: BTreeSet<Box<str>>,
}

/// A rule whose calls are sent.
#[derive(Debug)]
struct RunningSender {
    rule: watch::Sender<Option<DeferredRule>>,
    appended: Rc<Notify>,
}

/// Connection on which calls are appended.
#[derive(Debug)]
struct Intake {
    streams: Rc<CallStreams>,
    timeout: Duration,
}

struct DeferredTask {
    handle: DeferredHandle,
    clock: Arc<Clock>,
    metrics: Arc<Metrics>,
    /// Connection on which small calls are appended.
    intake: Intake,
    /// Connection on which large calls are appended.
    bulk_intake: Intake,
    clock_lead: ClockLead,
    /// Connection of the senders: bodies on it do not delay those that are appended.
    streams: Rc<CallStreams>,
    rules: BTreeMap<Arc<str>, RunningSender>,
    senders: JoinSet<()>,
    rule_metrics: BTreeMap<Box<str>, DeferredMetrics>,
    /// Rules that ever stored calls.
    known_rules: BTreeSet<Box<str>>,
    /// Rules whose calls are not sent, and that have been reported.
    reported: BTreeSet<Box<str>>,
    refreshes: JoinSet<Option<Refresh>>,
}

/// Communicates with the store while it is polled, until the handle is finished.
pub async fn run(settings: &StoreSettings, resources: DeferredTaskResources) {
    let DeferredTaskResources { handle, requests, clock, metrics, drain, instance_id } = resources;
    // Random, because calls of a process of the same name that was killed must be claimed, not confirmed.
    let consumer = match settings.instance.as_deref() {
        Some(name) => format!("{name}-{instance_id:016x}"),
        None => format!("{instance_id:016x}"),
    };
    let connect = |timeout| CallStreams::new(settings, &consumer, timeout).map(Rc::new);
    let intake = |timeout| connect(timeout).map(|streams| Intake { streams, timeout });
    let bulk_timeout = settings.timeout.max(MIN_BULK_TIMEOUT);
    let connections = (intake(settings.timeout), intake(bulk_timeout), connect(bulk_timeout));
    let (Ok(intake), Ok(bulk_intake), Ok(streams)) = connections else {
        tracing::error!("cannot set up TLS for the store: no calls are deferred");
        return;
    };
    let task = DeferredTask {
        handle,
        clock,
        metrics,
        intake,
        bulk_intake,
        clock_lead: ClockLead::default(),
        streams,
        rules: BTreeMap::new(),
        senders: JoinSet::new(),
        rule_metrics: BTreeMap::new(),
        known_rules: BTreeSet::new(),
        reported: BTreeSet::new(),
        refreshes: JoinSet::new(),
    };
    task.run(requests, &drain).await;
}

impl DeferredTask {
    async fn run(mut self, RequestQueue(mut requests): RequestQueue, drain: &DrainManager) {
        let mut rules = self.handle.rules();
        let handle = self.handle.clone();
        let mut finishing = std::pin::pin!(handle.wait_until_finishing());
        let mut draining = std::pin::pin!(drain.wait_for_phase(DrainPhase::Draining));
        let (mut is_draining, mut is_finishing) = (false, false);
        let mut next_refresh = Instant::now();
        while !(is_finishing && self.senders.is_empty()) {
            tokio::select! {
                Some(request) = requests.recv() => self.handle_request(request),
                changed = rules.changed(), if !is_draining => {
                    if changed.is_ok() {
                        let current = Arc::clone(&rules.borrow_and_update());
                        self.set_rules(&current);
                        next_refresh = Instant::now();
                    }
                }
                Some(_) = self.senders.join_next() => {}
                Some(refreshed) = self.refreshes.join_next() => {
                    if let Ok(Some(refresh)) = refreshed {
                        self.publish(refresh);
                    }
                }
                () = &mut draining, if !is_draining => {
                    is_draining = true;
                    self.rules.values().for_each(RunningSender::stop);
                }
                () = &mut finishing, if !is_finishing => {
                    is_finishing = true;
                    self.rules.values().for_each(RunningSender::stop);
                }
                () = sleep_until(next_refresh) => {
                    next_refresh = Instant::now() + jittered(STATUS_INTERVAL);
                    self.start_refresh();
                }
            }
        }
    }

    fn handle_request(&mut self, request: StoreRequest) {
        match request {
            StoreRequest::Append(request) => self.append(request),
            StoreRequest::Requeue { rule, id } => {
                let streams = Rc::clone(&self.streams);
                drop(tokio::task::spawn_local(async move {
                    match streams.requeue(&rule, id.as_deref()).await {
                        Ok(count) => tracing::info!(rule = &*rule, count, "dead letters put back"),
                        Err(error) => tracing::warn!(%error, rule = &*rule, "cannot put back dead letters"),
                    }
                }));
            }
        }
    }

    /// Appends a call, on another connection if it is large: a connection whose timeout expires is closed, and with it all
    /// calls that are being appended on it fail.
    fn append(&mut self, AppendRequest { rule, deferral, call, memory, reply }: AppendRequest) {
        let appended = self.rules.get(&*rule).map(|running| Rc::clone(&running.appended));
        let metrics = self.rule_metrics(&rule);
        let intake = if call.len() > MAX_SMALL_CALL { &self.bulk_intake } else { &self.intake };
        let deadline = self.clock_lead.store_time(self.clock.now().saturating_add(intake.timeout));
        let (streams, lead, clock) =
            (Rc::clone(&intake.streams), self.clock_lead.clone(), Arc::clone(&self.clock));
        drop(tokio::task::spawn_local(async move {
            let result = streams.append(&rule, call, &deferral, deadline).await;
            drop(memory);
            let (outcome, stored) = match result {
                Ok((store_time, outcome)) => {
                    lead.record(store_time, clock.now());
                    accept_result(outcome)
                }
                Err(error) => {
                    tracing::debug!(%error, rule = &*rule, "cannot store a deferred call");
                    (AcceptOutcome::Unavailable, Err(NotStored::Unavailable))
                }
            };
            metrics.record_accepted(outcome);
            // The client may have disconnected; a stored call is sent all the same.
            let _ = reply.send(stored);
            if let (Ok(()), Some(appended)) = (stored, appended) {
                appended.notify_one();
            }
        }));
    }

    /// Starts senders of new rules, and stops those of rules that are gone.
    fn set_rules(&mut self, rules: &[DeferredRule]) {
        let gone = |name: &Arc<str>| !rules.iter().any(|rule| rule.name == *name);
        self.rules.retain(|name, running| {
            let is_gone = gone(name);
            if is_gone {
                running.stop();
            }
            !is_gone
        });
        for rule in rules {
            self.known_rules.insert((*rule.name).into());
            if let Some(running) = self.rules.get(&rule.name) {
                running.rule.send_replace(Some(rule.clone()));
                continue;
            }
            let (sender, receiver) = watch::channel(Some(rule.clone()));
            let appended = Rc::new(Notify::new());
            let context = SenderContext {
                streams: Rc::clone(&self.streams),
                handle: self.handle.clone(),
                metrics: self.rule_metrics(&rule.name),
                rule: receiver,
                appended: Rc::clone(&appended),
            };
            self.senders.spawn_local(CallSender::new(context, rule.clone()).run());
            self.rules.insert(Arc::clone(&rule.name), RunningSender { rule: sender, appended });
        }
    }

    fn rule_metrics(&mut self, rule: &str) -> DeferredMetrics {
        if let Some(metrics) = self.rule_metrics.get(rule) {
            return metrics.clone();
        }
        let metrics = self.metrics.deferred(rule);
        self.rule_metrics.insert(rule.into(), metrics.clone());
        metrics
    }

    fn start_refresh(&mut self) {
        if !self.refreshes.is_empty() {
            return;
        }
        let configured: Vec<Box<str>> = self.rules.keys().map(|name| (**name).into()).collect();
        let mut known = self.known_rules.clone();
        let (streams, lead, clock) =
            (Rc::clone(&self.streams), self.clock_lead.clone(), Arc::clone(&self.clock));
        self.refreshes.spawn_local(async move {
            known.extend(streams.register(&configured).await.ok()?);
            let mut all = Vec::with_capacity(known.len());
            for rule in &known {
                let (store_time, status) = streams.status(rule).await.ok()?;
                lead.record(store_time, clock.now());
                all.push(DeferredRuleStatus { is_configured: configured.contains(rule), ..status });
            }
            Some(Refresh { status: all, known_rules: known })
        });
    }

    fn publish(&mut self, Refresh { status, known_rules }: Refresh) {
        self.known_rules = known_rules;
        for rule in &status {
            let oldest = rule.oldest_age.unwrap_or_default();
            self.rule_metrics(&rule.rule).set_sizes(rule.stored, oldest, rule.dead);
            let is_left = !self.rules.contains_key(&*rule.rule) && rule.stored > 0;
            if !is_left {
                self.reported.remove(&rule.rule);
            } else if self.reported.insert(rule.rule.clone()) {
                tracing::warn!(
                    rule = &*rule.rule,
                    calls = rule.stored,
                    "deferred calls are stored for a rule that is not configured, and are not sent"
                );
            }
        }
        self.handle.set_status(DeferredStatus { rules: status });
    }
}

const fn accept_result(outcome: AppendOutcome) -> (AcceptOutcome, Result<(), NotStored>) {
    match outcome {
        AppendOutcome::Stored => (AcceptOutcome::Stored, Ok(())),
        AppendOutcome::Full => (AcceptOutcome::Full, Err(NotStored::Full)),
        AppendOutcome::Late => (AcceptOutcome::Unavailable, Err(NotStored::Unavailable)),
    }
}

impl RunningSender {
    fn stop(&self) {
        self.rule.send_replace(None);
    }
}

impl ClockLead {
    /// Records a reply with the time of the store that arrived at `now`. The lead is at least their difference, so a
    /// deadline by it is too early by the duration of the reply, and never too late.
    fn record(&self, store_time: StreamTime, now: Timestamp) {
        let store_time = i64::try_from(store_time.0).unwrap_or(i64::MAX);
        let now = i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX);
        self.0.set(Some(store_time.saturating_sub(now)));
    }

    /// Converts a time to the time of the store; `None` if that is not known.
    fn store_time(&self, at: Timestamp) -> Option<StreamTime> {
        let micros = i64::try_from(at.as_nanos() / 1000).ok()?.checked_add(self.0.get()?)?;
        Some(StreamTime(u64::try_from(micros).ok()?))
    }
}
