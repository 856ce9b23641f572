//! Task that communicates with the store, on a thread of its own, apart from all requests.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::desk::{Batch, Desk, Reply};
use super::handle::{Handle, Want};
use super::protocol::{self, Asker};
use super::redis::{Call, CallError, Client, Script, Value};
use super::settings::Settings;
use crate::clock::Clock;
use crate::jitter::{backoff, equal_jitter};
use crate::limiter::key::KeyHasher;
use crate::limiter::leases::SharedCounter;
use crate::limiter::{Fleet, Limiter};
use crate::telemetry::metrics::{StoreMetrics, StoreOutcome};

/// Interval between two registrations of an instance in a small fleet.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Maximum registrations per second of a whole fleet, as far as [`MAX_HEARTBEAT`] permits.
const FLEET_HEARTBEATS: u32 = 32;
/// Maximum interval between two registrations of an instance.
const MAX_HEARTBEAT: Duration = Duration::from_secs(4);
/// Maximum delay before a ban is reported to the store.
const BANS: Duration = Duration::from_millis(100);
/// Number of missed registrations after which an instance counts as gone.
const MISSED_HEARTBEATS: u32 = 4;
/// Base of the exponential backoff between attempts to reach an unreachable store; the maximum follows.
const PROBE: Duration = Duration::from_millis(40);
const MAX_PROBE: Duration = Duration::from_secs(2);

/// Resources of the task.
#[derive(Debug)]
pub struct Resources {
    /// The limiter with the counters.
    pub limiter: Arc<Limiter>,
    /// The process's clock.
    pub clock: Arc<Clock>,
    /// The workers' handle to the store.
    pub handle: Handle,
    /// Metrics of calls.
    pub metrics: StoreMetrics,
    /// Receiving end of the handle's queue.
    pub queue: mpsc::Receiver<Want>,
    /// Random values: the fleet's secret, if it has none yet, and the number of this instance.
    pub random: ([u64; 2], u32),
}

/// Client and scripts of the store.
struct Calls {
    client: Client,
    prefix: Box<str>,
    counting: Script,
    registering: Script,
}

/// State of the task.
struct Task<F> {
    store: Arc<Calls>,
    limiter: Arc<Limiter>,
    clock: Arc<Clock>,
    handle: Handle,
    metrics: StoreMetrics,
    desk: Desk,
    waiters: BTreeMap<SharedCounter, Vec<oneshot::Sender<()>>>,
    calls: JoinSet<Done>,
    instance: String,
    random: ([u64; 2], u32),
    /// Consecutive failed registrations.
    failures: u32,
    next_heartbeat: Instant,
    is_registering: bool,
    /// Fleet size in the last reply. A change takes effect when two consecutive replies agree.
    told: u32,
    joined: F,
}

/// Result of a call.
enum Done {
    Asked(Batch, Result<Reply, CallError>),
    Registered(Result<([u64; 2], u32), CallError>),
}

/// Communicates with the store while it is polled. `joined` is called with the fleet's secret and size when they are
/// known, and whenever they change.
pub async fn run(settings: &Settings, resources: Resources, joined: impl FnMut(Fleet)) {
    let Resources { limiter, clock, handle, metrics, queue, random } = resources;
    let instance = settings.instance.as_deref().map_or_else(|| format!("{:08x}", random.1), str::to_owned);
    let client = match Client::new(settings, &instance) {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%error, "cannot set up TLS for the store: limits are not shared");
            return;
        }
    };
    let store = Arc::new(Calls {
        client,
        prefix: settings.prefix.clone(),
        counting: Script::new(protocol::SCRIPT),
        registering: Script::new(include_str!("members.lua")),
    });
    let weight = f64::from(settings.weight.get());
    let task = Task {
        store,
        limiter,
        clock,
        handle,
        metrics,
        desk: Desk::new(Asker { instance: random.1, weight, ahead: 0 }, protocol::groups(&settings.topology)),
        waiters: BTreeMap::new(),
        calls: JoinSet::new(),
        instance,
        random,
        failures: 0,
        next_heartbeat: Instant::now(),
        is_registering: false,
        told: 0,
        joined,
    };
    task.run(queue).await;
}

