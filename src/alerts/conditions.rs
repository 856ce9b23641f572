//! Conditions that a sample of the process meets. Rates need the samples before it, all others only this one.

use std::time::Duration;

use super::sample::{AlertSample, CountryLabel, UpstreamSample};
use super::settings::{AlertKind, AlertKindSet, AlertSeverity};
use super::spike::{Spike, SpikeDetector, Unseen};

/// Remaining validity below which a certificate is reported: automatic renewal, usually 30 days before, has failed.
const MIN_VALIDITY: Duration = Duration::from_secs(14 * 86_400);
/// Remaining validity below which that is critical.
const MIN_VALIDITY_CRITICAL: Duration = Duration::from_secs(3 * 86_400);

/// Maximum length of a configuration problem in a notification, in characters.
const MAX_PROBLEM_LEN: usize = 500;

/// Identity of an alert. Two alerts with the same identity are the same alert.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AlertId {
    pub(super) kind: AlertKind,
    pub(super) severity: AlertSeverity,
    /// What the alert is about, such as the name of a rule; empty for alerts about the process.
    pub(super) subject: Box<str>,
}

/// A condition that holds, with its description for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AlertCondition {
    pub(super) id: AlertId,
    pub(super) summary: String,
    pub(super) description: String,
}

impl AlertCondition {
    fn new(
        kind: AlertKind,
        severity: AlertSeverity,
        subject: &str,
        summary: String,
        description: String,
    ) -> Self {
        Self { id: AlertId { kind, severity, subject: subject.into() }, summary, description }
    }
}

/// Derives conditions from a series of samples.
#[derive(Debug)]
pub(super) struct ConditionEvaluator {
    rules: SpikeDetector<Box<str>>,
    countries: SpikeDetector<CountryLabel>,
    /// Charges to overflow counters up to the last sample; `None` before the first.
    table_overflows: Option<u64>,
}

impl Default for ConditionEvaluator {
    fn default() -> Self {
        Self {
            rules: SpikeDetector::new(Unseen::Absent),
            countries: SpikeDetector::new(Unseen::Quiet),
            table_overflows: None,
        }
    }
}

impl ConditionEvaluator {
    /// Adds a sample; returns the conditions of these kinds that hold now.
    pub(super) fn evaluate(&mut self, sample: &AlertSample, kinds: AlertKindSet) -> Vec<AlertCondition> {
        self.rules.add_sample(sample.rejections_by_rule.iter().map(|(rule, total)| (rule, *total)));
        self.countries
            .add_sample(sample.rejections_by_country.iter().map(|(country, total)| (country, *total)));
        let overflows_before = self.table_overflows.replace(sample.table_overflows);
        let new_overflows =
            overflows_before.map_or(0, |before| sample.table_overflows.saturating_sub(before));
        let mut conditions: Vec<AlertCondition> =
            self.rules.spikes().map(|(rule, spike)| rule_spike(rule, spike)).collect();
        conditions.extend(self.countries.spikes().map(|(country, spike)| country_spike(*country, spike)));
        conditions.extend((sample.is_store_unreachable == Some(true)).then(store_lost));
        conditions.extend(sample.reload_problem.as_deref().map(reload_failed));
        conditions.extend((new_overflows > 0).then(|| table_full(new_overflows)));
        conditions.extend(certificates(sample));
        conditions.extend(sample.upstreams.iter().filter_map(upstream));
        conditions.retain(|condition| kinds.contains(condition.id.kind));
        conditions
    }
}

fn rule_spike(rule: &str, spike: Spike) -> AlertCondition {
    AlertCondition::new(
        AlertKind::RejectionSpike,
        AlertSeverity::Warning,
        rule,
        format!("rule {rule} rejects {} requests a minute", spike.last_minute),
        describe_spike(spike),
    )
}

fn country_spike(country: CountryLabel, spike: Spike) -> AlertCondition {
    let country = country.as_str();
    AlertCondition::new(
        AlertKind::CountrySpike,
        AlertSeverity::Warning,
        country,
        format!("{} requests a minute of clients in country {country} are rejected", spike.last_minute),
        describe_spike(spike),
    )
}

