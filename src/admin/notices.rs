//! What an operator must see at once, as sentences for the live page and `weir top`.
//!
//! A notice is a state that lasts (a store that does not respond) or something that happened in the last seconds (requests
//! that were shed). Problems of the configuration are not among them: views show these with their places in the file.

use std::time::Duration;

use super::AdminState;
use super::recent::Sample;
use super::scrape::certificates;
use weir_policy::rules::rule::Action;
use weir_telemetry::metrics::{ClusterView, ConcurrencyView, HostView, TrafficTotals, UpstreamTotals};
use weir_telemetry::panics;

/// Maximum number of notices.
const MAX_NOTICES: usize = 20;
/// Time before the end of a certificate from which there is a notice.
const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 86_400);
/// Maximum length of a reason in a notice, in characters.
const MAX_REASON: usize = 200;

/// Returns the notices of this moment. `before` is a sample of some seconds ago.
pub(super) fn notices(state: &AdminState, now: &Sample, before: Option<&Sample>) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(store(state));
    found.extend(global_store(state));
    for view in state.process.upstreams() {
        found.extend(upstream(&view, now, before));
        found.extend(view.concurrency.iter().flat_map(|concurrency| shed_classes(&view.name, concurrency)));
    }
    if let Some(before) = before {
        let seconds = now.since(before).as_secs().max(1);
        found.extend(shed(&now.traffic, &before.traffic, seconds));
        found.extend(losses(now, before, seconds));
    }
    found.extend(table(state, now, before));
    found.extend(disk(state));
    found.extend(expiring_certificates(state));
    let panics = panics::count();
    if panics > 0 {
        found.push(format!(
            "{panics} panics since the start. Each is a bug in Weir, and standard error has it."
        ));
    }
    found.truncate(MAX_NOTICES);
    found
}

/// Classes whose requests are rejected because the upstream has no slot for them.
fn shed_classes(upstream: &str, ConcurrencyView { classes, gate }: &ConcurrencyView) -> Vec<String> {
    let shed = classes.iter().zip(&gate.classes).filter_map(|(name, class)| Some((name, class.shed_for?)));
    let notice = |(name, time): (_, Duration)| {
        format!(
            "Requests of class {name} are rejected since {} s: the {} slots of upstream {upstream} are in use.",
            time.as_secs(),
            gate.limit.limit
        )
    };
    shed.map(notice).collect()
}

/// The global store of several regions does not respond.
fn global_store(state: &AdminState) -> Option<String> {
    let region = state.process.region().filter(|region| region.is_global_away)?;
    Some(format!(
        "The global store does not respond: region {} counts with its part of the shared limits.",
        region.name
    ))
}

/// The store of shared limits does not respond.
fn store(state: &AdminState) -> Option<String> {
    if state.process.is_store_unreachable() != Some(true) {
        return None;
    }
    let policy = state.process.policy();
    let shared = policy.rules.rules().iter().filter_map(|rule| match &rule.action {
        Action::Limit(limiting) => limiting.shared(),
        Action::Allow | Action::Deny => None,
    });
    let mut policies: Vec<&str> = shared.map(|shared| shared.on_store_loss.as_str()).collect();
    let rules = policies.len();
    policies.sort_unstable();
    policies.dedup();
    let effect = match rules {
        0 => "No rule has `scope: shared`.".to_owned(),
        _ => format!(
            "{} with `scope: shared` use `on_store_loss: {}`.",
            plural(rules, "rule"),
            policies.join(", ")
        ),
    };
    Some(format!("The store of shared limits does not respond. {effect}"))
}

/// Endpoints that are unhealthy, or an upstream that does not respond to requests although no health check says so.
fn upstream(view: &ClusterView, now: &Sample, before: Option<&Sample>) -> Option<String> {
    let (name, endpoints) = (&view.name, view.hosts.len());
    let healthy = view.hosts.iter().filter(|host| HostView::is_healthy(host)).count();
    if endpoints == 0 {
        return Some(format!("Upstream {name} has no endpoint."));
    }
    let of = |sample: &Sample| sample.upstreams.iter().find(|totals| totals.name == *name).cloned();
    let recent = of(now).map(|now| failures(&now, before.and_then(of).as_ref()));
    let failing = recent.filter(|(failed, ended, _)| *failed > 0 && failed.saturating_mul(10) >= *ended);
    let failing = failing.map(|(failed, ended, reasons)| {
        format!("{failed} of its last {} got no response ({reasons})", plural(ended as usize, "request"))
    });
    match (healthy < endpoints, failing) {
        (true, None) => Some(format!("Upstream {name}: {healthy} of {endpoints} endpoints healthy.")),
        (true, Some(failing)) => {
            Some(format!("Upstream {name}: {healthy} of {endpoints} endpoints healthy, and {failing}."))
        }
        (false, Some(failing)) => Some(format!("Upstream {name}: {failing}.")),
        (false, None) => None,
    }
}

