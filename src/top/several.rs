//! The sum of several instances: rates and counts are added, rules, keys and upstreams are joined by their names.

use std::collections::{HashMap, VecDeque};

use super::snapshot::{
    ReceivedDecisions, ReceivedKey, ReceivedRule, ReceivedSnapshot, ReceivedTop, ReceivedUpstream,
};
use super::view::{InstanceLine, MAX_SAMPLES, ProcessRates, TopView};

/// The views of several instances.
#[derive(Debug)]
pub(super) struct SeveralViews {
    title: String,
    views: Vec<(String, TopView)>,
    /// Sums of the last seconds, by rule.
    samples: HashMap<String, VecDeque<f64>>,
    scroll: usize,
}

impl SeveralViews {
    /// Creates views without snapshots. `title` says what the instances are.
    pub(super) fn new(title: String, names: impl Iterator<Item = String>) -> Self {
        let views = names.map(|name| (name, TopView::new(String::new()))).collect();
        Self { title, views, samples: HashMap::new(), scroll: 0 }
    }

    /// Replaces the view of an instance.
    pub(super) fn set(&mut self, instance: usize, view: TopView) {
        self.views[instance].1 = view;
    }

    /// Takes the next snapshot of an instance.
    pub(super) fn add(&mut self, instance: usize, snapshot: ReceivedSnapshot) {
        self.views[instance].1.add(snapshot);
    }

    /// Notes that the connection to an instance is lost.
    pub(super) fn set_lost(&mut self, instance: usize, message: String) {
        self.views[instance].1.set_lost(message);
    }

    /// Notes that a second has passed.
    pub(super) fn tick(&mut self) {
        for (_, view) in &mut self.views {
            view.tick();
        }
        let Some(rates) = self.rates() else { return };
        self.samples.retain(|name, _| rates.rules.contains_key(name));
        for (name, rates) in &rates.rules {
            let samples = self.samples.entry(name.clone()).or_default();
            samples.push_back(rates.total());
            if samples.len() > MAX_SAMPLES {
                samples.pop_front();
            }
        }
    }

    /// Scrolls the rules by some lines, within the rules that exist.
    pub(super) fn scroll_by(&mut self, lines: isize) {
        let mut sum = self.sum();
        sum.scroll_by(lines);
        self.scroll = sum.scroll;
    }

    /// Returns the sum as a view.
    pub(super) fn sum(&self) -> TopView {
        let has_snapshot = self.views.iter().any(|(_, view)| view.snapshot.is_some());
        TopView {
            address: self.title.clone(),
            snapshot: has_snapshot.then(|| self.snapshot()),
            rates: self.rates(),
            samples: self.samples.clone(),
            lost: None,
            age: 0,
            scroll: self.scroll,
            instances: self.views.iter().map(|(name, view)| instance_line(name, view)).collect(),
        }
    }

    /// Returns the instances whose data is of the present. What a lost one has counted is no rate of now.
    fn connected(&self) -> impl Iterator<Item = &TopView> {
        self.views.iter().map(|(_, view)| view).filter(|view| view.lost.is_none())
    }

    fn rates(&self) -> Option<ProcessRates> {
        let mut all = self.connected().filter_map(|view| view.rates.as_ref());
        let mut sum = all.next()?.clone();
        for rates in all {
            sum.requests += rates.requests;
            sum.server_errors += rates.server_errors;
            sum.outcomes = match (sum.outcomes, rates.outcomes) {
                (Some(one), Some(other)) => Some(one.plus(other)),
                (one, other) => one.or(other),
            };
            for (name, rates) in &rates.rules {
                let total = sum.rules.entry(name.clone()).or_default();
                *total = total.plus(*rates);
            }
            for (name, rate) in &rates.upstreams {
                *sum.upstreams.entry(name.clone()).or_default() += rate;
            }
        }
        Some(sum)
    }

    fn snapshot(&self) -> ReceivedSnapshot {
        let all =
            || self.views.iter().filter_map(|(name, view)| Some((name.as_str(), view.snapshot.as_ref()?)));
        let mut sum = ReceivedSnapshot::default();
        let (mut rules, mut upstreams) = (Joined::default(), Joined::default());
        let (mut top, mut documents) = (Joined::default(), Joined::default());
        let mut versions: Vec<&str> = Vec::new();
        for (_, snapshot) in all() {
            if !versions.contains(&snapshot.version.as_str()) {
                versions.push(&snapshot.version);
            }
            sum.in_flight = sum.in_flight.saturating_add(snapshot.in_flight);
            rules.add_all(&snapshot.rules, |rule| &rule.name, add_rule);
            upstreams.add_all(&snapshot.upstreams, |upstream| &upstream.name, add_upstream);
            top.add_all(&snapshot.top, |top| &top.rule, add_top);
            documents.add_all(&snapshot.documents, |top| &top.rule, add_top);
        }
        sum.version = versions.join(", ");
        (sum.rules, sum.upstreams) = (rules.items, upstreams.items);
        (sum.top, sum.documents) = (top.items, documents.items);
        let count = all().count();
        sum.notices = said_by(all().map(|(name, snapshot)| (name, &snapshot.notices)), count);
        sum.config.problems = said_by(all().map(|(name, snapshot)| (name, &snapshot.config.problems)), count);
        sum
    }
}