impl<F: FnMut(Fleet)> Task<F> {
    async fn run(mut self, mut queue: mpsc::Receiver<Want>) {
        loop {
            let now = self.clock.now();
            let due = self.desk.review(&self.limiter, now);
            if !self.handle.is_away() {
                self.limiter.take_unreported_bans().into_iter().for_each(|counter| self.desk.ban(counter));
                self.limiter.take_unreported_debts().into_iter().for_each(|counter| self.desk.review_at(counter, now));
            }
            self.send();
            let after = due.map_or(HEARTBEAT, |due| due.since(self.clock.now()));
            let after = if self.limiter.has_shared_bans() { after.min(BANS) } else { after };
            let wake = self.next_heartbeat.min(Instant::now() + after);
            tokio::select! {
                want = queue.recv() => {
                    let Some(want) = want else { return };
                    self.want(want);
                    while let Ok(want) = queue.try_recv() {
                        self.want(want);
                    }
                }
                Some(done) = self.calls.join_next() => {
                    if let Ok(done) = done {
                        self.done(done);
                    }
                }
                () = sleep_until(wake) => self.heartbeat(),
            }
        }
    }

    fn want(&mut self, want: Want) {
        let Want { counter, asks, waiter } = want;
        if self.handle.is_away() {
            if asks {
                self.limiter.cancel_request(counter);
            }
            return;
        }
        if asks {
            self.desk.want(counter);
        }
        if let Some(waiter) = waiter {
            self.waiters.entry(counter).or_default().push(waiter);
        }
    }

    /// Starts all calls that are due.
    fn send(&mut self) {
        let waiters = &mut self.waiters;
        // Skips queries whose requests have all stopped waiting: the response of a busy store would be too late, and
        // later requests query again.
        let mut given_up = |counter| {
            let is_given_up =
                waiters.get(&counter).is_some_and(|all| all.iter().all(oneshot::Sender::is_closed));
            if is_given_up {
                waiters.remove(&counter);
            }
            is_given_up
        };
        while let Some(batch) = self.desk.next(&self.limiter, self.clock.now(), &mut given_up) {
            let store = Arc::clone(&self.store);
            let generation = format!("{:016x}", self.random.0[0] ^ self.clock.now().as_nanos());
            self.calls.spawn_local(async move {
                let replied = store.ask(&batch, generation).await;
                Done::Asked(batch, replied)
            });
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Asked(batch, Ok(reply)) => {
                let now = self.clock.now();
                self.metrics.called(StoreOutcome::Ok, now.since(batch.sent));
                let metrics = &self.metrics;
                self.desk.reply(&batch, &reply, (&self.limiter, now), |question, grant| {
                    metrics.asked(grant.granted, question.returned.0);
                });
                self.resume(&batch);
            }
            Done::Asked(batch, Err(error)) => {
                self.metrics.called(error.outcome(), Duration::ZERO);
                self.desk.fail(&batch, &self.limiter, self.clock.now());
                self.lost(&error);
                self.resume(&batch);
            }
            Done::Registered(Ok((secret, instances))) => {
                self.is_registering = false;
                self.registered(secret, instances);
                self.next_heartbeat = Instant::now() + self.interval();
            }
            Done::Registered(Err(error)) => {
                self.is_registering = false;
                self.lost(&error);
                self.failures = self.failures.saturating_add(1);
                self.next_heartbeat = Instant::now() + equal_jitter(backoff(PROBE, MAX_PROBE, self.failures));
            }
        }
    }

    /// Wakes the requests that wait for these counters, so that they decide again.
    fn resume(&mut self, batch: &Batch) {
        for question in &batch.questions {
            for waiter in self.waiters.remove(&question.counter).into_iter().flatten() {
                // The request may be gone.
                let _ = waiter.send(());
            }
        }
    }

    fn lost(&mut self, error: &CallError) {
        if !self.handle.is_away() {
            tracing::warn!(%error, "the store is unavailable: shared limits use `on_store_loss`");
            self.handle.set_away(true);
            self.metrics.up(false);
            self.next_heartbeat = Instant::now();
        }
        self.waiters.clear();
    }

