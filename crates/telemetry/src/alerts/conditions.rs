//! Conditions that a sample of the process meets. Rates need the samples before it, all others only this one.

use std::time::Duration;

use super::sample::{AlertSample, CountryLabel, UpstreamSample};
use super::settings::{AlertKind, AlertKindSet, AlertSeverity};
use super::spike::{SLICE, Spike, SpikeDetector, Unseen};
use weir_limiter::timestamp::Timestamp;

/// Remaining validity in seconds below which a certificate is reported: automatic renewal, usually 30 days before, has
/// failed.
const MIN_VALIDITY: u64 = 14 * 86_400;
/// Remaining validity in seconds below which that is critical.
const MIN_VALIDITY_CRITICAL: u64 = 3 * 86_400;
/// The same as parts of the whole validity, for certificates that are valid for less than 42 days. They are usually
/// renewed when a third to a half is left.
const MIN_PART: u64 = 3;
const MIN_PART_CRITICAL: u64 = 14;

/// Maximum time between two samples. A longer one is a gap: alerts were off, or the process was suspended.
const MAX_GAP: Duration = Duration::from_secs(60);

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
    /// Time up to which rejections are counted; `None` before the first sample.
    counted_until: Option<Timestamp>,
    /// Charges to overflow counters up to the last sample; `None` before the first.
    table_overflows: Option<u64>,
}

impl Default for ConditionEvaluator {
    fn default() -> Self {
        Self {
            rules: SpikeDetector::new(Unseen::Absent),
            countries: SpikeDetector::new(Unseen::Quiet),
            counted_until: None,
            table_overflows: None,
        }
    }
}