fn instance_line(name: &str, view: &TopView) -> InstanceLine {
    let snapshot = view.snapshot.as_ref();
    let rates = view.rates.as_ref().filter(|_| view.lost.is_none());
    InstanceLine {
        name: name.to_owned(),
        lost: view.lost.clone(),
        has_snapshot: snapshot.is_some(),
        age: view.age,
        is_draining: snapshot.is_some_and(|snapshot| snapshot.draining),
        uptime_seconds: snapshot.map_or(0.0, |snapshot| snapshot.uptime_seconds),
        generation: snapshot.map_or(0, |snapshot| snapshot.generation),
        requests: rates.map(|rates| rates.requests),
        rejected: rates.and_then(|rates| rates.outcomes).map(|made| made.rejected),
        in_flight: snapshot.map_or(0, |snapshot| snapshot.in_flight),
    }
}

/// Items joined by their names, in the order of their first occurrence.
struct Joined<T> {
    items: Vec<T>,
    places: HashMap<String, usize>,
}

impl<T> Default for Joined<T> {
    fn default() -> Self {
        Self { items: Vec::new(), places: HashMap::new() }
    }
}

impl<T: Clone> Joined<T> {
    fn add_all(&mut self, items: &[T], name: impl Fn(&T) -> &String, add: impl Fn(&mut T, &T)) {
        for item in items {
            match self.places.get(name(item)) {
                Some(place) => add(&mut self.items[*place], item),
                None => {
                    self.places.insert(name(item).clone(), self.items.len());
                    self.items.push(item.clone());
                }
            }
        }
    }
}

fn add_rule(sum: &mut ReceivedRule, rule: &ReceivedRule) {
    sum.differs |= (&sum.action, &sum.limits, &sum.throttle) != (&rule.action, &rule.limits, &rule.throttle)
        || (sum.in_flight, &sum.unit, &sum.streams) != (rule.in_flight, &rule.unit, &rule.streams);
    add_decisions(&mut sum.decisions, &rule.decisions);
    sum.keys = added(sum.keys, rule.keys);
    sum.charged_units = added(sum.charged_units, rule.charged_units);
    // Of factors and adaptive limits, which are no sums, the lowest is shown.
    sum.factor = match (sum.factor, rule.factor) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    sum.concurrency = match (sum.concurrency, rule.concurrency) {
        (Some(one), Some(other)) if other.limit < one.limit => Some(other),
        (one, other) => one.or(other),
    };
}

/// Returns the sum of numbers that some instances do not have.
fn added(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.saturating_add(other)),
        (one, other) => one.or(other),
    }
}

fn add_decisions(sum: &mut ReceivedDecisions, made: &ReceivedDecisions) {
    for (total, count) in [
        (&mut sum.allowed, made.allowed),
        (&mut sum.soft, made.soft),
        (&mut sum.delayed, made.delayed),
        (&mut sum.limited, made.limited),
        (&mut sum.banned, made.banned),
        (&mut sum.denied, made.denied),
        (&mut sum.exempt, made.exempt),
        (&mut sum.shadow, made.shadow),
        (&mut sum.diverted, made.diverted),
    ] {
        *total = total.saturating_add(count);
    }
}

/// Adds an upstream. Of the response times, the highest is shown, since quantiles are no sums.
fn add_upstream(sum: &mut ReceivedUpstream, upstream: &ReceivedUpstream) {
    let highest = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    };
    sum.requests = sum.requests.saturating_add(upstream.requests);
    sum.p50_ms = highest(sum.p50_ms, upstream.p50_ms);
    sum.p99_ms = highest(sum.p99_ms, upstream.p99_ms);
    sum.healthy = sum.healthy.saturating_add(upstream.healthy);
    sum.endpoints = sum.endpoints.saturating_add(upstream.endpoints);
}

fn add_top(sum: &mut ReceivedTop, top: &ReceivedTop) {
    let mut joined = Joined::default();
    for keys in [&sum.keys, &top.keys] {
        joined.add_all(keys, |key| &key.key, add_key);
    }
    sum.keys = joined.items;
}

fn add_key(sum: &mut ReceivedKey, key: &ReceivedKey) {
    sum.admitted = sum.admitted.saturating_add(key.admitted);
    sum.rejected = sum.rejected.saturating_add(key.rejected);
    sum.shadow = sum.shadow.saturating_add(key.shadow);
    sum.delayed = sum.delayed.saturating_add(key.delayed);
    sum.banned |= key.banned;
    sum.boosted |= key.boosted;
}

