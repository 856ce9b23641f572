//! The report as one page without outside resources. It follows the colour scheme of the browser, and every plot has its
//! numbers in a table.

use std::fmt::Write as _;

use super::{
    ClientReport, DemandReport, LogReport, ReplayReport, RuleReport, UnreadableLine, grouped, per_cent, plot,
};

const STYLE: &str = include_str!("style.css");

impl ReplayReport {
    /// Returns the page.
    pub fn to_html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\"><title>Replay of {0}</title><style>{STYLE}</style></head>\
             <body><main><h1>Replay of {0}</h1>",
            escape(&self.config)
        );
        write_overview(&mut page, self);
        for (index, rule) in self.rules.iter().enumerate() {
            write_rule(&mut page, rule, index);
        }
        write_clients(&mut page, "Rejected clients", &self.clients.top, false);
        write_comparison(&mut page, self);
        let _ = writeln!(
            page,
            "<footer><p>Weir {}, {} lines in {:.1} s.</p></footer></main></body></html>",
            self.version,
            grouped(self.counts.lines),
            self.seconds
        );
        page
    }
}

fn write_overview(page: &mut String, report: &ReplayReport) {
    if let (Some(from), Some(to)) = (&report.from, &report.to) {
        let _ = write!(page, "<p>From <time>{from}</time> to <time>{to}</time>.</p>");
    }
    for problem in &report.problems {
        let _ = write!(page, "<p class=\"note\" role=\"alert\">{}.</p>", escape(problem));
    }
    let share = |number| vec![grouped(number), per_cent(number, report.requests)];
    let rows = [
        ("requests", report.requests),
        ("passed", report.passed),
        ("passed after a delay", report.delayed),
        ("rejected", report.rejected),
        ("malformed", report.malformed),
        ("decided late", report.late),
    ];
    let rows = rows.map(|(name, number)| [vec![name.to_owned()], share(number)].concat());
    write_table(page, "Requests", &["", "number", "share"], rows.into_iter());
    let logs = report.logs.iter().map(|log| {
        let format = log.format.map_or("empty", |format| format.as_str()).to_owned();
        let counts = &log.counts;
        let counts =
            [counts.lines, counts.unreadable, counts.no_request, counts.implausible_time].map(grouped);
        [vec![log.name.clone(), format], counts.to_vec()].concat()
    });
    write_table(
        page,
        "Logs",
        &["log", "format", "lines", "unreadable", "no request", "implausible time"],
        logs,
    );
    let rows = |log: &LogReport, lines: &[UnreadableLine]| {
        let row = |it: &UnreadableLine| vec![format!("{}:{}", log.name, it.line), it.text.clone()];
        lines.iter().map(row).collect::<Vec<_>>()
    };
    let unreadable = report.logs.iter().flat_map(|log| rows(log, &log.unreadable_examples));
    write_table(page, "Unreadable lines", &["line", "begins with"], unreadable);
    let implausible = report.logs.iter().flat_map(|log| rows(log, &log.implausible_examples));
    write_table(page, "Lines with an implausible time", &["line", "begins with"], implausible);
    for note in &report.notes {
        let _ = write!(page, "<p class=\"note\">Note: {}.</p>", escape(note));
    }
}

fn write_rule(page: &mut String, rule: &RuleReport, index: usize) {
    let limits = if rule.limits.is_empty() { rule.action.to_owned() } else { rule.limits.join(" and ") };
    let key = rule.key.as_ref().map(|key| format!(" by {key}")).unwrap_or_default();
    let _ =
        write!(page, "<section><h2>{}</h2><p>{}</p>", escape(&rule.name), escape(&format!("{limits}{key}")));
    for missing in &rule.undecidable {
        let text = format!(
            "Needs {}, which the log does not have, for {} requests: {}{}.",
            missing.attribute,
            grouped(missing.requests),
            missing.consequence,
            missing.hint()
        );
        let _ = write!(page, "<p class=\"note\">{}</p>", escape(&text));
    }
    if rule.not_simulated > 0 {
        let _ =
            write!(page, "<p class=\"note\">Not simulated: {} requests.</p>", grouped(rule.not_simulated));
    }
    let total = rule.outcomes.total().saturating_add(rule.rejected_by_others);
    let others = ("rejected by other rules", rule.rejected_by_others);
    let outcomes = rule.outcomes.named().into_iter().chain([others]).filter(|(_, number)| *number > 0);
    let outcomes =
        outcomes.map(|(name, number)| vec![name.to_owned(), grouped(number), per_cent(number, total)]);
    write_table(page, "Outcomes", &["outcome", "requests", "share"], outcomes);
    if rule.outcomes.total() > 0 {
        page.push_str(&plot::series(rule, index));
        page.push_str("<ul class=\"legend\">");
        for (class, name) in rule.series.classes.iter().enumerate() {
            let _ = write!(page, "<li class=\"c{class}\">{name}</li>");
        }
        page.push_str("</ul>");
    }
    for (number, demand) in rule.demand.iter().chain(&rule.further_demand).enumerate() {
        write_demand(page, demand, &format!("{index}-{number}"));
    }
    let keys = rule.top.iter().map(|key| {
        let counts = key.outcomes.named().into_iter().filter(|(_, number)| *number > 0);
        let counts: Vec<String> =
            counts.map(|(name, number)| format!("{name} {}", grouped(number))).collect();
        vec![key.key.clone(), counts.join(", "), key.first.clone(), key.last.clone()]
    });
    write_table(page, "Most affected keys", &["key", "requests", "first", "last"], keys);
    page.push_str("</section>");
}