impl ConditionEvaluator {
    /// Adds a sample; returns the conditions of these kinds that hold now.
    pub(super) fn evaluate(&mut self, sample: &AlertSample, kinds: AlertKindSet) -> Vec<AlertCondition> {
        let slices = self.slices_until(sample.now);
        if slices > 0 {
            let (by_rule, by_country) = (&sample.rejections_by_rule, &sample.rejections_by_country);
            self.rules.add_sample(slices, by_rule.iter().map(|(rule, total)| (rule, *total)));
            self.countries.add_sample(slices, by_country.iter().map(|(country, total)| (country, *total)));
        }
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

    /// Returns how many slices of rejections a sample at `now` adds: 0 shortly after the one before, whose rejections
    /// then count with the next. After a gap, all counts start anew, with this sample as the first.
    fn slices_until(&mut self, now: Timestamp) -> u64 {
        let slices = match self.counted_until.map(|before| now.since(before)) {
            Some(elapsed) if elapsed <= MAX_GAP => slices_in(elapsed),
            Some(_) => {
                *self = Self::default();
                1
            }
            None => 1,
        };
        if slices > 0 {
            self.counted_until = Some(now);
        }
        slices
    }
}

/// Returns the number of slices in this time, rounded.
fn slices_in(elapsed: Duration) -> u64 {
    let slices = elapsed.saturating_add(SLICE / 2).as_nanos() / SLICE.as_nanos();
    slices.try_into().unwrap_or(u64::MAX)
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
    sample.certificates.iter().filter_map(move |(file, validity)| {
        let left = validity.expires.saturating_sub(now);
        let lifetime = validity.expires.saturating_sub(validity.not_before);
        let severity = match left {
            0 => AlertSeverity::Critical,
            _ if left < MIN_VALIDITY_CRITICAL.min(lifetime / MIN_PART_CRITICAL) => AlertSeverity::Critical,
            _ if left < MIN_VALIDITY.min(lifetime / MIN_PART) => AlertSeverity::Warning,
            _ => return None,
        };
        let summary = match left {
            0 => format!("certificate {file} has expired"),
            1..86_400 => format!("certificate {file} expires in {:.1} hours", left as f64 / 3600.0),
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
    use weir_net::tls::key_pair::CertificateValidity;

    const NOW: u64 = 1_795_248_000;

    fn sample() -> AlertSample {
        AlertSample {
            now: Timestamp::from_secs(NOW),
            wall_clock: Timestamp::from_secs(NOW),
            upstreams: vec![UpstreamSample { name: "app".into(), endpoints: 2, healthy: 2 }],
            ..AlertSample::default()
        }
    }

    fn year_to(expires: u64) -> CertificateValidity {
        CertificateValidity { not_before: expires.saturating_sub(365 * 86_400), expires }
    }

    fn sample_after(time: Duration) -> AlertSample {
        AlertSample { now: Timestamp::from_secs(NOW).saturating_add(time), ..sample() }
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
            certificates: BTreeMap::from([("a.crt".into(), year_to(NOW + 15 * 86_400))]),
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
        let certificates = certificates.map(|(file, expires)| (file.into(), year_to(expires))).into();
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
    fn short_lived_certificate_is_reported_by_parts_of_its_lifetime() {
        const LIFETIME: u64 = 86_400;
        let severity_with = |left: u64| {
            let validity = CertificateValidity { not_before: NOW + left - LIFETIME, expires: NOW + left };
            let certificates = BTreeMap::from([("svid.crt".into(), validity)]);
            let found = ConditionEvaluator::default()
                .evaluate(&AlertSample { certificates, ..sample() }, AlertKindSet::ALL);
            found.first().map(|found| (found.id.severity, found.summary.clone()))
        };
        assert_eq!(severity_with(LIFETIME), None);
        assert_eq!(severity_with(LIFETIME / 3), None);
        let summary = "certificate svid.crt expires in 8.0 hours".to_owned();
        assert_eq!(severity_with(LIFETIME / 3 - 1), Some((AlertSeverity::Warning, summary)));
        assert_eq!(severity_with(LIFETIME / 14 - 1).unwrap().0, AlertSeverity::Critical);
        assert_eq!(severity_with(0).unwrap().1, "certificate svid.crt has expired");
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
        let at = |slice: u32, total: u64| AlertSample {
            rejections_by_rule: vec![("per-ip".into(), total), ("quiet".into(), 1)],
            rejections_by_country: vec![(brazil, total)],
            ..sample_after(SLICE * slice)
        };
        for slice in 0..200 {
            assert_eq!(evaluator.evaluate(&at(slice, 3), AlertKindSet::ALL), []);
        }
        let found = evaluator.evaluate(&at(200, 103), AlertKindSet::ALL);
        let summaries: Vec<_> = found.iter().map(|condition| condition.summary.as_str()).collect();
        let expected = [
            "rule per-ip rejects 100 requests a minute",
            "100 requests a minute of clients in country BR are rejected",
        ];
        assert_eq!(summaries, expected);
    }

    #[test]
    fn rejections_of_a_time_without_samples_are_no_spike() {
        let mut evaluator = ConditionEvaluator::default();
        let mut count_at = |seconds: u64, total: u64| {
            let rejections_by_rule = vec![("per-ip".into(), total)];
            let sample = AlertSample { rejections_by_rule, ..sample_after(Duration::from_secs(seconds)) };
            evaluator.evaluate(&sample, AlertKindSet::ALL).len()
        };
        // One rejection a second; the webhook delays every tenth sample by ten seconds.
        let regular = (0..3600).step_by(5).filter(|second| second % 50 < 40);
        assert_eq!(regular.map(|second| count_at(second, second)).sum::<usize>(), 0);
        // Three hours without samples, in which a reload had switched alerts off.
        let after = 3600 + 3 * 3600;
        assert_eq!((after..after + 1200).step_by(5).map(|second| count_at(second, second)).sum::<usize>(), 0);
        assert_eq!(count_at(after + 1200, after + 2400), 1);
    }

    #[test]
    fn early_sample_counts_with_the_next_one() {
        let mut evaluator = ConditionEvaluator::default();
        let found = [0, 5, 6, 7, 10, 15, 27]
            .map(|second| evaluator.slices_until(sample_after(Duration::from_secs(second)).now));
        assert_eq!(found, [1, 1, 0, 0, 1, 1, 2]);
    }

    #[test]
    fn kinds_that_are_not_selected_are_left_out() {
        let ill = AlertSample { is_store_unreachable: Some(true), ..sample() };
        let only = [AlertKind::TableFull].into_iter().collect();
        assert_eq!(ConditionEvaluator::default().evaluate(&ill, only), []);
    }
}
