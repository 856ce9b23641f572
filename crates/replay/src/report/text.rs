//! The report as text for a terminal.

use std::fmt::{self, Write as _};

use super::{ClientReport, ComparisonReport, DemandReport, ReplayReport, RuleReport, grouped, per_cent};

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_input(f, self)?;
        write_totals(f, self)?;
        self.rules.iter().try_for_each(|rule| write_rule(f, rule))?;
        if !self.clients.top.is_empty() {
            writeln!(f, "\nrejected clients: {}", grouped(self.clients.rejected))?;
            self.clients.top.iter().try_for_each(|client| write_client(f, client))?;
            write_left_out(f, self.clients.uncounted_requests, "rejected requests of further clients")?;
        }
        if let (Some(comparison), Some(against)) = (&self.comparison, &self.against) {
            write_comparison(f, comparison, against)?;
        }
        writeln!(
            f,
            "\n{} lines in {:.1} s, {} lines/s",
            grouped(self.counts.lines),
            self.seconds,
            grouped(self.lines_per_second() as u64)
        )
    }
}

fn write_input(f: &mut fmt::Formatter<'_>, report: &ReplayReport) -> fmt::Result {
    match (&report.from, &report.to) {
        (Some(from), Some(to)) => writeln!(f, "{} from {from} to {to}", report.config)?,
        _ => writeln!(f, "{}: no requests", report.config)?,
    }
    for log in &report.logs {
        let format = log.format.map_or("empty", |format| format.as_str());
        writeln!(f, "  {}: {format}, {} lines", log.name, grouped(log.counts.lines))?;
        if log.counts.unreadable > 0 {
            writeln!(f, "    {} lines cannot be read, the first are", grouped(log.counts.unreadable))?;
        }
        for example in &log.unreadable_examples {
            writeln!(f, "      {}:{}: {}", log.name, example.line, example.text)?;
        }
        if log.counts.implausible_time > 0 {
            let number = grouped(log.counts.implausible_time);
            writeln!(
                f,
                "    {number} lines are set aside, their time is far ahead of the lines around them"
            )?;
        }
        for example in &log.implausible_examples {
            writeln!(f, "      {}:{}: {}", log.name, example.line, example.text)?;
        }
        if log.counts.no_request > 0 {
            writeln!(f, "    {} lines record no request", grouped(log.counts.no_request))?;
        }
    }
    report.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))?;
    report.problems.iter().try_for_each(|problem| writeln!(f, "\n{problem}"))
}

fn write_totals(f: &mut fmt::Formatter<'_>, report: &ReplayReport) -> fmt::Result {
    writeln!(f, "\nrequests {}", grouped(report.requests))?;
    for (what, number) in [
        ("passed", report.passed),
        ("  after a delay", report.delayed),
        ("rejected", report.rejected),
        ("malformed", report.malformed),
    ] {
        if number > 0 || what == "rejected" {
            writeln!(f, "  {what} {} ({})", grouped(number), per_cent(number, report.requests))?;
        }
    }
    Ok(())
}

fn write_rule(f: &mut fmt::Formatter<'_>, rule: &RuleReport) -> fmt::Result {
    write!(
        f,
        "\nrule {}: {}",
        rule.name,
        if rule.limits.is_empty() { rule.action.to_owned() } else { rule.limits.join(" and ") }
    )?;
    if let Some(key) = &rule.key {
        write!(f, " by {key}")?;
    }
    if let Some(throttle) = rule.throttle.as_deref().filter(|throttle| *throttle != "hard") {
        write!(f, ", {throttle}")?;
    }
    writeln!(f, "\n  {}", outcomes(rule))?;
    for missing in &rule.undecidable {
        writeln!(
            f,
            "  needs {}, which the log does not have, for {} requests: {}{}",
            missing.attribute,
            grouped(missing.requests),
            missing.consequence,
            missing.hint()
        )?;
    }
    if rule.not_simulated > 0 {
        writeln!(f, "  not simulated: {} requests", grouped(rule.not_simulated))?;
    }
    if rule.outcomes.delayed > 0 {
        writeln!(f, "  delays: mean {:.0} ms, at most {:.0} ms", rule.mean_delay_ms, rule.max_delay_ms)?;
    }
    if let Some(minute) = &rule.busiest_minute {
        let (requests, rejected) = (grouped(minute.requests), grouped(minute.rejected));
        writeln!(f, "  busiest minute {}: {requests} requests, {rejected} rejected", minute.at)?;
    }
    write_keys(f, rule)?;
    rule.demand.iter().chain(&rule.further_demand).try_for_each(|demand| write_demand(f, demand, rule))
}