fn write_demand(page: &mut String, demand: &DemandReport, id: &str) {
    page.push_str(&plot::demand(demand, id));
    let rows = demand.candidates.iter().map(|candidate| {
        let mark = if candidate.limit == demand.limit { " (configured)" } else { "" };
        vec![
            format!("{}/{}{mark}", grouped(candidate.limit), demand.period),
            format!("{} of {}", grouped(candidate.keys_above), grouped(demand.keys as u64)),
            grouped(candidate.requests_above),
        ]
    });
    let caption = format!("Possible limits per {} by {}", demand.period, escape(&demand.key));
    write_table(page, &caption, &["limit", "keys above it", "requests above it"], rows);
}

/// Writes a table of clients. A comparison has a column for the rejections by the other rules.
fn write_clients(page: &mut String, title: &str, clients: &[ClientReport], is_comparison: bool) {
    let rows = clients.iter().map(|client| {
        let before = is_comparison.then(|| grouped(client.rejected_before));
        let rule = client.rule.clone().unwrap_or_default();
        let cells = [grouped(client.rejected), rule, client.first.clone(), client.last.clone()];
        [client.client.clone()].into_iter().chain(before).chain(cells).collect()
    });
    let columns: &[&str] = if is_comparison {
        &["client", "rejected before", "rejected after", "first rule", "first", "last"]
    } else {
        &["client", "rejected requests", "first rule", "first", "last"]
    };
    write_table(page, title, columns, rows);
}

fn write_comparison(page: &mut String, report: &ReplayReport) {
    let (Some(comparison), Some(against)) = (&report.comparison, &report.against) else { return };
    let _ = write!(page, "<section><h2>Compared with {}</h2>", escape(against));
    let rows = [
        ("newly rejected", comparison.newly_rejected, comparison.new_clients),
        ("no longer rejected", comparison.no_longer_rejected, comparison.former_clients),
    ];
    let rows =
        rows.map(|(name, requests, clients)| vec![name.to_owned(), grouped(requests), grouped(clients)]);
    let both = vec!["rejected by both".to_owned(), grouped(comparison.rejected_by_both), String::new()];
    let rows = rows.into_iter().chain([both]);
    write_table(page, "Differences", &["", "requests", "clients that are only in this group"], rows);
    let number = |number: Option<u64>| number.map_or_else(|| "no such rule".to_owned(), grouped);
    let rules =
        comparison.rules.iter().map(|rule| vec![rule.name.clone(), number(rule.before), number(rule.after)]);
    write_table(page, "Rejections by rule", &["rule", "before", "after"], rules);
    write_clients(page, "Newly rejected clients", &comparison.top_newly, true);
    write_clients(page, "No longer rejected clients", &comparison.top_no_longer, true);
    page.push_str("</section>");
}

/// Writes a table, unless it has no rows. The first cell of a row is its heading.
fn write_table(page: &mut String, caption: &str, columns: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let _ = write!(
        page,
        "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption>{caption}</caption><thead><tr>"
    );
    for column in columns {
        let _ = write!(page, "<th scope=\"col\">{column}</th>");
    }
    page.push_str("</tr></thead><tbody>");
    for row in rows {
        page.push_str("<tr>");
        for (index, cell) in row.iter().enumerate() {
            let cell = escape(cell);
            let _ = match index {
                0 => write!(page, "<th scope=\"row\">{cell}</th>"),
                _ => write!(page, "<td>{cell}</td>"),
            };
        }
        page.push_str("</tr>");
    }
    page.push_str("</tbody></table></div>");
}

/// Escapes text for HTML. Clients choose keys, and lines of logs are of unknown origin.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}
