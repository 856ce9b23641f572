//! Makes the report of what was counted.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::{
    ClientReport, ClientsReport, ComparisonReport, DemandReport, KeyReport, LimitCandidate, LogReport,
    MinuteReport, OutcomeCounts, ReplayReport, RuleComparison, RuleReport, SeriesReport, grouped, problems,
};
use crate::clients::ClientCount;
use crate::decisions::Replay;
use crate::record::LineCounts;
use crate::simulation::Simulation;
use crate::tally::RuleTally;
use crate::tally::histogram::CountHistogram;
use crate::tally::keys::{KeyTable, ListedKey};
use crate::tally::series::CLASSES;
use crate::timeline::{MAX_WAITING, MAX_WAITING_BYTES, REORDERING_WINDOW};
use crate::{ReplayOptions, ReplayRules};
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::rule::{Action, Rule, RuleLimit};
use weir_telemetry::rfc3339;

impl ReplayReport {
    /// Creates the report of a replay that took `elapsed`.
    pub(crate) fn new(
        rules: &ReplayRules<'_>,
        against: Option<&ReplayRules<'_>>,
        options: &ReplayOptions,
        mut replay: Replay,
        logs: Vec<LogReport>,
        elapsed: Duration,
    ) -> Self {
        let mut counts = LineCounts::default();
        logs.iter().for_each(|log| counts.add(log.counts));
        let notes = notes(rules, against, options, &replay);
        let rule_reports = rule_reports(&mut replay.simulation, options.top);
        let comparison =
            replay.before.as_ref().map(|before| ComparisonReport::new(before, &replay, options.top));
        let tally = &replay.simulation.tally;
        let disorder = problems::disorder(replay.requests, replay.late, counts.implausible_time);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            config: rules.name.clone(),
            against: against.map(|against| against.name.clone()),
            counts,
            usable: disorder.is_none(),
            problems: disorder
                .into_iter()
                .chain(logs.iter().filter_map(problems::cut_off))
                .chain(logs.iter().filter_map(problems::no_request))
                .collect(),
            logs,
            from: replay.first.map(rfc3339),
            to: replay.first.map(|_| rfc3339(replay.last)),
            requests: replay.requests,
            passed: tally.passed,
            delayed: tally.delayed,
            rejected: tally.rejected,
            malformed: replay.malformed,
            late: replay.late,
            notes,
            rules: rule_reports,
            clients: ClientsReport {
                rejected: replay.clients.number(|client| client.rejected > 0),
                uncounted_requests: replay.clients.uncounted,
                top: client_reports(&replay, options.top, |client| client.rejected),
            },
            comparison,
            seconds: elapsed.as_secs_f64(),
        }
    }
}

/// Returns what the replay assumes, and where it differs from live traffic.
fn notes(
    rules: &ReplayRules<'_>,
    against: Option<&ReplayRules<'_>>,
    options: &ReplayOptions,
    replay: &Replay,
) -> Vec<String> {
    let mut notes = Vec::new();
    let both_rules = || rules.policy.rules.iter().chain(against.into_iter().flat_map(|it| &*it.policy.rules));
    if both_rules().any(|rule| rule.shared().is_some()) {
        notes.push(
            "shared limits were counted by one limiter: together, the instances admit no more than that"
                .into(),
        );
    }
    if both_rules().any(Rule::is_elastic) {
        let factors = both_rules().filter_map(|rule| {
            Some(rule.elastic_range()?.factor_at(Headroom::from_fraction(options.headroom)))
        });
        let factors: BTreeSet<String> = factors.map(|factor| format!("{factor:.2}")).collect();
        let factors: Vec<String> = factors.into_iter().collect();
        notes.push(format!("the factor of elastic limits was {} at all times", factors.join(", ")));
    }
    if replay.simulation.tally.rules.iter().any(|rule| rule.not_simulated > 0) {
        notes.push("limits of other rate limit services (scope: rls) were not simulated".into());
    }
    notes.extend(replay.peers.note(replay.requests));
    if replay.requests > 0 && replay.has_whole_seconds {
        notes.push(
            "the logs have whole seconds: requests of one second arrived at once, which makes bursts larger than \
             they were"
                .into(),
        );
    }
    if replay.late > 0 {
        notes.push(format!(
            "requests may be out of order by {} s, {} requests and {} MiB; {} were later than that and were decided late",
            REORDERING_WINDOW.as_secs(),
            grouped(MAX_WAITING as u64),
            MAX_WAITING_BYTES >> 20,
            grouped(replay.late),
        ));
    }
    notes
}

