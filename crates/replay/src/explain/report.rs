//! The explanation as plain data, in the form in which the admin port sends it.

use bytes::Bytes;
use http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::document::DocumentReport;
use super::outcome::{header_lines, sent_status};
use super::{ExplainContext, MalformedRequest, RequestDescription};
use weir_limiter::key::KeyHasher;
use weir_policy::engine::overrides::{ActiveOverride, OverrideAction};
use weir_policy::response::grpc_reply;
use weir_policy::rules::explain::Mismatch;
use weir_telemetry::rfc3339;

/// What would happen to a request, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Outcome as in `weir_decisions_total`, `malformed`, or `undecided` if the store or another service decides.
    pub outcome: String,
    /// The rule that decides, if one does.
    pub rule: Option<String>,
    /// The outcome as a sentence.
    pub reason: String,
    /// Status of the local reply; `None` if the request is forwarded or undecided.
    pub status: Option<u16>,
    /// Time for `retry-after`, if the request is rejected by a limit.
    pub retry_after_seconds: Option<f64>,
    /// Delay before the request is forwarded.
    pub delay_seconds: Option<f64>,
    /// Headers about limits that the response has.
    pub headers: Vec<HeaderLine>,
    /// The request as rules see it; `None` if it is malformed.
    pub request: Option<ExplainedClient>,
    /// Why the fields of its body are unknown, and what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Its class, if the concurrency of upstreams is divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<ExplainedClass>,
    /// Every rule, in file order.
    pub rules: Vec<ExplainedRule>,
    /// What the documents of the rate limit service would do, if it is a descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<DocumentReport>,
    pub time: String,
    /// Generation of the configuration that decides.
    pub generation: u64,
    /// Hash of the text of that configuration, if it runs.
    pub config_hash: Option<String>,
}

/// One header of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderLine {
    /// Name, in lower case.
    pub name: String,
    pub value: String,
}

/// A request as rules see it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExplainedClient {
    /// Method; `None` for a descriptor without one.
    pub method: Option<String>,
    /// Normalised path.
    pub path: String,
    /// Query, undecoded.
    pub query: Option<String>,
    /// Host in normal form.
    pub host: String,
    /// Address from which the request arrives.
    pub peer: String,
    /// Whether its `x-forwarded-for` is trusted.
    pub peer_is_trusted: bool,
    /// Address of the client.
    pub client_ip: Option<String>,
    /// Country of the client, as a code.
    pub country: Option<String>,
    /// Continent of the client, as a code.
    pub continent: Option<String>,
    /// Autonomous system of the client.
    pub asn: Option<u32>,
}

/// The class of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedClass {
    pub name: String,
    /// Its weight, and that of all classes.
    pub share: u32,
    pub of: u32,
    /// Whether its requests are the first to be rejected.
    pub sheddable: bool,
}

/// One rule and what it would do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExplainedRule {
    pub name: String,
    /// `allow`, `deny` or `limit`.
    pub action: String,
    /// Whether it applies to the request.
    pub applies: bool,
    /// Why it does not apply or is not evaluated, or what is special about it.
    pub note: Option<String>,
    /// The first field of `match` that does not hold.
    pub mismatch: Option<Mismatch>,
    /// The path pattern that matched, if the rule has any.
    pub route: Option<String>,
    /// The request's key, if the rule limits it.
    pub key: Option<ExplainedKeyText>,
    /// What the rule would do, as in `weir_decisions_total`.
    pub outcome: Option<String>,
    pub limits: Vec<LimitReport>,
    /// Overrides in force for the key.
    pub overrides: Vec<OverrideReport>,
}

/// The key of a request under one rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedKeyText {
    /// The key as text, for `POST /limits/...`.
    pub text: String,
    /// The key's fingerprint; `None` if the request has no key.
    pub fingerprint: Option<String>,
    /// Whether every part is present.
    pub is_complete: bool,
    /// Whether the rule is enforced for the key. If not, it is in shadow mode.
    pub is_enforced: bool,
}

