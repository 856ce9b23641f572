//! Envoy's rate limit quota service, as far as it needs no network: buckets, who asks for them, and what each may have.
//!
//! Envoys decide by themselves, with a token bucket that they are assigned, and report what they let pass and what not.
//! Here a rule's limit is divided among those that report on the same bucket: each gets what it asks for as long as that
//! is less than an equal share, and what is left goes in equal shares to those that ask for more. All shares together
//! never exceed the limit. Whoever goes without a word keeps its share until its assignment has run out, since it may
//! be using it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::rules::{Level, Rate, Rules};
use super::unit::Unit;
use crate::limiter::timestamp::Timestamp;

/// How long an assignment holds. Envoy reports every five seconds; this is what it may miss.
pub const TIME_TO_LIVE: Duration = Duration::from_secs(20);

/// Buckets in all, and entries of one: what is over is not assigned anything.
const MOST_BUCKETS: usize = 100_000;
const MOST_ENTRIES: usize = 8;

/// Clients of one bucket. More than these and a share is hardly worth dividing.
const MOST_CLIENTS: usize = 10_000;

/// Who reports: one stream.
pub type StreamId = u64;

/// What a bucket is known by.
pub type BucketId = BTreeMap<String, String>;

/// What happened in a bucket since the last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bucket.
    pub bucket: BucketId,
    /// Since the last report; nothing in the first one.
    pub elapsed: Duration,
    /// Requests that passed.
    pub allowed: u64,
    /// Requests that did not.
    pub denied: u64,
}

/// What an Envoy may let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Everything.
    AllowAll,
    /// Nothing.
    DenyAll,
    /// So many at once, and as many again over this time.
    Tokens {
        /// How many.
        count: u32,
        /// Over which time.
        per: Duration,
    },
}

/// What one client is told of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The client.
    pub to: StreamId,
    /// The bucket.
    pub bucket: BucketId,
    /// What it may have from now on, for [`TIME_TO_LIVE`]; `None` if nothing is said of the bucket any more.
    pub strategy: Option<Strategy>,
}

/// Everything that is divided.
#[derive(Debug, Default)]
pub struct Quotas {
    buckets: HashMap<(Box<str>, BucketId), HashMap<StreamId, Client>>,
    last_sweep: Timestamp,
}

/// One client of one bucket.
#[derive(Clone, Copy, Debug)]
struct Client {
    /// What it asks for, in requests per unit of the limit.
    demand: f64,
    /// What it was told last, and how long that holds.
    told: Option<Strategy>,
    expires: Timestamp,
    is_gone: bool,
}

impl Quotas {
    /// Takes a report, and answers who is to be told what. The reporter is told of every bucket that it reports on and
    /// that a rule is for; others of those whose share has changed.
    pub fn report(
        &mut self,
        rules: &Rules,
        (from, domain): (StreamId, &str),
        usages: Vec<Usage>,
        now: Timestamp,
    ) -> Vec<Assignment> {
        self.sweep(now);
        let mut told = Vec::new();
        for usage in usages {
            match limit(rules, domain, &usage.bucket) {
                Some(limit) => self.note(domain, from, &usage, limit, now, &mut told),
                // What a rule was for until now is given back.
                None => {
                    let clients = self.buckets.get_mut(&(domain.into(), usage.bucket.clone()));
                    if clients.and_then(|clients| clients.remove(&from)).is_some() {
                        told.push(Assignment { to: from, bucket: usage.bucket, strategy: None });
                    }
                }
            }
        }
        told
    }

    /// A client has gone. What it was told holds until it runs out.
    pub fn leave(&mut self, stream: StreamId) {
        for clients in self.buckets.values_mut() {
            if let Some(client) = clients.get_mut(&stream) {
                (client.is_gone, client.demand) = (true, 0.0);
            }
        }
    }

    fn note(
        &mut self,
        domain: &str,
        from: StreamId,
        usage: &Usage,
        limit: Bound,
        now: Timestamp,
        told: &mut Vec<Assignment>,
    ) {
        let key = (Box::from(domain), usage.bucket.clone());
        if !self.buckets.contains_key(&key) && self.buckets.len() >= MOST_BUCKETS {
            return;
        }
        let clients = self.buckets.entry(key).or_default();
        if !clients.contains_key(&from) && clients.len() >= MOST_CLIENTS {
            return;
        }
        let demand = limit.demand(usage);
        let client =
            clients.entry(from).or_insert(Client { demand, told: None, expires: now, is_gone: false });
        client.is_gone = false;
        // Half of what was before: one quiet report does not take everything away, nor does one burst get it.
        client.demand = if client.told.is_some() { f64::midpoint(client.demand, demand) } else { demand };
        let mut shares = limit.divide(clients, now);
        let before = |stream: StreamId| clients.get(&stream).and_then(|client| client.told).map_or(0, tokens);
        // Whoever gets less is told first.
        shares.sort_by_key(|(stream, strategy)| tokens(*strategy) > before(*stream));
        for (stream, strategy) in shares {
            let Some(client) = clients.get_mut(&stream) else { continue };
            if stream == from || client.told != Some(strategy) {
                (client.told, client.expires) = (Some(strategy), now.saturating_add(TIME_TO_LIVE));
                told.push(Assignment { to: stream, bucket: usage.bucket.clone(), strategy: Some(strategy) });
            }
        }
    }

