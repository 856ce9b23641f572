//! The screen of `weir top`: a pure function from the view and the size of the terminal to lines.

mod columns;
mod instances;

use self::columns::{KeyNumber, MAX_NAME, MIN_NAME, NUMBER, RuleLayout, RuleNumber};
use super::line::{Line, Tone, cut_to_width, left_aligned, right_aligned, width, wrapped};
use super::numbers::{count_text, duration_text, milliseconds_text, rate_text};
use super::snapshot::{ReceivedKey, ReceivedRule, ReceivedSnapshot, ReceivedUpstream};
use super::view::TopView;
use weir_policy::rules::cost_unit::with_unit;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Width of [`text`], and the number of keys in it.
const TEXT_COLUMNS: usize = 120;
const MAX_KEYS_IN_TEXT: usize = 20;

/// Maximum problems of the configuration, notices and upstreams that are shown, and lines of one text after its first.
const MAX_PROBLEMS_SHOWN: usize = 3;
const MAX_NOTICES_SHOWN: usize = 3;
const MAX_UPSTREAMS_SHOWN: usize = 4;
const MAX_WRAPPED: usize = 1;

/// Seconds without a snapshot after which its age is shown.
const STALE_SECONDS: u64 = 3;

/// Heading of the keys, whose counts are of the current window and the one before.
const KEY_TITLE: &str = "HEAVIEST KEY, LAST 1-2 MIN";

/// Columns of an upstream's line beside its name.
const UPSTREAM_NUMBERS: usize = 64;

const PLOT_LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns everything without regard to a height, for output that is no terminal.
pub(super) fn text(view: &TopView) -> Vec<Line> {
    let Some(snapshot) = &view.snapshot else { return header(view, TEXT_COLUMNS, usize::MAX) };
    let mut lines = header(view, TEXT_COLUMNS, usize::MAX);
    lines.push(Line::default());
    lines.extend(rule_lines(view, &sorted_rules(view, snapshot), TEXT_COLUMNS));
    let keys = sorted_keys(snapshot);
    if !keys.is_empty() {
        lines.push(Line::default());
        lines.extend(key_lines(&keys[..keys.len().min(MAX_KEYS_IN_TEXT)], TEXT_COLUMNS));
    }
    lines
}

/// Returns at most as many lines as the terminal has rows.
pub(super) fn draw(view: &TopView, size: &ScreenSize) -> Vec<Line> {
    let mut lines = header(view, size.columns, size.rows / 4);
    if let Some(snapshot) = &view.snapshot {
        // Three rows are for the footer and empty lines.
        let free = size.rows.saturating_sub(lines.len() + 3);
        let rules = sorted_rules(view, snapshot);
        let keys = sorted_keys(snapshot);
        // Rules take what the keys leave, and at least half; each part has a heading.
        let keys_wanted = if keys.is_empty() { 0 } else { keys.len() + 2 };
        let for_rules = free.saturating_sub(keys_wanted).max(free / 2).min(rules.len() + 1);
        let shown = for_rules.saturating_sub(1).min(rules.len());
        let first = view.scroll.min(rules.len() - shown);
        lines.push(Line::default());
        lines.extend(rule_lines(view, &rules[first..first + shown], size.columns));
        let for_keys = free.saturating_sub(for_rules + 2).min(keys.len());
        if for_keys > 0 {
            lines.push(Line::default());
            lines.extend(key_lines(&keys[..for_keys], size.columns));
        }
        lines.truncate(size.rows.saturating_sub(1));
        lines.resize(size.rows.saturating_sub(1), Line::default());
        lines.push(footer(rules.len(), first, shown));
    }
    lines.truncate(size.rows);
    lines
}

fn footer(rules: usize, first: usize, shown: usize) -> Line {
    let mut line = Line::default().with(Tone::Faint, "q quit");
    if shown < rules {
        line.push(Tone::Faint, &format!("   ↑↓ scroll   rules {}–{} of {rules}", first + 1, first + shown));
    }
    line
}

/// Returns the state of the process: two lines, one for each of several instances, one per upstream, and what needs
/// attention.
fn header(view: &TopView, columns: usize, max_instances: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let title = Line::default().with(Tone::Strong, "weir");
    let Some(snapshot) = &view.snapshot else {
        lines.push(title.with(Tone::Plain, &format!("  {}  connecting", view.address)));
        lines.extend(lost(view));
        lines.extend(instances::lines(&view.instances, max_instances));
        return lines;
    };
    let title = title.with(Tone::Plain, &format!(" {}  {}  ", snapshot.version, view.address));
    lines.push(if view.instances.is_empty() {
        state(title, snapshot)
    } else {
        instances::summary(title, view)
    });
    lines.extend(lost(view));
    lines.push(totals(view, snapshot));
    lines.extend(instances::lines(&view.instances, max_instances));
    lines.extend(upstreams(view, snapshot, columns));
    lines.extend(attention(snapshot, columns));
    lines
}

