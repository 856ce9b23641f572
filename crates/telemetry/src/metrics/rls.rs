//! Statistics of Envoy's rate limit service, under the names that envoyproxy/ratelimit uses.
//!
//! They are stored by name, and a rule may include client input in names. So the number and the length of names are
//! bounded; everything beyond is counted under one common name. Each name takes five lines of every scrape.

mod unserved;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Display, Write as _};
use std::hash::BuildHasher as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use foldhash::quality::RandomState;
use parking_lot::Mutex;

use self::unserved::UnservedCalls;
pub use self::unserved::UnservedReason;
use super::exporter::{SECONDS, escape_label_value, render_header, write_histogram};
use super::families::{self, Family};
use super::final_outcome::{FinalOutcome, OUTCOMES};
use crate::atomic_counter::AtomicCounter;
use crate::histogram::Histogram;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;

/// Maximum number of names that come from rules alone. They grow with the number of rules and reloads.
const MAX_RULE_NAMES: usize = 100_000;
/// Maximum number of names with values of requests in them. With five lines each, a scrape takes some ten megabytes.
const MAX_REQUEST_NAMES: usize = 10_000;
/// Maximum number of unknown domains that are counted separately.
const MAX_DOMAINS: usize = 1_000;
/// Maximum length of a name that contains values of requests, in bytes.
const MAX_NAME_LENGTH: usize = 256;
const SHARDS: usize = 16;

/// Name under which everything beyond the bounds is counted.
const OTHER_NAMES: &str = "other_names";

/// Prefix of most names of the reference implementation.
const PREFIX: &str = "ratelimit.service";

/// Counts of one descriptor of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorHits {
    /// Hits requested.
    pub total: u64,
    /// Hits above the limit.
    pub over_limit: u64,
    /// Hits near the limit but not above it.
    pub near_limit: u64,
    /// Hits of requests within the limit.
    pub within_limit: u64,
    /// Hits above the limit that were admitted because the rule is in shadow mode.
    pub shadow_mode: u64,
}

impl DescriptorHits {
    fn add(&mut self, other: Self) {
        for (count, more) in self.fields_mut().into_iter().zip(other.fields()) {
            *count = count.saturating_add(more);
        }
    }

    /// Returns the counts in the order of [`HIT_FIELDS`].
    const fn fields(&self) -> [u64; 5] {
        [self.near_limit, self.over_limit, self.shadow_mode, self.total, self.within_limit]
    }

    const fn fields_mut(&mut self) -> [&mut u64; 5] {
        [
            &mut self.near_limit,
            &mut self.over_limit,
            &mut self.shadow_mode,
            &mut self.total,
            &mut self.within_limit,
        ]
    }
}

