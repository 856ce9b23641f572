//! The report of a replay, as text, as a page, and as JSON.

mod build;
mod file;
mod html;
mod plot;
mod problems;
mod text;

use serde::Serialize;

pub use self::file::ReportFile;
use super::format::LogFormat;
use super::needs::Undecidable;
use super::record::{LineCounts, UnreadableLine};

/// Result of a replay. Its JSON form is documented; times are RFC 3339 in UTC.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Version of Weir.
    pub version: &'static str,
    /// Configuration file whose rules were replayed.
    pub config: String,
    /// Configuration file to compare with.
    pub against: Option<String>,
    /// The logs, in the order of the command line.
    pub logs: Vec<LogReport>,
    /// Lines of all logs.
    pub counts: LineCounts,
    /// Whether the results are those of the logged traffic. Not so if too many requests were not decided in their order.
    pub usable: bool,
    /// What is wrong with the logs, so that the results are incomplete or not usable.
    pub problems: Vec<String>,
    /// Arrival of the first request.
    pub from: Option<String>,
    /// Arrival of the last request.
    pub to: Option<String>,
    /// Requests in the logs.
    pub requests: u64,
    /// Requests that passed, some after a delay.
    pub passed: u64,
    /// Requests that passed after a delay.
    pub delayed: u64,
    /// Requests that a rule rejected.
    pub rejected: u64,
    /// Requests that the proxy would have rejected with 400.
    pub malformed: u64,
    /// Requests that were read after later ones had been decided, and were decided at the time of those.
    pub late: u64,
    /// Assumptions of the replay.
    pub notes: Vec<String>,
    /// What each rule did, in file order.
    pub rules: Vec<RuleReport>,
    /// Clients whose requests were rejected.
    pub clients: ClientsReport,
    /// Differences to the decisions of `against`.
    pub comparison: Option<ComparisonReport>,
    /// Duration of the replay, in seconds.
    pub seconds: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// Name of the file.
    pub name: String,
    /// Its format; `None` if it has no lines.
    pub format: Option<LogFormat>,
    #[serde(flatten)]
    pub counts: LineCounts,
    /// Its first unreadable lines.
    pub unreadable_examples: Vec<UnreadableLine>,
    /// Its first lines with an implausible time.
    pub implausible_examples: Vec<UnreadableLine>,
    /// Why it cannot be read to its end.
    pub error: Option<String>,
    /// What was looked for and found, if no line of its beginning has a request.
    #[serde(skip)]
    pub found: Option<String>,
}

/// What one rule did.
#[derive(Clone, Debug, Serialize)]
pub struct RuleReport {
    pub name: String,
    /// `limit`, `allow` or `deny`.
    pub action: &'static str,
    /// The limits as configured.
    pub limits: Vec<String>,
    /// Parts of the key; `None` unless the rule limits.
    pub key: Option<String>,
    /// What happens to requests above the limits; `None` unless the rule limits.
    pub throttle: Option<String>,
    /// Requests by outcome.
    pub outcomes: OutcomeCounts,
    /// Requests that it would have admitted, and that another rule rejected.
    pub rejected_by_others: u64,
    /// Requests that another rate limit service would have decided.
    pub not_simulated: u64,
    /// Requests decided without an attribute that the log lacks.
    pub undecidable: Vec<Undecidable>,
    /// Mean delay of delayed requests, in milliseconds.
    pub mean_delay_ms: f64,
    /// Longest delay, in milliseconds.
    pub max_delay_ms: f64,
    /// The minute with most requests.
    pub busiest_minute: Option<MinuteReport>,
    /// Keys that were counted.
    pub keys: usize,
    /// Requests whose key was not counted, because there were too many.
    pub uncounted_requests: u64,
    /// Keys on which the rule acted: it rejected, banned, delayed or marked a request, or would have in shadow mode.
    pub affected_keys: usize,
    /// Requests on which the rule acted and whose key is not among those, because there were too many.
    pub unlisted_requests: u64,
    /// The most affected keys.
    pub top: Vec<KeyReport>,
    /// Rates of the keys under the first limit; `None` unless the rule has a rate limit with a key.
    pub demand: Option<DemandReport>,
    /// Rates of the keys under the other limits.
    pub further_demand: Vec<DemandReport>,
    /// Requests over time.
    pub series: SeriesReport,
}

/// Requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OutcomeCounts {
    /// Admitted.
    pub allowed: u64,
    /// Admitted with a mark.
    pub soft: u64,
    /// Admitted after a delay.
    pub delayed: u64,
    /// Rejected because a limit was exceeded.
    pub limited: u64,
    /// Rejected because the key was banned.
    pub banned: u64,
    /// Rejected by `action: deny`, or because a part of the key was missing.
    pub denied: u64,
    /// Exempted by `action: allow`.
    pub exempt: u64,
    /// Over the limit of a rule in shadow mode.
    pub shadow: u64,
    /// Over the limit, and sent to another upstream.
    pub diverted: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MinuteReport {
    /// Its beginning.
    pub at: String,
    /// Requests to which the rule applied.
    pub requests: u64,
    /// Those that the rule rejected.
    pub rejected: u64,
}