/// Adds the state of one process to a line.
fn state(line: Line, snapshot: &ReceivedSnapshot) -> Line {
    let state = if snapshot.draining { "draining" } else { "serving" };
    let tone = if snapshot.draining { Tone::Alert } else { Tone::Plain };
    line.with(tone, state)
        .with(Tone::Faint, "  up ")
        .with(Tone::Plain, &duration_text(snapshot.uptime_seconds))
        .with(Tone::Faint, "  generation ")
        .with(Tone::Plain, &snapshot.generation.to_string())
}

/// Returns what needs attention: notices, and problems of the configuration.
fn attention(snapshot: &ReceivedSnapshot, columns: usize) -> Vec<Line> {
    let config = &snapshot.config;
    let notices = snapshot.notices.iter().take(MAX_NOTICES_SHOWN).map(|notice| ("notice: ", notice.as_str()));
    let problems =
        config.problems.iter().take(MAX_PROBLEMS_SHOWN).map(|problem| ("problem: ", problem.as_str()));
    let mut lines = Vec::new();
    for (label, text) in notices.chain(problems) {
        let mut rest = wrapped(text, columns.saturating_sub(width(label))).into_iter();
        let first = rest.next().unwrap_or_default();
        lines.push(Line::default().with(Tone::Alert, label).with(Tone::Plain, &first));
        lines.extend(
            rest.take(MAX_WRAPPED).map(|line| {
                Line::default().with(Tone::Plain, &format!("{}{line}", " ".repeat(width(label))))
            }),
        );
    }
    let more = snapshot.notices.len().saturating_sub(MAX_NOTICES_SHOWN);
    if more > 0 {
        lines.push(Line::default().with(Tone::Alert, &format!("and {more} more notices")));
    }
    lines
}

/// Returns a line if there is no connection, or if the data is old.
fn lost(view: &TopView) -> Option<Line> {
    let age = format!("data is {} old", duration_text(view.age as f64));
    let message = match &view.lost {
        // The reason is last, because a narrow terminal cuts the line.
        Some(error) if view.snapshot.is_some() => format!("error: {age}, reconnecting: {error}"),
        Some(error) => format!("error: {error}; reconnecting"),
        None if view.snapshot.is_some() && view.age >= STALE_SECONDS => age,
        None => return None,
    };
    Some(Line::default().with(Tone::Alert, &message))
}

fn totals(view: &TopView, snapshot: &ReceivedSnapshot) -> Line {
    let rates = view.rates.as_ref();
    let made = rates.and_then(|rates| rates.outcomes);
    // Of these, zeros are left out, so that the line fits.
    let optional = |rate: f64| (rate > 0.0).then_some(rate);
    let figures = [
        ("requests ", Some(rates.map(|rates| rates.requests)), false),
        ("  rejected ", Some(made.map(|made| made.rejected)), true),
        ("  delayed ", made.and_then(|made| optional(made.delayed)).map(Some), false),
        ("  shadow ", made.and_then(|made| optional(made.shadow)).map(Some), false),
        ("  5xx ", Some(rates.map(|rates| rates.server_errors)), true),
    ];
    let mut line = Line::default();
    for (label, rate, is_alert) in figures {
        let Some(rate) = rate else { continue };
        let tone = if is_alert && rate.is_some_and(|rate| rate > 0.0) { Tone::Alert } else { Tone::Plain };
        line.push(Tone::Faint, label);
        line.push(tone, &format!("{}/s", rate_text(rate)));
    }
    line.with(Tone::Faint, "  in flight ").with(Tone::Plain, &count_text(snapshot.in_flight))
}

