//! The explanation as text for a terminal.

use std::fmt::Write;

use super::report::{
    ExplainedClass, ExplainedClient, ExplainedRule, Explanation, LimitReport, OverrideReport,
};
use weir_policy::rules::cost_unit::{spaced, with_unit};
use weir_policy::rules::explain::Mismatch;

/// Maximum number of rules that do not apply and are listed; the others are counted.
const MAX_OTHER_RULES: usize = 20;

/// Returns the explanation as text: the outcome first, then the rules that apply, then why the others do not.
pub fn render(explanation: &Explanation) -> String {
    let mut text = String::new();
    outcome(&mut text, explanation);
    if let Some(request) = &explanation.request {
        client(&mut text, request);
    }
    if let Some(problem) = &explanation.body {
        line(&mut text, &format!("body:    {problem}"));
    }
    if let Some(ExplainedClass { name, share, of, sheddable }) = &explanation.class {
        let sheddable = if *sheddable { ", rejected first" } else { "" };
        line(&mut text, &format!("class:   {name}, share {share} of {of}{sheddable}"));
    }
    if let Some(report) = &explanation.documents {
        line(&mut text, "");
        line(&mut text, &format!("documents: {}", report.to_line()));
    }
    let (applying, others): (Vec<_>, Vec<_>) = explanation.rules.iter().partition(|rule| rule.applies);
    line(&mut text, "");
    line(&mut text, &format!("rules that match: {}", count_or_none(applying.len())));
    for found in &applying {
        rule(&mut text, found);
    }
    if !others.is_empty() {
        line(&mut text, "");
        line(&mut text, &format!("rules that do not match: {}", others.len()));
        for other in others.iter().take(MAX_OTHER_RULES) {
            line(&mut text, &format!("  {}: {}", other.name, why_not(other)));
        }
        if others.len() > MAX_OTHER_RULES {
            let more = others.len() - MAX_OTHER_RULES;
            line(&mut text, &format!("  and {more} more (--format json lists them)"));
        }
    }
    text
}

/// Writes a line. Control characters, which a client may have sent, are replaced.
fn line(text: &mut String, content: &str) {
    let shown = content.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char });
    text.extend(shown);
    text.push('\n');
}

fn outcome(text: &mut String, explanation: &Explanation) {
    let mut first = explanation.outcome.to_uppercase();
    if let Some(status) = explanation.status {
        let _ = write!(first, " {status}");
    }
    let _ = write!(first, ": {}", explanation.reason);
    if let Some(wait) = explanation.retry_after_seconds {
        let _ = write!(first, "; retry after {}", duration(wait));
    }
    if let Some(delay) = explanation.delay_seconds {
        let _ = write!(first, "; delay {}", duration(delay));
    }
    line(text, &first);
    for header in &explanation.headers {
        line(text, &format!("  {}: {}", header.name, header.value));
    }
}

fn client(text: &mut String, request: &ExplainedClient) {
    let query = request.query.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
    let method = request.method.as_deref().unwrap_or("-");
    let host = if request.host.is_empty() { "-" } else { &request.host };
    line(text, "");
    line(text, &format!("request: {method} {}{query}, host {host}", request.path));
    let ip = request.client_ip.as_deref().unwrap_or("-");
    let mut client = format!("client:  {ip}");
    if request.client_ip.as_ref() != Some(&request.peer) {
        let _ = write!(client, ", forwarded by {}", request.peer);
    }
    let known = [("country", &request.country), ("continent", &request.continent)];
    for (name, value) in known.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        let _ = write!(client, ", {name} {value}");
    }
    if let Some(asn) = request.asn {
        let _ = write!(client, ", AS{asn}");
    }
    line(text, &client);
}

fn rule(text: &mut String, rule: &ExplainedRule) {
    let mut head = format!("  {} ({})", rule.name, rule.action);
    if let Some(route) = &rule.route {
        let _ = write!(head, ", route {route}");
    }
    if let Some(outcome) = &rule.outcome {
        let _ = write!(head, ": {outcome}");
    }
    line(text, &head);
    if let Some(note) = &rule.note {
        line(text, &format!("    {note}"));
    }
    if let Some(key) = &rule.key {
        let shown = if key.text.is_empty() { "(all requests)" } else { &key.text };
        let fingerprint = key.fingerprint.as_deref().unwrap_or("-");
        let mode = if key.is_enforced { "" } else { ", shadow mode" };
        line(text, &format!("    key {shown}, fingerprint {fingerprint}{mode}"));
    }
    rule.limits.iter().for_each(|one| limit(text, one));
    rule.overrides.iter().for_each(|one| line(text, &format!("    {}", override_text(one))));
}

fn limit(text: &mut String, limit: &LimitReport) {
    let mut shown = format!("    {}", limit.role);
    if let Some(rate) = &limit.limit {
        let _ = write!(shown, " {}", with_unit(rate, &limit.unit));
    }
    if let Some(burst) = limit.burst {
        let _ = write!(shown, " burst {burst}");
    }
    if let (Some(used), Some(remaining)) = (limit.used, limit.remaining) {
        let unit = spaced(&limit.unit);
        let _ = write!(shown, " ({}): used {used}, remaining {remaining}{unit}", limit.algorithm);
    }
    if let Some(reset) = limit.reset_seconds.filter(|reset| *reset > 0.0) {
        let _ = write!(shown, ", reset in {}", duration(reset));
    }
    if limit.cost != 1 {
        let _ = write!(shown, ", cost {}{}", limit.cost, spaced(&limit.unit));
    }
    if let Some(leased) = limit.leased {
        let _ = write!(shown, ", leased here {leased}");
    }
    if limit.is_boosted {
        shown.push_str(", boosted");
    }
    if let Some(share) = limit.share {
        let _ = write!(shown, ", {:.1}% in force", share * 100.0);
    }
    if let Some(until) = &limit.paused_until {
        let _ = write!(shown, ", paused by the provider until {until}");
    }
    match (&limit.banned_until, limit.retry_after_seconds, limit.delay_seconds) {
        (Some(until), ..) => {
            let _ = write!(shown, ": banned until {until}");
        }
        (None, Some(wait), _) => {
            let _ = write!(shown, " -> exceeded, conforms in {}", duration(wait));
        }
        (None, None, Some(delay)) => {
            let _ = write!(shown, " -> delay {}", duration(delay));
        }
        (None, None, None) if limit.role == "ban" => shown.push_str(": none"),
        (None, None, None) => {}
    }
    line(text, &shown);
}

fn override_text(one: &OverrideReport) -> String {
    let change = one.change.as_ref().map(|change| format!(", {change}")).unwrap_or_default();
    format!("override: {}{change}, until {}", one.action, one.until)
}

fn why_not(rule: &ExplainedRule) -> String {
    match (&rule.mismatch, &rule.note) {
        (Some(Mismatch { field, actual, expected }), _) => {
            let mut why = format!("{field} does not match");
            if let Some(expected) = expected {
                let _ = write!(why, " {expected}");
            }
            if let Some(actual) = actual {
                let _ = write!(why, " (is {actual})");
            }
            why
        }
        (None, Some(note)) => note.clone(),
        (None, None) => "does not apply".to_owned(),
    }
}

fn count_or_none(count: usize) -> String {
    if count == 0 { "none".to_owned() } else { count.to_string() }
}

/// Returns seconds as text with at most three decimals.
fn duration(seconds: f64) -> String {
    let rounded = (seconds * 1000.0).ceil() / 1000.0;
    format!("{rounded} s")
}