/// Suffix and family of each count.
const HIT_FIELDS: [(&str, &Family); 5] = [
    ("near_limit", &families::RATELIMIT_NEAR_LIMIT),
    ("over_limit", &families::RATELIMIT_OVER_LIMIT),
    ("shadow_mode", &families::RATELIMIT_SHADOW_MODE),
    ("total_hits", &families::RATELIMIT_TOTAL_HITS),
    ("within_limit", &families::RATELIMIT_WITHIN_LIMIT),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameOrigin {
    /// Rules only.
    Rules,
    /// Values of a request.
    Requests,
}

/// One shard of the names.
#[derive(Debug, Default)]
struct NameTable {
    /// Hashed with a random seed, because names may contain client input.
    entries: HashMap<Arc<str>, NamedHits, RandomState>,
    request_name_count: usize,
}

impl NameTable {
    fn has_room(&self, origin: NameOrigin) -> bool {
        let rule_name_count = self.entries.len().saturating_sub(self.request_name_count);
        match origin {
            NameOrigin::Rules => rule_name_count < MAX_RULE_NAMES / SHARDS,
            NameOrigin::Requests => self.request_name_count < MAX_REQUEST_NAMES / SHARDS,
        }
    }
}

type NameShard = Mutex<NameTable>;

/// Statistics of Envoy's rate limit service.
#[derive(Debug, Default)]
pub struct RlsStats {
    descriptors: [NameShard; SHARDS],
    domains_not_found: Mutex<HashMap<Box<str>, u64>>,
    /// Descriptors without a limit by domain. The domains are those of rules.
    without_limit: Mutex<HashMap<Box<str>, u64>>,
    calls: AtomicCounter,
    errors: AtomicCounter,
    shadowed: AtomicCounter,
    config_loads: AtomicCounter,
    failed_config_loads: AtomicCounter,
    unserved: UnservedCalls,
    durations: Histogram,
    outcomes: [AtomicCounter; OUTCOMES],
    /// Number of counts under [`OTHER_NAMES`].
    overflows: AtomicCounter,
    has_warned: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct NamedHits {
    /// Length of the domain with which the name begins; `None` for [`OTHER_NAMES`].
    domain_length: Option<usize>,
    hits: DescriptorHits,
}

impl RlsStats {
    /// Counts hits of a descriptor. Its name begins with `domain` and a full stop.
    pub fn record_hits(&self, domain: &str, name: &Arc<str>, origin: NameOrigin, hits: DescriptorHits) {
        if origin == NameOrigin::Requests && name.len() > MAX_NAME_LENGTH {
            return self.record_other_hits(hits);
        }
        let mut names = self.shard(name).lock();
        if let Some(entry) = names.entries.get_mut(&**name) {
            return entry.hits.add(hits);
        }
        if !names.has_room(origin) {
            drop(names);
            return self.record_other_hits(hits);
        }
        names.request_name_count += usize::from(origin == NameOrigin::Requests);
        names.entries.insert(Arc::clone(name), NamedHits { domain_length: Some(domain.len()), hits });
    }

    /// Returns the hits counted under `name`.
    pub fn hits(&self, name: &str) -> DescriptorHits {
        self.shard(name).lock().entries.get(name).map(|entry| entry.hits).unwrap_or_default()
    }

    /// Counts hits under the common name.
    fn record_other_hits(&self, hits: DescriptorHits) {
        let mut names = self.shard(OTHER_NAMES).lock();
        let entry = NamedHits { domain_length: None, hits: DescriptorHits::default() };
        names.entries.entry(OTHER_NAMES.into()).or_insert(entry).hits.add(hits);
        drop(names);
        self.record_overflow();
    }

    fn shard(&self, name: &str) -> &NameShard {
        &self.descriptors[FixedState::default().hash_one(name) as usize % SHARDS]
    }

    /// Counts descriptors of a domain that is not configured.
    pub fn record_unknown_domain(&self, domain: &str, descriptors: u64) {
        let mut all = self.domains_not_found.lock();
        if let Some(count) = all.get_mut(domain) {
            *count = count.saturating_add(descriptors);
            return;
        }
        let has_room = all.len() < MAX_DOMAINS && domain.len() <= MAX_NAME_LENGTH;
        let count = all.entry(if has_room { domain } else { OTHER_NAMES }.into()).or_default();
        *count = count.saturating_add(descriptors);
        drop(all);
        if !has_room {
            self.record_overflow();
        }
    }

    /// Counts descriptors of a known domain to which no limit applies.
    pub fn record_without_limit(&self, domain: &str, descriptors: u64) {
        let mut all = self.without_limit.lock();
        if let Some(count) = all.get_mut(domain) {
            *count = count.saturating_add(descriptors);
        } else if all.len() < MAX_RULE_NAMES {
            all.insert(domain.into(), descriptors);
        }
    }

    fn record_overflow(&self) {
        self.overflows.increment();
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                max_names = MAX_REQUEST_NAMES,
                max_length = MAX_NAME_LENGTH,
                counted_as = OTHER_NAMES,
                "too many or too long names in rate limit statistics: further ones share one name"
            );
        }
    }

    /// Counts a call and its duration; `is_error` if no decision was possible.
    pub fn record_call(&self, duration: Duration, is_error: bool) {
        self.calls.increment();
        self.durations.record(duration);
        if is_error {
            self.errors.increment();
        }
    }

    /// Counts the final outcome of a call that was decided.
    pub fn record_outcome(&self, outcome: DecisionOutcome) {
        self.outcomes[FinalOutcome::Decided(outcome).position()].increment();
    }

    /// Returns the decided calls by their outcome.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (FinalOutcome, u64)> {
        FinalOutcome::all().zip(self.outcomes.iter().map(AtomicCounter::get))
    }

    /// Counts calls of `client` that were not served, and logs them, at intervals, with what is wrong.
    pub fn record_unserved(
        &self,
        reason: UnservedReason,
        calls: u64,
        client: Option<SocketAddr>,
        now: Timestamp,
        detail: &dyn Display,
    ) {
        self.unserved.record(reason, calls, client, now, detail);
    }

    /// Counts a request that was admitted only because the whole service is in shadow mode.
    pub fn record_shadowed(&self) {
        self.shadowed.increment();
    }

    /// Counts a set of rules that was loaded, or failed to load.
    pub fn record_config_load(&self, is_valid: bool) {
        if is_valid { &self.config_loads } else { &self.failed_config_loads }.increment();
    }

    /// Returns every counter under its dotted name, sorted, for `/stats` and statsd.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (name, entry) in self.entries() {
            let name = sanitized(&name);
            for ((field, _), count) in HIT_FIELDS.iter().zip(entry.hits.fields()) {
                add_count(&mut all, format!("{PREFIX}.rate_limit.{name}.{field}"), count);
            }
        }
        for (domain, count) in self.domains_not_found.lock().iter() {
            let domain = sanitized(domain);
            add_count(&mut all, format!("{PREFIX}.rate_limit.{domain}.domain_not_found"), *count);
        }
        for (name, count) in [
            ("ratelimit.service.call.should_rate_limit.service_error", &self.errors),
            ("ratelimit.service.config_load_error", &self.failed_config_loads),
            ("ratelimit.service.config_load_success", &self.config_loads),
            ("ratelimit.service.global_shadow_mode", &self.shadowed),
            ("ratelimit_server.ShouldRateLimit.total_requests", &self.calls),
        ] {
            all.insert(name.to_owned(), count.get());
        }
        all
    }

    /// Renders Prometheus' text format. The first two levels of a descriptor's name become labels, as in the reference
    /// implementation; counts of lower levels are summed.
    pub fn render(&self) -> String {
        let mut series: BTreeMap<[String; 3], DescriptorHits> = BTreeMap::new();
        for (name, entry) in self.entries() {
            series.entry(label_values(&name, entry.domain_length)).or_default().add(entry.hits);
        }
        let mut text = String::new();
        for (index, (_, family)) in HIT_FIELDS.iter().enumerate() {
            text.push_str(&render_header(family));
            for (labels, hits) in &series {
                write_sample(&mut text, family, &format_labels(labels), hits.fields()[index]);
            }
        }
        for (family, counts) in [
            (&families::RATELIMIT_DOMAIN_NOT_FOUND, &self.domains_not_found),
            (&families::RATELIMIT_WITHOUT_LIMIT, &self.without_limit),
        ] {
            text.push_str(&render_header(family));
            let counts: BTreeMap<_, _> =
                counts.lock().iter().map(|(domain, count)| (sanitized(domain), *count)).collect();
            for (domain, count) in counts {
                let labels = format!("{{domain=\"{}\"}}", escape_label_value(&domain));
                write_sample(&mut text, family, &labels, count);
            }
        }
        self.render_calls(&mut text);
        text
    }

    fn render_calls(&self, text: &mut String) {
        for (family, labels, count) in [
            (&families::RATELIMIT_ERRORS, "{err_type=\"service_error\"}", &self.errors),
            (&families::RATELIMIT_TOTAL_REQUESTS, "{grpc_method=\"ShouldRateLimit\"}", &self.calls),
            (&families::RATELIMIT_GLOBAL_SHADOW_MODE, "", &self.shadowed),
            (&families::RATELIMIT_LOADS, "", &self.config_loads),
            (&families::RATELIMIT_FAILED_LOADS, "", &self.failed_config_loads),
            (&families::RATELIMIT_OVERFLOWS, "", &self.overflows),
        ] {
            text.push_str(&render_header(family));
            write_sample(text, family, labels, count.get());
        }
        let family = &families::RATELIMIT_OUTCOMES;
        text.push_str(&render_header(family));
        for (outcome, count) in self.outcomes() {
            if let FinalOutcome::Decided(outcome) = outcome {
                write_sample(text, family, &format!("{{outcome=\"{}\"}}", outcome.as_str()), count);
            }
        }
        self.unserved.render(text);
        let family = &families::RATELIMIT_RESPONSE_TIME;
        text.push_str(&render_header(family));
        write_histogram(text, family.name, "grpc_method=\"ShouldRateLimit\"", &self.durations, SECONDS);
    }

    fn entries(&self) -> Vec<(Arc<str>, NamedHits)> {
        let shard_entries = |shard: &NameShard| -> Vec<_> {
            shard.lock().entries.iter().map(|(name, entry)| (Arc::clone(name), *entry)).collect()
        };
        self.descriptors.iter().flat_map(shard_entries).collect()
    }
}

