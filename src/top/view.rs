//! What `weir top` shows: the last snapshot, and the rates since the one before.

use std::collections::{HashMap, VecDeque};

use super::snapshot::{
    ReceivedDecisions, ReceivedOutcomes, ReceivedRule, ReceivedSnapshot, ReceivedUpstream,
};

/// Number of earlier rates in the small plots.
pub(super) const MAX_SAMPLES: usize = 60;

/// Differences of uptime, in seconds, up to which two snapshots are of the same process.
const MAX_UPTIME_ERROR: f64 = 3.0;

/// Decisions per second of a rule, and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct DecisionRates {
    pub(super) allowed: f64,
    pub(super) delayed: f64,
    pub(super) shadow: f64,
    pub(super) rejected: f64,
    /// Tokens that responses were charged, which are no decisions.
    pub(super) tokens: f64,
}

impl DecisionRates {
    /// Returns all decisions per second.
    pub(super) fn total(&self) -> f64 {
        self.allowed + self.delayed + self.shadow + self.rejected
    }

    /// Returns the sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            delayed: self.delayed + other.delayed,
            shadow: self.shadow + other.shadow,
            rejected: self.rejected + other.rejected,
            tokens: self.tokens + other.tokens,
        }
    }

    fn between(before: &ReceivedDecisions, after: &ReceivedDecisions, seconds: f64) -> Self {
        let rate = |count: fn(&ReceivedDecisions) -> u64| per_second(count(before), count(after), seconds);
        Self {
            allowed: rate(|made| {
                made.allowed
                    .saturating_add(made.soft)
                    .saturating_add(made.exempt)
                    .saturating_add(made.diverted)
            }),
            delayed: rate(|made| made.delayed),
            shadow: rate(|made| made.shadow),
            rejected: rate(|made| made.limited.saturating_add(made.banned).saturating_add(made.denied)),
            tokens: 0.0,
        }
    }

    /// Returns the rates of requests, of which those that were shed or not stored are rejected too.
    fn of_requests(before: &ReceivedOutcomes, after: &ReceivedOutcomes, seconds: f64) -> Self {
        let decided = Self::between(&before.decided, &after.decided, seconds);
        let others = |outcomes: &ReceivedOutcomes| outcomes.shed.saturating_add(outcomes.not_stored);
        Self { rejected: decided.rejected + per_second(others(before), others(after), seconds), ..decided }
    }
}

/// Rates of the whole process, per second.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessRates {
    pub(super) requests: f64,
    pub(super) server_errors: f64,
    /// Requests by their final outcome; `None` if the instance does not count them.
    pub(super) outcomes: Option<DecisionRates>,
    pub(super) rules: HashMap<String, DecisionRates>,
    pub(super) upstreams: HashMap<String, f64>,
}

/// State of the view.
#[derive(Debug)]
pub(super) struct TopView {
    /// Address of the admin port.
    pub(super) address: String,
    /// The last snapshot.
    pub(super) snapshot: Option<ReceivedSnapshot>,
    /// Rates between the last two snapshots; `None` before the second.
    pub(super) rates: Option<ProcessRates>,
    /// Total and rejected decisions per second of the last seconds, by rule.
    pub(super) samples: HashMap<String, VecDeque<f64>>,
    /// Why there is no connection, if there is none.
    pub(super) lost: Option<String>,
    /// Seconds since the last snapshot.
    pub(super) age: u64,
    /// Number of rules above the first one shown.
    pub(super) scroll: usize,
    /// The instances of which this is the sum; empty for the view of one.
    pub(super) instances: Vec<InstanceLine>,
}

/// One of several instances.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct InstanceLine {
    pub(super) name: String,
    /// Why there is no connection, if there is none.
    pub(super) lost: Option<String>,
    /// Whether there is a snapshot, which may be old.
    pub(super) has_snapshot: bool,
    /// Seconds since the last snapshot.
    pub(super) age: u64,
    pub(super) is_draining: bool,
    pub(super) uptime_seconds: f64,
    pub(super) generation: u64,
    /// Requests and rejections per second.
    pub(super) requests: Option<f64>,
    pub(super) rejected: Option<f64>,
    pub(super) in_flight: u64,
}