/// Returns a line per upstream, those with unhealthy endpoints first.
fn upstreams(view: &TopView, snapshot: &ReceivedSnapshot, columns: usize) -> Vec<Line> {
    let mut shown: Vec<&ReceivedUpstream> = snapshot.upstreams.iter().collect();
    shown.sort_by_key(|upstream| upstream.healthy >= upstream.endpoints);
    let more = shown.len().saturating_sub(MAX_UPSTREAMS_SHOWN);
    let name = columns.saturating_sub(UPSTREAM_NUMBERS).max(MIN_NAME);
    let line = |upstream: &ReceivedUpstream| {
        let rate = view.rates.as_ref().and_then(|rates| rates.upstreams.get(&upstream.name)).copied();
        let tone = if upstream.healthy < upstream.endpoints { Tone::Alert } else { Tone::Plain };
        Line::default()
            .with(Tone::Faint, "upstream ")
            .with(Tone::Plain, &format!("{}  {}/s", cut_to_width(&upstream.name, name), rate_text(rate)))
            .with(Tone::Faint, "  p50 ")
            .with(Tone::Plain, &milliseconds_text(upstream.p50_ms))
            .with(Tone::Faint, "  p99 ")
            .with(Tone::Plain, &milliseconds_text(upstream.p99_ms))
            .with(Tone::Faint, "  healthy ")
            .with(tone, &format!("{}/{}", upstream.healthy, upstream.endpoints))
    };
    let mut lines: Vec<Line> = shown.into_iter().take(MAX_UPSTREAMS_SHOWN).map(line).collect();
    if more > 0 {
        lines.push(Line::default().with(Tone::Faint, &format!("and {more} more upstreams")));
    }
    lines
}

/// Returns the rules, most rejections first; rules alike stay in the order of the file.
fn sorted_rules<'v>(view: &TopView, snapshot: &'v ReceivedSnapshot) -> Vec<&'v ReceivedRule> {
    let mut rules: Vec<&ReceivedRule> = snapshot.rules.iter().collect();
    rules.sort_by(|one, other| {
        let (one, other) = (view.rule_rates(&one.name), view.rule_rates(&other.name));
        other.rejected.total_cmp(&one.rejected).then(other.total().total_cmp(&one.total()))
    });
    rules
}

/// Returns a heading and a line per rule.
fn rule_lines(view: &TopView, rules: &[&ReceivedRule], columns: usize) -> Vec<Line> {
    let layout = RuleLayout::new(view, rules, columns);
    let mut heading = left_aligned("RULE", layout.name);
    if layout.limits > 0 {
        heading += &format!("  {}", left_aligned("LIMIT", layout.limits));
    }
    for number in &layout.numbers {
        heading += &right_aligned(number.title(), number.width());
    }
    if layout.plot > 0 {
        heading += "  LAST SECONDS";
    }
    let mut lines = vec![Line::default().with(Tone::Strong, &heading)];
    lines.extend(rules.iter().map(|rule| rule_line(view, rule, &layout)));
    if rules.is_empty() && view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rules.is_empty()) {
        lines.push(Line::default().with(Tone::Faint, "no rules: every request is forwarded"));
    }
    lines
}

fn rule_line(view: &TopView, rule: &ReceivedRule, layout: &RuleLayout) -> Line {
    let made = view.rule_rates(&rule.name);
    let rate = |value: f64| rate_text(view.rates.is_some().then_some(value));
    let mut line = Line::default().with(Tone::Strong, &left_aligned(&rule.name, layout.name));
    if layout.limits > 0 {
        line.push(Tone::Plain, &format!("  {}", left_aligned(&terms(rule), layout.limits)));
    }
    for number in &layout.numbers {
        let (text, tone) = match number {
            RuleNumber::Allowed => (rate(made.allowed), Tone::Plain),
            RuleNumber::Delayed => (rate(made.delayed), Tone::Plain),
            RuleNumber::Shadow => (rate(made.shadow), Tone::Plain),
            RuleNumber::Rejected => (rate(made.rejected), Tone::Alert),
            RuleNumber::Tokens if rule.charged_tokens().is_none() => ("–".to_owned(), Tone::Plain),
            RuleNumber::Tokens => (rate(made.tokens), Tone::Plain),
            RuleNumber::Keys => (rule.keys.map_or_else(|| "–".to_owned(), count_text), Tone::Plain),
        };
        push_number(&mut line, &text, number.width(), tone);
    }
    if layout.plot > 0 {
        line.push(Tone::Faint, &format!("  {}", plot_text(view, rule, layout.plot)));
    }
    line
}

/// Appends a number. Zeros are faint, so that other numbers are found.
fn push_number(line: &mut Line, text: &str, columns: usize, tone: Tone) {
    let tone = if matches!(text, "0" | "–") { Tone::Faint } else { tone };
    line.push(tone, &right_aligned(text, columns));
}

