//! What becomes of requests that are over a limit, and what else can hold or keep them out.

mod bans;
mod delay;
mod in_flight;
mod soft;

use crate::support::{Client, Origin, Weir, config};

/// A proxy in front of `origin` with these rules, each on a line.
fn with_rules(origin: &Origin, rules: &[&str]) -> Weir {
    Weir::start(&rules_for(origin, rules))
}

fn rules_for(origin: &Origin, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|rule| format!("  - {rule}\n")).collect();
    config(origin.address(), &format!("rules:\n{rules}"))
}

/// The statuses of so many requests, one after the other, each on a connection of its own.
fn statuses(weir: &Weir, requests: usize) -> Vec<u16> {
    (0..requests).map(|_| Client::connect(weir.address()).get("/").status).collect()
}

/// How often a rule did this.
fn decisions(weir: &Weir, rule: &str, outcome: &str) -> f64 {
    weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", outcome)])
}