fn describe_spike(Spike { last_minute, average }: Spike) -> String {
    format!(
        "{last_minute} rejections in the last minute, {average:.1} in an average minute of the hour before"
    )
}

fn store_lost() -> AlertCondition {
    AlertCondition::new(
        AlertKind::StoreLost,
        AlertSeverity::Critical,
        "",
        "the store of shared limits does not respond".to_owned(),
        "rules with `scope: shared` use their `on_store_loss` until it responds".to_owned(),
    )
}

fn reload_failed(problem: &str) -> AlertCondition {
    let problem: String = problem.chars().take(MAX_PROBLEM_LEN).collect();
    AlertCondition::new(
        AlertKind::ReloadFailed,
        AlertSeverity::Warning,
        "",
        "the new configuration is invalid, the previous one stays in force".to_owned(),
        format!("first problem: {problem}"),
    )
}

fn table_full(charges: u64) -> AlertCondition {
    AlertCondition::new(
        AlertKind::TableFull,
        AlertSeverity::Warning,
        "",
        "the counter table is full: new keys share overflow counters".to_owned(),
        format!("{charges} charges to overflow counters since the last check"),
    )
}

fn certificates(sample: &AlertSample) -> impl Iterator<Item = AlertCondition> + '_ {
    let now = sample.wall_clock.as_secs();
    sample.certificates.iter().filter_map(move |(file, expires)| {
        let left = expires.saturating_sub(now);
        let severity = match left {
            _ if left < MIN_VALIDITY_CRITICAL.as_secs() => AlertSeverity::Critical,
            _ if left < MIN_VALIDITY.as_secs() => AlertSeverity::Warning,
            _ => return None,
        };
        let summary = match left {
            0 => format!("certificate {file} has expired"),
            _ => format!("certificate {file} expires in {:.1} days", left as f64 / 86_400.0),
        };
        let description = "replace the file; Weir loads the new certificate without a restart".to_owned();
        Some(AlertCondition::new(AlertKind::CertificateExpiring, severity, file, summary, description))
    })
}