fn add_count(all: &mut BTreeMap<String, u64>, name: String, count: u64) {
    let sum = all.entry(name).or_default();
    *sum = sum.saturating_add(count);
}

fn write_sample(text: &mut String, family: &Family, labels: &str, count: u64) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}{labels} {count}", family.name);
}

/// Returns the domain, the first and the second level.
fn label_values(name: &str, domain_length: Option<usize>) -> [String; 3] {
    let (domain, rest) = domain_length.and_then(|length| name.split_at_checked(length)).unwrap_or((name, ""));
    let rest = sanitized(rest.strip_prefix('.').unwrap_or(rest));
    let mut levels = rest.split('.').map(str::to_owned);
    [sanitized(domain), levels.next().unwrap_or_default(), levels.next().unwrap_or_default()]
}

fn format_labels([domain, first, second]: &[String; 3]) -> String {
    let mut text =
        format!("{{domain=\"{}\",key1=\"{}\"", escape_label_value(domain), escape_label_value(first));
    if !second.is_empty() {
        let _ = write!(text, ",key2=\"{}\"", escape_label_value(second));
    }
    text + "}"
}

/// Replaces characters of a name that have a meaning in statsd by `_`: `:` and `|`, the dots of IPv4 addresses, and
/// control characters.
pub fn sanitized(key: &str) -> String {
    let mut clean = String::with_capacity(key.len());
    let mut rest = key;
    while let Some(first) = rest.chars().next() {
        let is_number_start = !clean.ends_with(|before: char| before.is_ascii_digit());
        if let Some(length) = ipv4_length(rest).filter(|_| is_number_start) {
            clean.push_str(&rest[..length].replace('.', "_"));
            rest = &rest[length..];
            continue;
        }
        let is_special = matches!(first, ':' | '|') || first.is_control();
        clean.push(if is_special { '_' } else { first });
        rest = &rest[first.len_utf8()..];
    }
    clean
}