/// Returns the failed and all ended attempts since `before`, and the reasons of the failures.
fn failures(now: &UpstreamTotals, before: Option<&UpstreamTotals>) -> (u64, u64, String) {
    let (mut failed, mut ended, mut reasons) = (0_u64, 0_u64, Vec::new());
    for (position, (outcome, count)) in now.by_outcome.iter().enumerate() {
        let then = before.and_then(|before| before.by_outcome.get(position)).map_or(0, |(_, count)| *count);
        let count = count.saturating_sub(then);
        match *outcome {
            "answered" => ended = ended.saturating_add(count),
            // The client left.
            "abandoned" => {}
            outcome if count > 0 => {
                (failed, ended) = (failed.saturating_add(count), ended.saturating_add(count));
                reasons.push(format!("{} {count}", outcome.replace('_', " ")));
            }
            _ => {}
        }
    }
    (failed, ended, reasons.join(", "))
}

/// Connections and requests that were shed.
fn shed<'t>(
    now: &'t TrafficTotals,
    before: &'t TrafficTotals,
    seconds: u64,
) -> impl Iterator<Item = String> + 't {
    now.shed.iter().zip(&before.shed).filter_map(move |((limit, now), (_, then))| {
        let count = now.saturating_sub(*then);
        let what = if limit.starts_with("connections") { "connections" } else { "requests" };
        (count > 0).then(|| {
            format!("Overload protection has rejected {count} {what} in {seconds} s (`overload.{limit}`).")
        })
    })
}

/// What was lost for lack of a resource.
fn losses(now: &Sample, before: &Sample, seconds: u64) -> impl Iterator<Item = String> {
    let accepts = now.traffic.accept_failures.saturating_sub(before.traffic.accept_failures);
    let lines = now.lost_log_lines.saturating_sub(before.lost_log_lines);
    let text = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what} in {seconds} s."));
    text(accepts, "connections could not be accepted, for lack of file descriptors or memory,")
        .into_iter()
        .chain(text(lines, "lines of the access log were lost: its destination is full, slow or gone,"))
}

/// The table of counters is full.
fn table(state: &AdminState, now: &Sample, before: Option<&Sample>) -> Option<String> {
    let then = before.map_or(0, |before| before.table_overflows);
    let count = now.table_overflows.saturating_sub(then);
    (count > 0).then(|| {
        let (live, capacity) = (state.limiter.live_keys(), state.limiter.max_keys());
        format!(
            "The counter table is full ({live} of {capacity}, `limiter.max_keys`): new keys share counters, \
             {count} charges in the last seconds."
        )
    })
}

/// The state file cannot be written.
fn disk(state: &AdminState) -> Option<String> {
    let status = state.process.state_file()?;
    let problem: String = status.problem?.chars().take(MAX_REASON).collect();
    Some(format!(
        "The state file {} cannot be written: {problem}. Counters would not survive a restart.",
        status.file.display()
    ))
}

fn expiring_certificates(state: &AdminState) -> impl Iterator<Item = String> {
    let now = state.process.wall_clock().as_secs();
    certificates(state).into_iter().filter_map(move |(file, validity)| {
        let left = i64::try_from(validity.expires).ok()?.saturating_sub(i64::try_from(now).ok()?);
        match u64::try_from(left) {
            Err(_) => Some(format!("The certificate {file} has expired.")),
            Ok(left) if left < EXPIRY_NOTICE.as_secs() => {
                Some(format!("The certificate {file} expires in {}.", plural((left / 3600) as usize, "hour")))
            }
            Ok(_) => None,
        }
    })
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