/// Returns the condition of an upstream. If all endpoints are unhealthy, that some are is not reported in addition.
fn upstream(UpstreamSample { name, endpoints, healthy }: &UpstreamSample) -> Option<AlertCondition> {
    if healthy >= endpoints && *endpoints > 0 {
        return None;
    }
    let (kind, severity, summary) = match (endpoints, healthy) {
        (0, _) => {
            (AlertKind::UpstreamDown, AlertSeverity::Critical, format!("upstream {name} has no endpoints"))
        }
        (_, 0) => (
            AlertKind::UpstreamDown,
            AlertSeverity::Critical,
            format!("all endpoints of upstream {name} are unhealthy"),
        ),
        _ => (
            AlertKind::UpstreamUnhealthy,
            AlertSeverity::Warning,
            format!("some endpoints of upstream {name} are unhealthy"),
        ),
    };
    let description = format!("{healthy} of {endpoints} endpoints are healthy");
    Some(AlertCondition::new(kind, severity, name, summary, description))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::limiter::timestamp::Timestamp;

    const NOW: u64 = 1_795_248_000;

    fn sample() -> AlertSample {
        AlertSample {
            now: Timestamp::from_secs(NOW),
            wall_clock: Timestamp::from_secs(NOW),
            upstreams: vec![UpstreamSample { name: "app".into(), endpoints: 2, healthy: 2 }],
            ..AlertSample::default()
        }
    }

    /// Returns kind, severity and subject of the conditions of one sample.
    fn conditions_of(sample: &AlertSample) -> Vec<(AlertKind, AlertSeverity, String)> {
        let found = ConditionEvaluator::default().evaluate(sample, AlertKindSet::ALL);
        found.into_iter().map(|it| (it.id.kind, it.id.severity, it.id.subject.to_string())).collect()
    }

    #[test]
    fn healthy_process_has_no_conditions() {
        let healthy = AlertSample {
            is_store_unreachable: Some(false),
            table_overflows: 7,
            certificates: BTreeMap::from([("a.crt".into(), NOW + 15 * 86_400)]),
            ..sample()
        };
        assert_eq!(conditions_of(&healthy), []);
    }

    #[test]
    fn lost_store_and_failed_reload_are_conditions() {
        let ill = AlertSample {
            is_store_unreachable: Some(true),
            reload_problem: Some("weir.yaml:1:1: a: unknown key".into()),
            ..sample()
        };
        let expected = [
            (AlertKind::StoreLost, AlertSeverity::Critical),
            (AlertKind::ReloadFailed, AlertSeverity::Warning),
        ];
        assert_eq!(conditions_of(&ill), expected.map(|(kind, severity)| (kind, severity, String::new())));
    }

    #[test]
    fn certificate_is_a_warning_below_two_weeks_and_critical_below_three_days() {
        let days = |days: u64| NOW + days * 86_400;
        let certificates =
            [("a", days(14) - 1), ("b", days(14)), ("c", days(3) - 1), ("d", days(3)), ("e", 1)];
        let certificates = certificates.map(|(file, expires)| (file.into(), expires)).into();
        let found = conditions_of(&AlertSample { certificates, ..sample() });
        let found: Vec<_> = found.into_iter().map(|(_, severity, file)| (file, severity)).collect();
        let expected = [
            ("a", AlertSeverity::Warning),
            ("c", AlertSeverity::Critical),
            ("d", AlertSeverity::Warning),
            ("e", AlertSeverity::Critical),
        ];
        assert_eq!(found, expected.map(|(file, severity)| (file.to_owned(), severity)));
    }

    #[test]
    fn upstream_is_either_unhealthy_or_down() {
        let upstream = |endpoints, healthy| {
            let upstreams = vec![UpstreamSample { name: "app".into(), endpoints, healthy }];
            conditions_of(&AlertSample { upstreams, ..sample() }).into_iter().map(|(kind, ..)| kind).collect()
        };
        let kinds: [Vec<AlertKind>; 4] = [upstream(2, 2), upstream(2, 1), upstream(2, 0), upstream(0, 0)];
        let [healthy, unhealthy, down, empty] = kinds;
        assert_eq!(healthy, []);
        assert_eq!(unhealthy, [AlertKind::UpstreamUnhealthy]);
        assert_eq!([down, empty], [[AlertKind::UpstreamDown], [AlertKind::UpstreamDown]]);
    }

    #[test]
    fn full_table_is_a_condition_only_while_overflows_grow() {
        let mut evaluator = ConditionEvaluator::default();
        let mut kinds = |table_overflows| {
            let sample = AlertSample { table_overflows, ..sample() };
            evaluator.evaluate(&sample, AlertKindSet::ALL).len()
        };
        assert_eq!([kinds(5), kinds(6), kinds(6), kinds(9)], [0, 1, 0, 1]);
    }

    #[test]
    fn spikes_name_their_rule_and_country() {
        let mut evaluator = ConditionEvaluator::default();
        let brazil = CountryLabel::from("BR".parse().ok());
        let at = |total: u64| AlertSample {
            rejections_by_rule: vec![("per-ip".into(), total), ("quiet".into(), 1)],
            rejections_by_country: vec![(brazil, total)],
            ..sample()
        };
        for _ in 0..200 {
            assert_eq!(evaluator.evaluate(&at(3), AlertKindSet::ALL), []);
        }
        let found = evaluator.evaluate(&at(103), AlertKindSet::ALL);
        let summaries: Vec<_> = found.iter().map(|condition| condition.summary.as_str()).collect();
        let expected = [
            "rule per-ip rejects 100 requests a minute",
            "100 requests a minute of clients in country BR are rejected",
        ];
        assert_eq!(summaries, expected);
    }

    #[test]
    fn kinds_that_are_not_selected_are_left_out() {
        let ill = AlertSample { is_store_unreachable: Some(true), ..sample() };
        let only = [AlertKind::TableFull].into_iter().collect();
        assert_eq!(ConditionEvaluator::default().evaluate(&ill, only), []);
    }
}