impl TopView {
    pub(super) fn new(address: String) -> Self {
        Self {
            address,
            snapshot: None,
            rates: None,
            samples: HashMap::new(),
            lost: None,
            age: 0,
            scroll: 0,
            instances: Vec::new(),
        }
    }

    /// Takes the next snapshot.
    pub(super) fn add(&mut self, snapshot: ReceivedSnapshot) {
        let before = self.snapshot.take();
        self.rates = match &before {
            Some(before) => rates_between(before, &snapshot),
            None => None,
        };
        if self.rates.is_none() {
            self.samples.clear();
        }
        if let Some(rates) = &self.rates {
            self.samples.retain(|name, _| rates.rules.contains_key(name));
            for (name, rates) in &rates.rules {
                let samples = self.samples.entry(name.clone()).or_default();
                samples.push_back(rates.total());
                if samples.len() > MAX_SAMPLES {
                    samples.pop_front();
                }
            }
        }
        self.snapshot = Some(snapshot);
        self.lost = None;
        self.age = 0;
    }

    /// Notes that the connection is lost.
    pub(super) fn set_lost(&mut self, message: String) {
        self.lost = Some(message);
    }

    /// Notes that a second has passed.
    pub(super) fn tick(&mut self) {
        self.age = self.age.saturating_add(1);
    }

    /// Scrolls the rules by some lines, within the rules that exist.
    pub(super) fn scroll_by(&mut self, lines: isize) {
        let max = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.rules.len().saturating_sub(1));
        self.scroll = self.scroll.saturating_add_signed(lines).min(max);
    }

    /// Returns the rates of a rule; zero if they are unknown.
    pub(super) fn rule_rates(&self, name: &str) -> DecisionRates {
        self.rates.as_ref().and_then(|rates| rates.rules.get(name)).copied().unwrap_or_default()
    }
}

/// Returns the rates between two snapshots; `None` if they are of different processes or of the same moment.
fn rates_between(before: &ReceivedSnapshot, after: &ReceivedSnapshot) -> Option<ProcessRates> {
    let seconds = seconds_between(before, after)?;
    let earlier: HashMap<&str, &ReceivedRule> =
        before.rules.iter().map(|rule| (rule.name.as_str(), rule)).collect();
    let mut rates = ProcessRates {
        requests: per_second(before.requests.total, after.requests.total, seconds),
        server_errors: per_second(
            before.requests.by_class.server_errors,
            after.requests.by_class.server_errors,
            seconds,
        ),
        outcomes: before
            .requests
            .by_outcome
            .as_ref()
            .zip(after.requests.by_outcome.as_ref())
            .map(|(before, after)| DecisionRates::of_requests(before, after, seconds)),
        ..ProcessRates::default()
    };
    for rule in &after.rules {
        let unused = ReceivedDecisions::default();
        let before = earlier.get(rule.name.as_str());
        let [tokens_before, tokens] = [before.copied(), Some(rule)]
            .map(|rule| rule.and_then(ReceivedRule::charged_tokens).unwrap_or(0));
        let decisions = before.map_or(&unused, |rule| &rule.decisions);
        let made = DecisionRates {
            tokens: per_second(tokens_before, tokens, seconds),
            ..DecisionRates::between(decisions, &rule.decisions, seconds)
        };
        rates.rules.insert(rule.name.clone(), made);
    }
    let earlier: HashMap<&str, &ReceivedUpstream> =
        before.upstreams.iter().map(|upstream| (upstream.name.as_str(), upstream)).collect();
    for upstream in &after.upstreams {
        let before = earlier.get(upstream.name.as_str()).map_or(0, |upstream| upstream.requests);
        rates.upstreams.insert(upstream.name.clone(), per_second(before, upstream.requests, seconds));
    }
    Some(rates)
}

