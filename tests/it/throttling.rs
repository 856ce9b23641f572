//! Requests that exceed a limit: rejection, delay, soft limits, concurrency limits and bans.

mod another_upstream;
mod bans;
mod delay;
mod in_flight;
mod soft_limits;

use crate::support::{Client, Origin, Weir, config};

/// Starts a proxy in front of `origin` with these rules.
fn start_with_rules(origin: &Origin, rules: &[&str]) -> Weir {
    Weir::start(&config_with_rules(origin, rules))
}

fn config_with_rules(origin: &Origin, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    config(origin.address(), &format!("rules:\n{rules}"))
}

/// Sends `requests` requests in order, each on a new connection, and returns the status codes.
fn statuses(weir: &Weir, requests: usize) -> Vec<u16> {
    (0..requests).map(|_| Client::connect(weir.address()).get("/").status).collect()
}

/// Returns how many decisions of a rule had this outcome.
fn decisions(weir: &Weir, rule: &str, outcome: &str) -> f64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
}