    fn heartbeat(&mut self) {
        if self.is_registering || Instant::now() < self.next_heartbeat {
            return;
        }
        self.is_registering = true;
        let interval = self.interval();
        self.next_heartbeat = Instant::now() + interval;
        let store = Arc::clone(&self.store);
        let (instance, fleet) = (self.instance.clone(), self.limiter.fleet());
        let secret = if self.told > 0 { fleet.hasher.secret() } else { self.random.0 };
        self.calls.spawn_local(async move {
            Done::Registered(store.register(&instance, secret, interval * MISSED_HEARTBEATS).await)
        });
    }

    /// Returns the interval between registrations, which grows with the fleet to bound the load on the store.
    fn interval(&self) -> Duration {
        (HEARTBEAT * self.told / FLEET_HEARTBEATS).clamp(HEARTBEAT, MAX_HEARTBEAT)
    }

    fn registered(&mut self, secret: [u64; 2], instances: u32) {
        self.failures = 0;
        let fleet = self.limiter.fleet();
        let instances = NonZeroU32::new(instances).unwrap_or(NonZeroU32::MIN);
        let is_new = fleet.hasher.secret() != secret;
        let has_changed = fleet.instances != instances && (self.told == instances.get() || self.told == 0);
        self.told = instances.get();
        if is_new || has_changed {
            (self.joined)(Fleet { hasher: KeyHasher::new(secret), instances });
        }
        if self.handle.is_away() {
            tracing::info!(%instances, "the store is available: limits are shared");
            self.handle.set_away(false);
            self.metrics.up(true);
        }
        self.metrics.size(self.limiter.fleet().instances.get(), self.limiter.shared_counter_count());
    }
}

impl Calls {
    async fn ask(&self, batch: &Batch, new: String) -> Result<Reply, CallError> {
        let keys = batch.keys(&self.prefix);
        let run = self.client.run_id(&keys[0]).await?;
        let args: Vec<_> = batch.arguments(&run, new).into_iter().map(String::into_bytes).collect();
        let call = Call { script: &self.counting, keys: &keys, args: &args };
        let (value, ran) = self.client.call(call).await?;
        if ran != run {
            // Another process than the one named in the arguments executed the call and may lack its data. Its grant is
            // discarded.
            return Err(CallError::Unreachable("another server has taken over".to_owned()));
        }
        reply_of(value).ok_or_else(|| CallError::Other("malformed reply of the script".to_owned()))
    }

    async fn register(
        &self,
        instance: &str,
        [first, second]: [u64; 2],
        lapse: Duration,
    ) -> Result<([u64; 2], u32), CallError> {
        let keys = protocol::fleet_keys(&self.prefix);
        let secret = format!("{first:016x}{second:016x}");
        let lapse = lapse.as_millis().to_string();
        let args = [secret.into_bytes(), instance.as_bytes().to_vec(), lapse.into_bytes()];
        let (value, _) =
            self.client.call(Call { script: &self.registering, keys: &keys, args: &args }).await?;
        fleet_of(value).ok_or_else(|| CallError::Other("malformed secret of the fleet".to_owned()))
    }
}

fn reply_of(value: Value) -> Option<Reply> {
    let Value::Array(values) = value else { return None };
    let mut values = values.into_iter();
    let generation = text_of(values.next()?)?.into();
    let at = text_of(values.next()?)?.parse().ok()?;
    let numbers = |value| {
        let Value::Array(list) = value else { return None };
        let number = |value| if let Value::Int(number) = value { Some(number) } else { None };
        list.into_iter().map(number).collect::<Option<Vec<_>>>()
    };
    let grants = values.map(numbers).collect::<Option<Vec<_>>>()?;
    Some(Reply { generation, at, grants })
}

fn text_of(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

fn fleet_of(value: Value) -> Option<([u64; 2], u32)> {
    let Value::Array(values) = value else { return None };
    let [secret, Value::Int(instances)] = <[Value; 2]>::try_from(values).ok()? else { return None };
    let secret = text_of(secret)?;
    let word = |range| u64::from_str_radix(secret.get(range)?, 16).ok();
    Some(([word(0..16)?, word(16..32)?], u32::try_from(instances).unwrap_or(u32::MAX)))
}