    /// Forgets what has run out, once in a while.
    fn sweep(&mut self, now: Timestamp) {
        if now.since(self.last_sweep) < TIME_TO_LIVE {
            return;
        }
        self.last_sweep = now;
        self.buckets.retain(|_, clients| {
            clients.retain(|_, client| !(client.is_gone && client.expires <= now));
            !clients.is_empty()
        });
    }
}

/// What all clients of a bucket may have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Everything,
    Rate(Rate),
}

impl Bound {
    /// Requests per unit that `usage` stands for.
    fn demand(self, usage: &Usage) -> f64 {
        let Self::Rate(Rate { requests_per_unit, unit }) = self else { return 0.0 };
        let seen = usage.allowed.saturating_add(usage.denied) as f64;
        if usage.elapsed.is_zero() {
            // The first report comes with the first request: nobody knows yet, so it may have what there is.
            return f64::from(requests_per_unit);
        }
        seen / usage.elapsed.as_secs_f64() * unit.period().duration().as_secs_f64()
    }

    /// What each client that is there may have.
    fn divide(self, clients: &HashMap<StreamId, Client>, now: Timestamp) -> Vec<(StreamId, Strategy)> {
        let mut here: Vec<_> = clients.iter().filter(|(_, client)| !client.is_gone).collect();
        let Self::Rate(Rate { requests_per_unit, unit }) = self else {
            return here.into_iter().map(|(stream, _)| (*stream, Strategy::AllowAll)).collect();
        };
        let gone = clients.values().filter(|client| client.is_gone && client.expires > now);
        let held: u64 = gone.filter_map(|client| client.told).map(tokens).sum();
        let mut left = u64::from(requests_per_unit).saturating_sub(held);
        // Those who ask for the least first: what they do not need is for the others.
        here.sort_by(|(one, first), (other, second)| {
            first.demand.total_cmp(&second.demand).then_with(|| one.cmp(other))
        });
        let mut shares = Vec::with_capacity(here.len());
        for (index, (stream, client)) in here.iter().enumerate() {
            let rest = (here.len() - index) as u64;
            // Who was late gets what division leaves over.
            let equal = left / rest;
            let wanted = (client.demand * 1.25).ceil().max(1.0);
            let share = if rest == 1 { left } else { equal.min(wanted as u64) };
            left -= share;
            shares.push((**stream, strategy(share, unit)));
        }
        shares
    }
}

fn strategy(share: u64, unit: Unit) -> Strategy {
    match u32::try_from(share).unwrap_or(u32::MAX) {
        0 => Strategy::DenyAll,
        count => Strategy::Tokens { count, per: unit.period().duration() },
    }
}

fn tokens(strategy: Strategy) -> u64 {
    match strategy {
        Strategy::Tokens { count, .. } => count.into(),
        Strategy::AllowAll | Strategy::DenyAll => 0,
    }
}

/// What a rule says of a bucket. Its entries have no order, so any will do in which they lead to a limit; the one that
/// sorts first is taken.
fn limit(rules: &Rules, domain: &str, bucket: &BucketId) -> Option<Bound> {
    if bucket.is_empty() || bucket.len() > MOST_ENTRIES {
        return None;
    }
    let entries: Vec<_> = bucket.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let mut steps = MOST_STEPS;
    descend(rules.domain(domain)?, &entries, &mut steps)
}

/// Looks at nodes for one bucket: a tree in which all orders of eight entries lead on would have 100 000.
const MOST_STEPS: usize = 1_000;

fn descend(level: &Level, entries: &[(&str, &str)], steps: &mut usize) -> Option<Bound> {
    for (index, (key, value)) in entries.iter().enumerate() {
        *steps = steps.checked_sub(1)?;
        let Some(node) = level.find(key, &format!("{key}_{value}")) else { continue };
        let rest: Vec<_> = entries[..index].iter().chain(&entries[index + 1..]).copied().collect();
        let found = match (&node.rule, rest.is_empty()) {
            (Some(rule), true) => Some(match rule.rate {
                Some(rate) if !rule.shadow_mode => Bound::Rate(rate),
                // What only looks on refuses nobody.
                Some(_) | None => Bound::Everything,
            }),
            (None, true) => None,
            (_, false) => descend(&node.below, &rest, steps),
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests;