/// Returns the outcomes that occur, and how many requests each has.
fn outcomes(rule: &RuleReport) -> String {
    let others = ("rejected by other rules", rule.rejected_by_others);
    let named = rule.outcomes.named().into_iter().chain([others]).filter(|(_, number)| *number > 0);
    let named: Vec<String> = named.map(|(name, number)| format!("{name} {}", grouped(number))).collect();
    if named.is_empty() { "applied to no request".to_owned() } else { named.join(", ") }
}

fn write_keys(f: &mut fmt::Formatter<'_>, rule: &RuleReport) -> fmt::Result {
    if rule.affected_keys > 0 {
        writeln!(
            f,
            "  keys: {}, of them affected: {}",
            grouped(rule.keys as u64),
            grouped(rule.affected_keys as u64)
        )?;
    }
    for key in &rule.top {
        let named = key.outcomes.named().into_iter().filter(|(_, number)| *number > 0);
        let mut counts = String::new();
        for (name, number) in named {
            write!(counts, ", {name} {}", grouped(number))?;
        }
        writeln!(f, "    {}{counts}, {} to {}", key.key, key.first, key.last)?;
    }
    write_left_out(f, rule.unlisted_requests, "requests of further keys")?;
    write_left_out(f, rule.uncounted_requests, "requests of further keys are not in the rates")
}

/// States what lists do not contain because they are full.
fn write_left_out(f: &mut fmt::Formatter<'_>, requests: u64, what: &str) -> fmt::Result {
    if requests > 0 { writeln!(f, "    and {} {what}", grouped(requests)) } else { Ok(()) }
}

fn write_demand(f: &mut fmt::Formatter<'_>, demand: &DemandReport, rule: &RuleReport) -> fmt::Result {
    let DemandReport { period, limit, p50, p99, p999, max, key, .. } = demand;
    let by = if rule.key.as_ref() == Some(key) { String::new() } else { format!(" by {key}") };
    writeln!(
        f,
        "  requests per {period}{by}: 50 % of keys stay at or under {}, 99 % {}, 99.9 % {}, all {}; the limit is {}",
        grouped(*p50),
        grouped(*p99),
        grouped(*p999),
        grouped(*max),
        grouped(*limit)
    )?;
    for candidate in &demand.candidates {
        writeln!(
            f,
            "    a limit of {}/{period} is exceeded by {} of {} keys and {} of {} requests",
            grouped(candidate.limit),
            grouped(candidate.keys_above),
            grouped(demand.keys as u64),
            grouped(candidate.requests_above),
            grouped(demand.requests)
        )?;
    }
    Ok(())
}

fn write_client(f: &mut fmt::Formatter<'_>, client: &ClientReport) -> fmt::Result {
    let rule = client.rule.as_deref().map(|rule| format!(", first by {rule}")).unwrap_or_default();
    let ClientReport { client, rejected, first, last, .. } = client;
    writeln!(f, "  {client}: {} requests{rule}, {first} to {last}", grouped(*rejected))
}

fn write_comparison(f: &mut fmt::Formatter<'_>, comparison: &ComparisonReport, against: &str) -> fmt::Result {
    writeln!(f, "\ncompared with {against}")?;
    writeln!(
        f,
        "  newly rejected: {} requests, {} clients that were never rejected",
        grouped(comparison.newly_rejected),
        grouped(comparison.new_clients)
    )?;
    writeln!(
        f,
        "  no longer rejected: {} requests, {} clients that are never rejected now",
        grouped(comparison.no_longer_rejected),
        grouped(comparison.former_clients)
    )?;
    writeln!(f, "  rejected by both: {}", grouped(comparison.rejected_by_both))?;
    for rule in &comparison.rules {
        let number = |number: Option<u64>| number.map_or_else(|| "no such rule".to_owned(), grouped);
        writeln!(f, "  rule {}: rejected {} → {}", rule.name, number(rule.before), number(rule.after))?;
    }
    for (title, clients) in [
        ("newly rejected clients", &comparison.top_newly),
        ("no longer rejected clients", &comparison.top_no_longer),
    ] {
        if !clients.is_empty() {
            writeln!(f, "  {title}")?;
        }
        for client in clients {
            let (before, after) = (grouped(client.rejected_before), grouped(client.rejected));
            writeln!(
                f,
                "    {}: rejected {before} → {after}, {} to {}",
                client.client, client.first, client.last
            )?;
        }
    }
    Ok(())
}