fn rule_reports(simulation: &mut Simulation, top: usize) -> Vec<RuleReport> {
    let peaks: Vec<_> = simulation.tally.rules.iter_mut().map(RuleTally::finish).collect();
    let rules = simulation.policy().rules.rules().iter();
    let tallies = simulation.tally.rules.iter().zip(&peaks);
    let reports = rules.zip(tallies).enumerate().map(|(index, (rule, (tally, peaks)))| {
        let undecidable = simulation.needs().undecidable(index);
        RuleReport { undecidable, ..RuleReport::new(rule, tally, peaks, top) }
    });
    reports.collect()
}

impl RuleReport {
    fn new(rule: &Rule, tally: &RuleTally, peaks: &[CountHistogram], top: usize) -> Self {
        let (action, limiting) = match &rule.action {
            Action::Allow => ("allow", None),
            Action::Deny => ("deny", None),
            Action::Limit(limiting) => ("limit", Some(limiting)),
        };
        let outcomes = OutcomeCounts::from(tally.outcomes);
        let mut demands = demand_reports(rule, tally, peaks).into_iter();
        Self {
            name: rule.name.to_string(),
            action,
            limits: limits_of(rule),
            key: limiting.map(|limiting| limiting.key.to_string()),
            throttle: limiting.map(|limiting| limiting.throttle.to_string()),
            outcomes,
            rejected_by_others: tally.rejected_by_others,
            not_simulated: tally.not_simulated,
            undecidable: Vec::new(),
            mean_delay_ms: tally.delays.as_secs_f64() * 1e3 / outcomes.delayed.max(1) as f64,
            max_delay_ms: tally.max_delay.as_secs_f64() * 1e3,
            busiest_minute: busiest_minute(tally),
            keys: tally.keys.number(),
            uncounted_requests: tally.keys.uncounted,
            affected_keys: tally.keys.listed().len(),
            unlisted_requests: tally.keys.unlisted,
            top: key_reports(tally, top),
            demand: demands.next(),
            further_demand: demands.collect(),
            series: SeriesReport {
                start: rfc3339(tally.series.start()),
                minutes: tally.series.minutes(),
                classes: CLASSES,
                intervals: tally.series.intervals().to_vec(),
            },
        }
    }
}

/// Returns the limits as configured.
fn limits_of(rule: &Rule) -> Vec<String> {
    let in_flight = match &rule.action {
        Action::Limit(limiting) => limiting.in_flight,
        Action::Allow | Action::Deny => None,
    };
    let rates = rule.limits().iter().map(|limit| limit.quota.limit().to_string());
    rates.chain(in_flight.map(|limit| format!("{limit} in flight"))).collect()
}

fn busiest_minute(tally: &RuleTally) -> Option<MinuteReport> {
    let busiest = tally.series.busiest();
    (busiest.requests > 0).then(|| MinuteReport {
        at: rfc3339(Timestamp::from_secs(busiest.minute.saturating_mul(60))),
        requests: busiest.requests,
        rejected: busiest.rejected,
    })
}

fn key_reports(tally: &RuleTally, top: usize) -> Vec<KeyReport> {
    let mut keys: Vec<_> = tally.keys.listed().iter().collect();
    keys.sort_by_key(|key| std::cmp::Reverse(key.outcomes.iter().sum::<u64>()));
    let report = |key: &ListedKey| KeyReport {
        key: key.text.to_string(),
        outcomes: OutcomeCounts::from(key.outcomes),
        first: rfc3339(key.first),
        last: rfc3339(key.last),
    };
    keys.into_iter().take(top).map(report).collect()
}