/// Returns the seconds between two snapshots of one process. Their times are more precise than their uptimes.
fn seconds_between(before: &ReceivedSnapshot, after: &ReceivedSnapshot) -> Option<f64> {
    let at = |snapshot: &ReceivedSnapshot| snapshot.time.parse::<jiff::Timestamp>().ok();
    let uptime = after.uptime_seconds - before.uptime_seconds;
    let seconds = match (at(before), at(after)) {
        (Some(before), Some(after)) => after.duration_since(before).as_secs_f64(),
        (None, _) | (_, None) => uptime,
    };
    let is_same_process = uptime >= 0.0 && (uptime - seconds).abs() <= MAX_UPTIME_ERROR;
    (is_same_process && seconds > 0.0).then_some(seconds)
}

fn per_second(before: u64, after: u64, seconds: f64) -> f64 {
    after.saturating_sub(before) as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(second: u32, allowed: u64, limited: u64) -> ReceivedSnapshot {
        serde_json::from_value(serde_json::json!({
            "time": format!("2026-11-23T20:00:{second:02}Z"),
            "uptime_seconds": second,
            "requests": { "total": allowed + limited, "by_class": { "2xx": allowed, "5xx": limited } },
            "rules": [{ "name": "a", "decisions": { "allowed": allowed, "limited": limited } }],
            "upstreams": [{ "name": "u", "requests": allowed }],
        }))
        .unwrap()
    }

    #[test]
    fn rates_are_counts_per_second_between_snapshots() {
        let mut view = TopView::new(String::new());
        view.add(snapshot(10, 100, 10));
        assert!(view.rates.is_none());
        view.add(snapshot(14, 180, 18));
        let rates = view.rates.as_ref().unwrap();
        assert_eq!((rates.requests, rates.server_errors), (22.0, 2.0));
        assert_eq!(rates.upstreams["u"], 20.0);
        assert_eq!(
            view.rule_rates("a"),
            DecisionRates { allowed: 20.0, rejected: 2.0, ..Default::default() }
        );
        assert_eq!(view.samples["a"], [22.0]);
    }

    #[test]
    fn request_that_two_rules_reject_is_rejected_once() {
        let snapshot = |second: u32, limited: u64| -> ReceivedSnapshot {
            serde_json::from_value(serde_json::json!({
                "time": format!("2026-11-23T20:00:{second:02}Z"),
                "uptime_seconds": second,
                "requests": { "total": 10 * limited, "by_outcome": { "limited": limited, "allowed": 9 * limited, "shed": second } },
                "rules": [
                    { "name": "a", "decisions": { "limited": limited } },
                    { "name": "b", "decisions": { "limited": limited } },
                ],
            }))
            .unwrap()
        };
        let mut view = TopView::new(String::new());
        view.add(snapshot(1, 10));
        view.add(snapshot(3, 30));
        let rates = view.rates.as_ref().unwrap();
        let expected = DecisionRates { allowed: 90.0, rejected: 11.0, ..Default::default() };
        assert_eq!((rates.requests, rates.outcomes), (100.0, Some(expected)));
        assert_eq!((view.rule_rates("a").rejected, view.rule_rates("b").rejected), (10.0, 10.0));
    }

    #[test]
    fn restarted_process_has_no_rates_at_first() {
        let mut view = TopView::new(String::new());
        view.add(snapshot(30, 100, 0));
        view.add(snapshot(31, 200, 0));
        let mut restarted = snapshot(40, 1000, 0);
        restarted.uptime_seconds = 2.0;
        view.add(restarted);
        assert!(view.rates.is_none() && view.samples.is_empty());
    }

    #[test]
    fn number_of_samples_is_bounded() {
        let mut view = TopView::new(String::new());
        for at in 0..u64::try_from(MAX_SAMPLES).unwrap() * 2 {
            let mut next = snapshot(0, at, 0);
            next.time = String::new();
            next.uptime_seconds = at as f64;
            view.add(next);
        }
        assert_eq!(view.samples["a"].len(), MAX_SAMPLES);
    }

    #[test]
    fn new_snapshot_ends_the_loss_of_the_connection() {
        let mut view = TopView::new(String::new());
        view.set_lost("gone".to_owned());
        view.tick();
        view.add(snapshot(1, 0, 0));
        assert!(view.lost.is_none() && view.age == 0);
    }
}