/// One limit and its counter, before the request is charged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitReport {
    /// `limit`, `margin` of a soft limit, `mark` of a soft limit, `in_flight`, `ban`, or `stream` for a limit inside streams.
    pub role: String,
    /// The limit in force, such as `100/s`; a number for `in_flight`.
    pub limit: Option<String>,
    pub algorithm: String,
    /// Maximum number of requests at once, if the algorithm has a burst.
    pub burst: Option<u32>,
    /// Units used.
    pub used: Option<u32>,
    /// Units left.
    pub remaining: Option<u32>,
    /// Time until the quota is whole, or until the window ends.
    pub reset_seconds: Option<f64>,
    /// Units that the request costs.
    pub cost: u32,
    /// What the numbers count, such as `requests` or `tokens`.
    #[serde(default)]
    pub unit: String,
    /// Whether the request is within the limit.
    pub conforms: bool,
    /// Time until the request would conform.
    pub retry_after_seconds: Option<f64>,
    /// Delay until the request conforms, if the rule delays.
    pub delay_seconds: Option<f64>,
    /// End of the ban, if one runs.
    pub banned_until: Option<String>,
    /// Units of a shared limit that this instance holds.
    pub leased: Option<u64>,
    /// Whether an override has raised the limit.
    pub is_boosted: bool,
    /// Share of the limit that is in force, if the rule follows the provider.
    #[serde(default)]
    pub share: Option<f64>,
    /// End of a pause that the provider has signalled.
    #[serde(default)]
    pub paused_until: Option<String>,
}

/// An override in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideReport {
    /// Name of the rule for which it was set.
    pub rule: String,
    /// Names of all rules that it affects: those that share the counter.
    #[serde(default)]
    pub rules: Vec<String>,
    /// The key as text; `None` if the command named its fingerprint.
    pub key: Option<String>,
    /// The key's fingerprint.
    pub fingerprint: String,
    /// `boost` or `ban`.
    pub action: String,
    /// Factor or limit of a boost.
    pub change: Option<String>,
    /// When it ends.
    pub until: String,
}

impl Explanation {
    /// Returns the explanation of a request that is rejected as malformed.
    pub(super) fn malformed(
        malformed: &MalformedRequest,
        request: &RequestDescription,
        context: &ExplainContext<'_>,
    ) -> Self {
        let MalformedRequest { status, problem } = malformed;
        let reason = format!("rejected as malformed: {problem}");
        let (mut headers, is_grpc) = (HeaderMap::new(), grpc_reply::is_grpc(&request.headers));
        let status = sent_status(*status, &Bytes::new(), &mut headers, is_grpc);
        let headers = header_lines(&headers);
        Self { status: Some(status.as_u16()), reason, headers, ..Self::new("malformed", context) }
    }

    pub(super) fn new(outcome: &str, context: &ExplainContext<'_>) -> Self {
        Self {
            outcome: outcome.to_owned(),
            rule: None,
            reason: String::new(),
            status: None,
            retry_after_seconds: None,
            delay_seconds: None,
            headers: Vec::new(),
            request: None,
            body: None,
            class: None,
            rules: Vec::new(),
            documents: None,
            time: rfc3339(context.wall_clock),
            generation: context.policy.generation,
            config_hash: None,
        }
    }
}

/// Returns an override as data, given its key as text and the wall-clock time of its end. `hasher` is that of the limiter.
pub fn override_report(
    entry: &ActiveOverride,
    key: Option<String>,
    hasher: KeyHasher,
    until: String,
) -> OverrideReport {
    OverrideReport {
        rule: entry.rule.to_string(),
        rules: entry.rules.iter().map(ToString::to_string).collect(),
        key,
        fingerprint: hasher.fingerprint(entry.key),
        action: entry.action.kind().as_str().to_owned(),
        change: match entry.action {
            OverrideAction::Boost(change) => Some(change.to_string()),
            OverrideAction::Ban => None,
        },
        until,
    }
}