/// Returns each text once, behind the names of the instances that say it, unless all of them do.
fn said_by<'a>(texts: impl Iterator<Item = (&'a str, &'a Vec<String>)>, count: usize) -> Vec<String> {
    let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, texts) in texts {
        for text in texts {
            match said.iter_mut().find(|(known, _)| known == text) {
                Some((_, names)) => names.push(name),
                None => said.push((text, vec![name])),
            }
        }
    }
    let shown = |(text, names): (&str, Vec<&str>)| match names.as_slice() {
        all if all.len() == count => text.to_owned(),
        [name] => format!("{name}: {text}"),
        [name, others @ ..] => format!("{name} and {} more: {text}", others.len()),
        [] => text.to_owned(),
    };
    said.into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::top::screen;

    fn snapshot(second: u64, limit: &str, limited: u64, notice: &str) -> ReceivedSnapshot {
        let n = second;
        serde_json::from_value(json!({
            "time": format!("2026-11-23T20:00:{second:02}Z"), "uptime_seconds": second, "version": "0.1.0",
            "generation": 4, "in_flight": 3, "notices": [notice],
            "requests": { "total": 10 * n, "by_outcome": { "allowed": (10 - limited) * n, "limited": limited * n } },
            "rules": [{ "name": "per-ip", "action": "limit", "limits": [limit], "keys": 2,
                "decisions": { "allowed": (10 - limited) * n, "limited": limited * n } }],
            "upstreams": [{ "name": "app", "requests": 10 * n, "p50_ms": second, "p99_ms": 9.0, "healthy": 1, "endpoints": 1 }],
            "top": [{ "rule": "per-ip", "keys": [{ "key": "client_ip=203.0.113.7", "admitted": 5, "rejected": limited }] }],
        }))
        .unwrap()
    }

    fn several(limits: [&str; 2]) -> SeveralViews {
        let names = ["shop-a", "shop-b", "shop-c"].map(str::to_owned);
        let mut views = SeveralViews::new("deploy/shop in namespace web".to_owned(), names.into_iter());
        for (instance, limit) in limits.into_iter().enumerate() {
            let limited = if instance == 0 { 0 } else { 4 };
            views.add(instance, snapshot(1, limit, limited, "disk"));
            views.add(instance, snapshot(2, limit, limited, "disk"));
        }
        views
    }

    fn text(views: &SeveralViews) -> Vec<String> {
        screen::text(&views.sum()).iter().map(super::super::line::Line::to_text).collect()
    }

    #[test]
    fn sums_have_a_line_for_each_instance() {
        let mut views = several(["100/s", "100/s"]);
        views.set_lost(2, "gone".to_owned());
        let expected = [
            "weir 0.1.0  deploy/shop in namespace web  2 of 3 connected",
            "requests 20/s  rejected 4.0/s  5xx 0/s  in flight 6",
            "POD       REQUESTS/s  REJECTED/s   IN FLIGHT",
            "shop-c             –           –           0  error: gone",
            "shop-b            10         4.0           3  up 2 s  generation 4",
            "shop-a            10           0           3  up 2 s  generation 4",
            "upstream app  20/s  p50 2.0 ms  p99 9.0 ms  healthy 2/2",
            "notice: disk",
            "",
            "RULE      LIMIT ALLOWED/s REJECTED/s    KEYS",
            "per-ip    100/s        16        4.0       4",
            "",
            "HEAVIEST KEY, LAST 1-2 MIN  RULE      ADMITTED  REJECTED",
            "client_ip=203.0.113.7       per-ip          10         4",
        ];
        assert_eq!(text(&views), expected);
    }

    #[test]
    fn rates_of_a_lost_instance_are_not_added() {
        let mut views = several(["100/s", "100/s"]);
        views.set_lost(1, "gone".to_owned());
        assert_eq!(views.sum().rates.unwrap().requests, 10.0);
        views.set_lost(0, "gone".to_owned());
        assert!(views.sum().rates.is_none());
    }

    #[test]
    fn rules_that_differ_and_texts_of_one_instance_are_marked() {
        let mut views = several(["100/s", "50/s"]);
        views.add(0, snapshot(3, "100/s", 0, "certificate"));
        let lines = text(&views);
        assert!(lines.iter().any(|line| line.contains("100/s (differs)")), "{lines:#?}");
        assert!(lines.contains(&"notice: shop-a: certificate".to_owned()), "{lines:#?}");
    }

    #[test]
    fn seconds_are_samples_of_the_sum() {
        let mut views = several(["100/s", "100/s"]);
        for _ in 0..MAX_SAMPLES * 2 {
            views.tick();
        }
        let sum = views.sum();
        assert_eq!((sum.samples["per-ip"].len(), sum.samples["per-ip"][0]), (MAX_SAMPLES, 20.0));
        assert_eq!(sum.instances[0].age, 2 * MAX_SAMPLES as u64);
    }
}