/// Returns the demand under each limit of a rule with a key, if any request counts against it.
fn demand_reports(rule: &Rule, tally: &RuleTally, peaks: &[CountHistogram]) -> Vec<DemandReport> {
    let Action::Limit(limiting) = &rule.action else { return Vec::new() };
    let tables = std::iter::once(&tally.keys).chain(&tally.further).zip(peaks);
    let limits = limiting.limits.iter().zip(tables);
    limits
        .filter(|(_, (table, _))| !limiting.key.0.is_empty() && table.requests() > 0)
        .map(|(limit, (table, peaks))| {
            let key = limit.own_key().unwrap_or(&limiting.key).to_string();
            DemandReport::new(limit, key, peaks, table)
        })
        .collect()
}

impl DemandReport {
    fn new(limit: &RuleLimit, key: String, peaks: &CountHistogram, table: &KeyTable) -> Self {
        let configured = limit.quota.limit();
        let (p50, p99, p999, max) =
            (peaks.quantile(500), peaks.quantile(990), peaks.quantile(999), peaks.quantile(1000));
        let count = u64::from(configured.count.get());
        let limits: BTreeSet<u64> = [count, p50, p99, p999, max].into_iter().filter(|it| *it > 0).collect();
        let candidate = |limit: u64| LimitCandidate {
            limit,
            keys_above: peaks.excess(limit).0,
            requests_above: table.per_period.excess(limit).1,
        };
        Self {
            period: configured.period.to_string(),
            limit: count,
            key,
            keys: table.number(),
            requests: table.requests(),
            p50,
            p99,
            p999,
            max,
            candidates: limits.into_iter().map(candidate).collect(),
            histogram: peaks.buckets().collect(),
        }
    }
}

impl ComparisonReport {
    fn new(before: &Simulation, replay: &Replay, top: usize) -> Self {
        let rejected = |simulation: &Simulation, name: &str| {
            let rules = simulation.policy().rules.rules().iter();
            let index = rules.into_iter().position(|rule| *rule.name == *name)?;
            let tally = simulation.tally.rules.get(index)?;
            Some(OutcomeCounts::from(tally.outcomes).rejected())
        };
        let after = &replay.simulation;
        let names: BTreeSet<&str> = [before, after]
            .into_iter()
            .flat_map(|simulation| simulation.policy().rules.rules())
            .map(|rule| &*rule.name)
            .collect();
        let rules = names.into_iter().map(|name| RuleComparison {
            name: name.to_owned(),
            before: rejected(before, name),
            after: rejected(after, name),
        });
        let clients = &replay.clients;
        Self {
            newly_rejected: clients.newly,
            no_longer_rejected: clients.no_longer,
            rejected_by_both: clients.both,
            new_clients: clients.number(|client| client.rejected > 0 && client.rejected_before == 0),
            former_clients: clients.number(|client| client.rejected == 0 && client.rejected_before > 0),
            rules: rules.collect(),
            top_newly: client_reports(replay, top, |client| client.newly),
            top_no_longer: client_reports(replay, top, |client| client.no_longer),
        }
    }
}

fn client_reports(replay: &Replay, top: usize, rank: impl Fn(&ClientCount) -> u64) -> Vec<ClientReport> {
    let rules = &replay.simulation.policy().rules;
    let report = |(client, count): (Option<IpAddr>, ClientCount)| ClientReport {
        client: client.map_or_else(|| "unknown client".to_owned(), |client| client.to_string()),
        rejected: count.rejected,
        rejected_before: count.rejected_before,
        rule: count.rule.and_then(|rule| Some(rules.get(rule)?.name.to_string())),
        first: rfc3339(count.first),
        last: rfc3339(count.last),
    };
    replay.clients.top(top, rank).into_iter().map(report).collect()
}

impl From<[u64; 9]> for OutcomeCounts {
    /// Takes the numbers in the order of `DecisionOutcome::ALL`.
    fn from([allowed, soft, delayed, limited, banned, denied, exempt, shadow, diverted]: [u64; 9]) -> Self {
        Self { allowed, soft, delayed, limited, banned, denied, exempt, shadow, diverted }
    }
}