/// Returns the length of the IPv4 address at the start of `text`.
fn ipv4_length(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let candidate = &text[..end];
    let (fourth, _) = candidate.match_indices('.').nth(3).unwrap_or((end, ""));
    candidate[..fourth].parse::<std::net::Ipv4Addr>().ok().map(|_| fourth)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(total: u64) -> DescriptorHits {
        DescriptorHits { total, within_limit: total, ..DescriptorHits::default() }
    }

    #[test]
    fn rls_stats_sum_lower_levels_in_labels_but_not_in_names() {
        let stats = RlsStats::default();
        stats.record_hits("a.b", &"a.b.k_v.l.m".into(), NameOrigin::Rules, hits(2));
        stats.record_hits("a.b", &"a.b.k_v.l.n".into(), NameOrigin::Rules, hits(3));
        let text = stats.render();
        let line = "ratelimit_service_rate_limit_total_hits{domain=\"a.b\",key1=\"k_v\",key2=\"l\"} 5\n";
        assert!(text.contains(line), "{text}");
        let counters = stats.counters();
        assert_eq!(counters["ratelimit.service.rate_limit.a.b.k_v.l.m.total_hits"], 2);
        assert_eq!(counters["ratelimit.service.rate_limit.a.b.k_v.l.n.total_hits"], 3);
    }

    #[test]
    fn rls_stats_limit_number_and_length_of_names_from_requests() {
        let stats = RlsStats::default();
        let total = 4 * MAX_REQUEST_NAMES as u64;
        for name in 0..total {
            stats.record_hits("d", &format!("d.k_{name}").into(), NameOrigin::Requests, hits(1));
        }
        for length in MAX_NAME_LENGTH..MAX_NAME_LENGTH + 1000 {
            stats.record_hits(
                "d",
                &format!("d.k_{}", "x".repeat(length)).into(),
                NameOrigin::Requests,
                hits(1),
            );
        }
        for domain in 0..4 * MAX_DOMAINS {
            stats.record_unknown_domain(&format!("{}{domain}", "x".repeat(domain % 400)), 1);
        }
        let entries = stats.entries();
        assert!(entries.len() <= MAX_REQUEST_NAMES + 1, "{}", entries.len());
        let counted: u64 = entries.iter().map(|(_, entry)| entry.hits.total).sum();
        assert_eq!(counted, total + 1000, "hits beyond the maximum number of names are counted together");
        assert!(stats.domains_not_found.lock().len() <= MAX_DOMAINS + 1);
        assert_eq!(stats.domains_not_found.lock().values().sum::<u64>(), 4 * MAX_DOMAINS as u64);
        let text = stats.render();
        assert!(text.len() < 10_000_000, "{} bytes", text.len());
        let others = text.lines().find_map(|line| line.strip_prefix("weir_rate_limit_stat_overflows_total "));
        assert!(others.unwrap().parse::<u64>().unwrap() >= total - MAX_REQUEST_NAMES as u64 + 1000);
    }

    #[test]
    fn rls_stats_reserve_room_for_names_of_rules() {
        let stats = RlsStats::default();
        for name in 0..2 * MAX_REQUEST_NAMES {
            stats.record_hits("d", &format!("d.k_{name}").into(), NameOrigin::Requests, hits(1));
        }
        let long: Arc<str> = format!("d.{}", "rule".repeat(100)).into();
        stats.record_hits("d", &long, NameOrigin::Rules, hits(7));
        assert_eq!(stats.counters()[&format!("ratelimit.service.rate_limit.{long}.total_hits")], 7);
    }

    #[test]
    fn rls_stat_names_are_sanitized() {
        let stats = RlsStats::default();
        stats.record_hits("d", &"d.k_\n\"x 10.0.0.1:80|c".into(), NameOrigin::Requests, hits(1));
        let text = stats.render();
        assert!(text.contains("key1=\"k__\\\"x 10_0_0_1_80_c\"} 1"), "{text}");
    }
}