/// A key on which a rule acted.
#[derive(Clone, Debug, Serialize)]
pub struct KeyReport {
    /// The key; for a `deny` rule, the client.
    pub key: String,
    /// Requests on which the rule acted.
    pub outcomes: OutcomeCounts,
    /// Time of the first of them.
    pub first: String,
    /// Time of the last of them.
    pub last: String,
}

/// Distribution of the requests of each key in its busiest period, of those requests that count against the limit.
/// Periods are the windows of a fixed window, and otherwise aligned to the clock.
#[derive(Clone, Debug, Serialize)]
pub struct DemandReport {
    /// The period, such as `min` or `10s`.
    pub period: String,
    /// The limit as configured, in requests per period.
    pub limit: u64,
    /// Parts of the limit's key.
    pub key: String,
    /// Keys that were counted.
    pub keys: usize,
    /// Requests that count against the limit.
    pub requests: u64,
    /// Half of the keys stay at this number or below.
    pub p50: u64,
    /// 99 % do.
    pub p99: u64,
    /// 99.9 % do.
    pub p999: u64,
    /// All do.
    pub max: u64,
    /// What other limits would have done, ascending.
    pub candidates: Vec<LimitCandidate>,
    /// Number of keys by requests in their busiest period.
    pub histogram: Vec<(u64, u64)>,
}

/// A possible limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LimitCandidate {
    /// Requests per period.
    pub limit: u64,
    /// Keys with more requests than that in some period.
    pub keys_above: u64,
    /// Requests above it, in all periods together.
    pub requests_above: u64,
}

/// Requests of a rule over time.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    /// Beginning of the first interval.
    pub start: String,
    /// Length of an interval, in minutes.
    pub minutes: u64,
    pub classes: [&'static str; 4],
    /// Requests of each class in each interval.
    pub intervals: Vec<[u32; 4]>,
}

/// Clients whose requests were rejected.
#[derive(Clone, Debug, Serialize)]
pub struct ClientsReport {
    /// Number of clients.
    pub rejected: u64,
    /// Rejected requests of clients that were not counted, because there were too many.
    pub uncounted_requests: u64,
    /// The clients with most rejected requests.
    pub top: Vec<ClientReport>,
}

/// A client whose requests were rejected.
#[derive(Clone, Debug, Serialize)]
pub struct ClientReport {
    /// Address, or network of an IPv6 client.
    pub client: String,
    /// Requests that the rules reject.
    pub rejected: u64,
    /// Requests that the rules of `against` reject.
    pub rejected_before: u64,
    /// The rule that rejected the client first.
    pub rule: Option<String>,
    /// Times of the first and last of these requests.
    pub first: String,
    /// Time of the last one.
    pub last: String,
}

/// Differences between two sets of rules.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Requests that only the new rules reject.
    pub newly_rejected: u64,
    /// Requests that only the old rules reject.
    pub no_longer_rejected: u64,
    /// Requests that both reject.
    pub rejected_by_both: u64,
    /// Clients that only the new rules reject.
    pub new_clients: u64,
    /// Clients that only the old rules reject.
    pub former_clients: u64,
    /// Rejections by rule.
    pub rules: Vec<RuleComparison>,
    /// Clients with most newly rejected requests.
    pub top_newly: Vec<ClientReport>,
    /// Clients with most requests that are no longer rejected.
    pub top_no_longer: Vec<ClientReport>,
}

/// Rejections of one rule under two sets of rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleComparison {
    pub name: String,
    /// Rejections by the old rule; `None` if there is none of this name.
    pub before: Option<u64>,
    /// Rejections by the new rule; `None` if there is none of this name.
    pub after: Option<u64>,
}

impl OutcomeCounts {
    /// Returns each outcome and its number.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("allowed", self.allowed),
            ("soft", self.soft),
            ("delayed", self.delayed),
            ("limited", self.limited),
            ("banned", self.banned),
            ("denied", self.denied),
            ("exempt", self.exempt),
            ("shadow", self.shadow),
            ("diverted", self.diverted),
        ]
    }

    /// Requests that were rejected.
    pub const fn rejected(&self) -> u64 {
        self.limited.saturating_add(self.banned).saturating_add(self.denied)
    }

    /// Requests to which the rule applied.
    pub fn total(&self) -> u64 {
        self.named().into_iter().map(|(_, number)| number).fold(0, u64::saturating_add)
    }
}

impl ReplayReport {
    pub fn to_json(&self) -> String {
        // Every field has a form in JSON, so this cannot fail.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Lines that were replayed per second.
    pub fn lines_per_second(&self) -> f64 {
        self.counts.lines as f64 / self.seconds.max(0.001)
    }
}

/// Formats a number with a space between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Formats a part of a whole in per cent.
pub(super) fn per_cent(part: u64, whole: u64) -> String {
    format!("{:.2} %", part as f64 * 100.0 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests;
