//! The screen of `weir top`: a pure function from the view and the size of the terminal to lines.

use super::line::{Line, Tone, left_aligned, right_aligned, width};
use super::numbers::{count_text, duration_text, milliseconds_text, rate_text};
use super::snapshot::{ReceivedKey, ReceivedRule, ReceivedSnapshot, ReceivedUpstream};
use super::view::{DecisionRates, TopView};

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScreenSize {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Width of [`text`], and the number of keys in it.
const TEXT_COLUMNS: usize = 120;
const MAX_KEYS_IN_TEXT: usize = 20;

/// Maximum problems of the configuration that are shown.
const MAX_PROBLEMS_SHOWN: usize = 3;

/// Seconds without a snapshot after which its age is shown.
const STALE_SECONDS: u64 = 3;

/// Bounds of the columns with the names and limits of rules.
const MIN_NAME: usize = 8;
const MAX_NAME: usize = 32;
const MAX_LIMITS: usize = 26;

/// Width of a column with numbers.
const NUMBER: usize = 10;

/// Maximum width of the small plots, and the width of the terminal from which there are some.
const MAX_PLOT: usize = 30;
const MIN_COLUMNS_FOR_PLOT: usize = 100;

const PLOT_LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Returns everything without regard to a height, for output that is no terminal.
pub(super) fn text(view: &TopView) -> Vec<Line> {
    let Some(snapshot) = &view.snapshot else { return header(view) };
    let mut lines = header(view);
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
    let mut lines = header(view);
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

/// Returns the state of the process: two lines, one per upstream, and what needs attention.
fn header(view: &TopView) -> Vec<Line> {
    let mut lines = Vec::new();
    let title = Line::default().with(Tone::Strong, "weir");
    let Some(snapshot) = &view.snapshot else {
        lines.push(title.with(Tone::Plain, &format!("  {}  connecting", view.address)));
        lines.extend(lost(view));
        return lines;
    };
    let state = if snapshot.draining { "draining" } else { "serving" };
    let tone = if snapshot.draining { Tone::Alert } else { Tone::Plain };
    lines.push(
        title
            .with(Tone::Plain, &format!(" {}  {}  ", snapshot.version, view.address))
            .with(tone, state)
            .with(Tone::Faint, "  up ")
            .with(Tone::Plain, &duration_text(snapshot.uptime_seconds))
            .with(Tone::Faint, "  generation ")
            .with(Tone::Plain, &snapshot.generation.to_string()),
    );
    lines.extend(lost(view));
    lines.push(totals(view, snapshot));
    lines.extend(upstreams(view, snapshot));
    for problem in snapshot.config.problems.iter().take(MAX_PROBLEMS_SHOWN) {
        lines.push(Line::default().with(Tone::Alert, "problem: ").with(Tone::Plain, problem));
    }
    if !snapshot.config.restart_pending.is_empty() {
        let fields = snapshot.config.restart_pending.join(", ");
        lines.push(Line::default().with(Tone::Alert, "needs a restart: ").with(Tone::Plain, &fields));
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
    let made = rates.map(|rates| rates.decisions);
    let figures = [
        ("requests ", rates.map(|rates| rates.requests), false),
        ("  rejected ", made.map(|made| made.rejected), true),
        ("  delayed ", made.map(|made| made.delayed), false),
        ("  shadow ", made.map(|made| made.shadow), false),
        ("  5xx ", rates.map(|rates| rates.server_errors), true),
    ];
    let mut line = Line::default();
    for (label, rate, is_alert) in figures {
        let tone = if is_alert && rate.is_some_and(|rate| rate > 0.0) { Tone::Alert } else { Tone::Plain };
        line.push(Tone::Faint, label);
        line.push(tone, &format!("{}/s", rate_text(rate)));
    }
    line.with(Tone::Faint, "  in flight ").with(Tone::Plain, &count_text(snapshot.in_flight))
}

fn upstreams(view: &TopView, snapshot: &ReceivedSnapshot) -> Vec<Line> {
    let line = |upstream: &ReceivedUpstream| {
        let rate = view.rates.as_ref().and_then(|rates| rates.upstreams.get(&upstream.name)).copied();
        let tone = if upstream.healthy < upstream.endpoints { Tone::Alert } else { Tone::Plain };
        Line::default()
            .with(Tone::Faint, "upstream ")
            .with(Tone::Plain, &format!("{}  {}/s", upstream.name, rate_text(rate)))
            .with(Tone::Faint, "  p50 ")
            .with(Tone::Plain, &milliseconds_text(upstream.p50_ms))
            .with(Tone::Faint, "  p99 ")
            .with(Tone::Plain, &milliseconds_text(upstream.p99_ms))
            .with(Tone::Faint, "  healthy ")
            .with(tone, &format!("{}/{}", upstream.healthy, upstream.endpoints))
    };
    snapshot.upstreams.iter().map(line).collect()
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
    let widest = rules.iter().map(|rule| width(&rule.name)).max().unwrap_or(0);
    let name = widest.clamp(MIN_NAME, MAX_NAME.min((columns / 3).max(MIN_NAME)));
    let limits = rules.iter().map(|rule| width(&terms(rule))).max().unwrap_or(0);
    let limits = limits.clamp(5, MAX_LIMITS);
    let left = columns.saturating_sub(name + limits + 4 + NUMBER * 5);
    let has_samples = view.samples.values().any(|samples| samples.len() > 1);
    let has_plot = columns >= MIN_COLUMNS_FOR_PLOT && left > 8 && has_samples;
    let plot = if has_plot { (left - 2).min(MAX_PLOT) } else { 0 };
    let mut heading = format!("{}  {}", left_aligned("RULE", name), left_aligned("LIMIT", limits));
    for title in ["ALLOWED/s", "DELAYED/s", "SHADOW/s", "REJECTED/s", "KEYS"] {
        heading += &right_aligned(title, if title == "REJECTED/s" { NUMBER + 2 } else { NUMBER });
    }
    if plot > 0 {
        heading += "  LAST SECONDS";
    }
    let mut lines = vec![Line::default().with(Tone::Strong, &heading)];
    lines.extend(rules.iter().map(|rule| rule_line(view, rule, &RuleColumns { name, limits, plot })));
    if rules.is_empty() && view.snapshot.as_ref().is_some_and(|snapshot| snapshot.rules.is_empty()) {
        lines.push(Line::default().with(Tone::Faint, "no rules: every request is forwarded"));
    }
    lines
}

/// Widths of the columns that depend on the rules.
struct RuleColumns {
    name: usize,
    limits: usize,
    plot: usize,
}

fn rule_line(view: &TopView, rule: &ReceivedRule, columns: &RuleColumns) -> Line {
    let made = view.rule_rates(&rule.name);
    let rate = |value: fn(&DecisionRates) -> f64| view.rates.is_some().then(|| value(&made));
    let mut line = Line::default()
        .with(Tone::Strong, &left_aligned(&rule.name, columns.name))
        .with(Tone::Plain, &format!("  {}", left_aligned(&terms(rule), columns.limits)));
    for value in [rate(|made| made.allowed), rate(|made| made.delayed), rate(|made| made.shadow)] {
        push_number(&mut line, &rate_text(value), NUMBER, Tone::Plain);
    }
    push_number(&mut line, &rate_text(rate(|made| made.rejected)), NUMBER + 2, Tone::Alert);
    push_number(&mut line, &rule.keys.map_or_else(|| "–".to_owned(), count_text), NUMBER, Tone::Plain);
    if columns.plot > 0 {
        line.push(Tone::Faint, &format!("  {}", plot_text(view, rule, columns.plot)));
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
        "limit" | "" => rule.limits.clone(),
        action => vec![action.to_owned()],
    };
    parts.extend(rule.throttle.iter().filter(|throttle| *throttle != "hard").cloned());
    parts.extend(rule.factor.map(|factor| format!("x{factor:.1}")));
    parts.extend(rule.concurrency.map(|concurrency| format!("{} in flight", concurrency.limit)));
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

/// A key and its rule.
struct RuleKey<'v> {
    rule: &'v str,
    key: &'v ReceivedKey,
}

/// Returns the keys of all rules: limited ones first, then by requests.
fn sorted_keys(snapshot: &ReceivedSnapshot) -> Vec<RuleKey<'_>> {
    let mut keys = Vec::with_capacity(snapshot.top.iter().map(|top| top.keys.len()).sum());
    for top in &snapshot.top {
        keys.extend(top.keys.iter().map(|key| RuleKey { rule: &top.rule, key }));
    }
    let weight = |entry: &RuleKey<'_>| (entry.key.limited(), entry.key.banned, entry.key.decisions());
    keys.sort_by_key(|entry| std::cmp::Reverse(weight(entry)));
    keys
}

/// Returns a heading and a line per key.
fn key_lines(keys: &[RuleKey<'_>], columns: usize) -> Vec<Line> {
    let rule = keys.iter().map(|entry| width(entry.rule)).max().unwrap_or(0);
    let rule = rule.clamp(MIN_NAME, MAX_NAME.min((columns / 4).max(MIN_NAME)));
    let widest = keys.iter().map(|entry| width(&entry.key.key)).max().unwrap_or(0);
    let left = columns.saturating_sub(rule + 4 + NUMBER * 4).max(MIN_NAME);
    let key = widest.clamp(MIN_NAME, left);
    let mut heading = format!("{}  {}", left_aligned("HEAVIEST KEY", key), left_aligned("RULE", rule));
    for title in ["ADMITTED", "DELAYED", "SHADOW", "REJECTED"] {
        heading += &right_aligned(title, NUMBER);
    }
    let mut lines = vec![Line::default().with(Tone::Strong, &heading)];
    for RuleKey { rule: name, key: shown } in keys {
        let mut line = Line::default()
            .with(Tone::Plain, &left_aligned(&shown.key, key))
            .with(Tone::Faint, &format!("  {}", left_aligned(name, rule)));
        for count in [shown.admitted, shown.delayed, shown.shadow] {
            push_number(&mut line, &count_text(count), NUMBER, Tone::Plain);
        }
        push_number(&mut line, &count_text(shown.rejected), NUMBER, Tone::Alert);
        if shown.banned {
            line.push(Tone::Alert, "  banned");
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests;