/// Returns the limits and the mode of a rule.
fn terms(rule: &ReceivedRule) -> String {
    let mut parts: Vec<String> = match rule.action.as_str() {
        "limit" | "" => {
            let unit = rule.unit.as_deref().unwrap_or_default();
            let streams = rule.streams.iter().flatten().map(|stream| stream.limit.clone());
            rule.limits.iter().map(|limit| with_unit(limit, unit)).chain(streams).collect()
        }
        action => vec![action.to_owned()],
    };
    parts.extend(rule.throttle.iter().filter(|throttle| *throttle != "hard").cloned());
    parts.extend(rule.factor.map(|factor| format!("x{factor:.1}")));
    // An adaptive limit has the number in force.
    let in_flight = rule.concurrency.map(|concurrency| concurrency.limit).or(rule.in_flight);
    parts.extend(in_flight.map(|limit| format!("{limit} in flight")));
    parts.extend(rule.differs.then(|| "(differs)".to_owned()));
    parts.join(" ")
}

/// Returns the total rates of the last seconds as bars.
fn plot_text(view: &TopView, rule: &ReceivedRule, columns: usize) -> String {
    let Some(samples) = view.samples.get(&rule.name) else { return String::new() };
    let shown: Vec<f64> = samples.iter().skip(samples.len().saturating_sub(columns)).copied().collect();
    let max = shown.iter().copied().fold(0.0, f64::max);
    let bar = |sample: &f64| {
        if *sample <= 0.0 {
            return ' ';
        }
        // At most 7, since no sample is above the maximum.
        let level = (sample / max * 7.0).round() as usize;
        PLOT_LEVELS[level.min(7)]
    };
    let bars: String = shown.iter().map(bar).collect();
    right_aligned(&bars, columns)
}

struct RuleKey<'v> {
    rule: &'v str,
    key: &'v ReceivedKey,
}

/// Returns the keys of all rules and limits of documents: limited ones first, then by requests.
fn sorted_keys(snapshot: &ReceivedSnapshot) -> Vec<RuleKey<'_>> {
    let tops = || snapshot.top.iter().chain(&snapshot.documents);
    let mut keys = Vec::with_capacity(tops().map(|top| top.keys.len()).sum());
    for top in tops() {
        keys.extend(top.keys.iter().map(|key| RuleKey { rule: &top.rule, key }));
    }
    let weight = |entry: &RuleKey<'_>| (entry.key.limited(), entry.key.banned, entry.key.decisions());
    keys.sort_by_key(|entry| std::cmp::Reverse(weight(entry)));
    keys
}

/// Returns a heading and a line per key.
fn key_lines(keys: &[RuleKey<'_>], columns: usize) -> Vec<Line> {
    let counts = KeyNumber::ALL
        .into_iter()
        .filter(|number| number.is_always_shown() || keys.iter().any(|entry| number.of(entry.key) > 0));
    let counts: Vec<KeyNumber> = counts.collect();
    let tag = keys.iter().map(|entry| width(tags(entry.key))).max().unwrap_or(0);
    let rule = keys.iter().map(|entry| width(entry.rule)).max().unwrap_or(0);
    let rule = rule.clamp(MIN_NAME, MAX_NAME.min((columns / 4).max(MIN_NAME)));
    let widest = keys.iter().map(|entry| width(&entry.key.key)).max().unwrap_or(0);
    let left = columns.saturating_sub(rule + 4 + NUMBER * counts.len() + tag).max(MIN_NAME);
    let key = widest.max(width(KEY_TITLE)).clamp(MIN_NAME, left);
    let mut heading = format!("{}  {}", left_aligned(KEY_TITLE, key), left_aligned("RULE", rule));
    for number in &counts {
        heading += &right_aligned(number.title(), NUMBER);
    }
    let mut lines = vec![Line::default().with(Tone::Strong, &heading)];
    for RuleKey { rule: name, key: shown } in keys {
        let mut line = Line::default()
            .with(Tone::Plain, &left_aligned(&shown.key, key))
            .with(Tone::Faint, &format!("  {}", left_aligned(name, rule)));
        for number in &counts {
            let tone = if *number == KeyNumber::Rejected { Tone::Alert } else { Tone::Plain };
            push_number(&mut line, &count_text(number.of(shown)), NUMBER, tone);
        }
        line.push(Tone::Alert, tags(shown));
        lines.push(line);
    }
    lines
}

/// Returns what is set for a key, with a separator.
const fn tags(key: &ReceivedKey) -> &'static str {
    match (key.banned, key.boosted) {
        (true, _) => "  banned",
        (false, true) => "  boosted",
        (false, false) => "",
    }
}

#[cfg(test)]
mod tests;
