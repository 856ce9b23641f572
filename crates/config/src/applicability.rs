//! The keys of a rule that have no meaning in some kinds of rules: one table for the check, the documentation
//! and the schema.

use serde_json::{Value, json};

use super::at::At;
use super::diagnostic::ValueError;
use super::raw;
use weir_policy::rules::rule::Throttle;

/// A kind of rule in which some keys have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleKind {
    /// `action: allow` or `action: deny`.
    AllowOrDeny,
    /// `action: allow`.
    Allow,
    /// `action: deny`.
    Deny,
    /// `in_flight` or `bandwidth` without a limit.
    WithoutLimit,
    /// A cost by messages, or `bandwidth` alone: what is over the limit waits, and no request is rejected for it.
    StreamsOnly,
    /// `scope: {rls: …}`: another service decides, once, before the request is forwarded.
    Remote,
    /// `scope: {rls: …}` without `on_error: local`: the rule has no limits of its own.
    RemoteOnly,
    /// `scope: shared` in any form: the instances share the limit.
    Shared,
    /// `domain`: the rule also applies to Envoy's calls.
    Domain,
    /// A rule that matches descriptors: it applies only to Envoy's calls.
    Descriptors,
    /// A rule that may apply on a listener with `decide`: another proxy asks once, before it forwards the request.
    Decide,
}

/// The rule as written, as far as the table needs it.
pub(super) struct CheckedRule<'a> {
    pub(super) rule: &'a raw::Rule,
    pub(super) throttle: Throttle,
    /// Whether nothing but streams is limited.
    pub(super) is_streams_only: bool,
}

/// A key of rules, or some of its values.
struct ApplicabilityRow {
    /// Path of the key in a rule.
    path: &'static [&'static str],
    /// Description of the values that the row covers; empty for every value.
    values: &'static str,
    /// Whether a problem is reported for the value, and not for the key.
    is_reported_at_value: bool,
    is_given: fn(&CheckedRule<'_>) -> bool,
    exclusions: &'static [Exclusion],
}

/// A kind of rule in which a key has no meaning.
struct Exclusion {
    kind: RuleKind,
    /// The reason, if the kind alone does not give it; may be empty.
    reason: &'static str,
    hint: &'static str,
}

const fn excluded_in(kind: RuleKind) -> Exclusion {
    Exclusion { kind, reason: "", hint: "" }
}

const DECIDED_ONCE_REASON: &str = "the rate limit service decides once, before the request is forwarded";

/// Marks a key that has no meaning if another service decides the limit.
const fn excluded_in_remote(hint: &'static str) -> Exclusion {
    Exclusion { kind: RuleKind::Remote, reason: DECIDED_ONCE_REASON, hint }
}

const fn excluded_in_domain(reason: &'static str, hint: &'static str) -> Exclusion {
    Exclusion { kind: RuleKind::Domain, reason, hint }
}

/// How a rule is kept from the listeners that decide for another proxy.
pub(super) const RESTRICT: &str =
    "restrict the rule with `match: { listener: NAME }` to listeners that forward requests";

/// Marks a key that has no meaning if another proxy forwards the request.
const fn excluded_in_decide(reason: &'static str) -> Exclusion {
    Exclusion { kind: RuleKind::Decide, reason, hint: RESTRICT }
}

const WITHOUT_SCOPE_HINT: &str = "use a separate rule without `scope`";
const REQUEST_END_UNKNOWN: Exclusion =
    excluded_in_domain("Envoy does not report how requests end", "use a separate rule without `domain`");
const END_UNREPORTED: Exclusion = excluded_in_decide("the proxy that asks does not report how requests end");
const FORWARDED_ELSEWHERE: Exclusion = excluded_in_decide("the proxy that asks forwards the request");
const NO_LOCAL_LIMIT: Exclusion = Exclusion {
    kind: RuleKind::RemoteOnly,
    reason: "",
    hint: "add `on_error: local` to use it while that service is unavailable",
};
const ENVOY_RESPONDS: Exclusion =
    Exclusion { kind: RuleKind::Descriptors, reason: "", hint: "Envoy sends the response" };
const RESPONSE_EXCLUSIONS: &[Exclusion] = &[ENVOY_RESPONDS];
const NOT_A_FALLBACK: Exclusion =
    Exclusion { kind: RuleKind::Deny, reason: "", hint: "use `body: { file: … }`" };
const ALLOW_OR_DENY_EXCLUSIONS: &[Exclusion] = &[excluded_in(RuleKind::AllowOrDeny)];
const NO_REQUESTS: Exclusion = excluded_in(RuleKind::StreamsOnly);
const STREAMS_WAIT: Exclusion = Exclusion {
    kind: RuleKind::StreamsOnly,
    reason: "what is over the limit waits",
    hint: "use `hard` or `shadow`",
};
const COUNTING_EXCLUSIONS: &[Exclusion] = &[
    excluded_in(RuleKind::AllowOrDeny),
    excluded_in(RuleKind::WithoutLimit),
    NO_REQUESTS,
    excluded_in_remote(WITHOUT_SCOPE_HINT),
    REQUEST_END_UNKNOWN,
    END_UNREPORTED,
];
const DISTINCT_EXCLUSIONS: &[Exclusion] = &[
    excluded_in(RuleKind::AllowOrDeny),
    excluded_in(RuleKind::WithoutLimit),
    excluded_in_remote(WITHOUT_SCOPE_HINT),
    Exclusion {
        kind: RuleKind::Shared,
        reason: "values are remembered in this process",
        hint: WITHOUT_SCOPE_HINT,
    },
    excluded_in_domain("a call has hits and no values", "use a separate rule without `domain`"),
];
const LIMIT_EXCLUSIONS: &[Exclusion] = &[excluded_in(RuleKind::AllowOrDeny), NO_LOCAL_LIMIT];
const LIMIT_OPTION_EXCLUSIONS: &[Exclusion] =
    &[excluded_in(RuleKind::AllowOrDeny), excluded_in(RuleKind::WithoutLimit), NO_LOCAL_LIMIT];

const fn key_row(
    path: &'static [&'static str],
    is_given: fn(&CheckedRule<'_>) -> bool,
    void: &'static [Exclusion],
) -> ApplicabilityRow {
    ApplicabilityRow { path, values: "", is_reported_at_value: false, is_given, exclusions: void }
}

const fn values_row(
    path: &'static [&'static str],
    values: &'static str,
    is_given: fn(&CheckedRule<'_>) -> bool,
    void: &'static [Exclusion],
) -> ApplicabilityRow {
    ApplicabilityRow { path, values, is_reported_at_value: true, is_given, exclusions: void }
}

impl ApplicabilityRow {
    /// Returns the row with its problems reported for the key.
    const fn reported_at_key(self) -> Self {
        Self { is_reported_at_value: false, ..self }
    }
}

/// Keys and values that no row covers have a meaning in every kind of rule, or depend on other keys.
const TABLE: &[ApplicabilityRow] = &[
    key_row(&["limit"], |given| given.rule.limit.is_some(), LIMIT_EXCLUSIONS),
    key_row(&["limits"], |given| given.rule.limits.is_some(), LIMIT_EXCLUSIONS),
    key_row(&["token_bucket"], |given| given.rule.token_bucket.is_some(), LIMIT_EXCLUSIONS),
    key_row(&["burst"], |given| given.rule.burst.is_some(), LIMIT_OPTION_EXCLUSIONS),
    key_row(&["algorithm"], |given| given.rule.algorithm.is_some(), LIMIT_OPTION_EXCLUSIONS),
    key_row(&["timezone"], |given| given.rule.timezone.is_some(), LIMIT_OPTION_EXCLUSIONS),
    key_row(&["precision"], |given| given.rule.precision.is_some(), LIMIT_OPTION_EXCLUSIONS),
    key_row(&["on_change"], |given| given.rule.on_change.is_some(), LIMIT_OPTION_EXCLUSIONS),
    key_row(&["key"], |given| given.rule.key.is_some(), ALLOW_OR_DENY_EXCLUSIONS),
    values_row(
        &["key"],
        "with `prefixes`",
        |given| has_network_prefixes(given.rule),
        &[excluded_in_remote("use one rule for each prefix")],
    ),
    key_row(&["on_missing"], |given| given.rule.on_missing.is_some(), ALLOW_OR_DENY_EXCLUSIONS),
    key_row(
        &["counter"],
        |given| given.rule.counter.is_some(),
        &[excluded_in(RuleKind::AllowOrDeny), excluded_in_remote(WITHOUT_SCOPE_HINT)],
    ),
    key_row(
        &["cost"],
        |given| given.rule.cost.is_some(),
        &[excluded_in(RuleKind::AllowOrDeny), excluded_in(RuleKind::WithoutLimit)],
    ),
    values_row(
        &["cost"],
        "by bodies or responses",
        |given| is_cost_measured_later(given.rule),
        &[
            excluded_in_remote("use a number or `{header: …}`"),
            excluded_in_decide("the proxy that asks sends neither bodies nor responses"),
        ],
    ),
    values_row(
        &["cost"],
        "other than a number",
        |given| matches!(given.rule.cost.as_deref(), Some(raw::Cost::Variable(_))),
        &[excluded_in_domain(
            "Envoy sends neither headers nor bodies",
            "use a number, which is multiplied by `hits_addend` of the call",
        )],
    )
    .reported_at_key(),
    values_row(
        &["cost"],
        "by messages",
        |given| given.rule.counts_messages(),
        &[Exclusion { kind: RuleKind::Shared, reason: "", hint: WITHOUT_SCOPE_HINT }],
    ),
    key_row(
        &["bandwidth"],
        |given| given.rule.bandwidth.is_some(),
        &[
            excluded_in(RuleKind::AllowOrDeny),
            excluded_in_remote(WITHOUT_SCOPE_HINT),
            Exclusion { kind: RuleKind::Shared, reason: "", hint: WITHOUT_SCOPE_HINT },
            excluded_in_domain("Envoy sends no bodies", "use a separate rule without `domain`"),
            FORWARDED_ELSEWHERE,
        ],
    ),
    key_row(&["distinct"], |given| given.rule.distinct.is_some(), DISTINCT_EXCLUSIONS),
    key_row(&["count"], |given| given.rule.count.is_some(), COUNTING_EXCLUSIONS),
    key_row(&["refund_on"], |given| given.rule.refund_on.is_some(), COUNTING_EXCLUSIONS),
    key_row(
        &["in_flight"],
        |given| given.rule.in_flight.is_some(),
        &[
            excluded_in(RuleKind::AllowOrDeny),
            excluded_in_remote(WITHOUT_SCOPE_HINT),
            REQUEST_END_UNKNOWN,
            END_UNREPORTED,
        ],
    ),
    values_row(
        &["in_flight"],
        "`auto`",
        |given| is_in_flight_adaptive(given.rule),
        &[Exclusion {
            kind: RuleKind::Shared,
            reason: "",
            hint: "each instance adapts to what it measures: use a number, or a rule without `scope`",
        }],
    ),
    key_row(&["feedback"], |given| given.rule.feedback.is_some(), COUNTING_EXCLUSIONS),
    key_row(&["scope"], |given| given.rule.scope.is_some(), ALLOW_OR_DENY_EXCLUSIONS),
    key_row(&["throttle"], |given| given.rule.throttle.is_some(), ALLOW_OR_DENY_EXCLUSIONS),
    values_row(
        &["throttle"],
        "other than `hard`, `shadow`, `wait`",
        |given| limits_only_rates(given.rule),
        &[excluded_in(RuleKind::WithoutLimit)],
    )
    .reported_at_key(),
    values_row(
        &["throttle"],
        "other than `hard`, `shadow`",
        |given| !matches!(given.throttle, Throttle::Hard | Throttle::Shadow),
        &[excluded_in_remote("use `hard` or `shadow`"), STREAMS_WAIT],
    ),
    values_row(
        &["throttle"],
        "that delays",
        |given| {
            matches!(
                given.throttle,
                Throttle::Delay(_) | Throttle::Wait | Throttle::Soft { delay: Some(_), .. }
            )
        },
        &[excluded_in_domain("Envoy cannot delay requests", "use `hard`, `shadow` or `soft 10%`")],
    ),
    values_row(
        &["throttle"],
        "`delay`",
        |given| matches!(given.throttle, Throttle::Delay(_)),
        &[excluded_in(RuleKind::Shared)],
    ),
    values_row(
        &["throttle"],
        "`elastic`",
        |given| matches!(given.throttle, Throttle::Elastic(_)),
        &[
            excluded_in(RuleKind::Shared),
            excluded_in_domain(
                "the headroom of upstreams behind Envoy is unknown",
                "use `hard`, `shadow` or `soft 10%`",
            ),
            excluded_in_decide("the headroom of the upstreams behind the proxy that asks is unknown"),
        ],
    ),
    key_row(&["enforce"], |given| given.rule.enforce.is_some(), ALLOW_OR_DENY_EXCLUSIONS),
    key_row(
        &["on_denied"],
        |given| given.rule.on_denied.is_some(),
        &[
            excluded_in(RuleKind::AllowOrDeny),
            excluded_in(RuleKind::WithoutLimit),
            excluded_in_remote(WITHOUT_SCOPE_HINT),
            NO_REQUESTS,
        ],
    ),
    key_row(&["on_limit"], |given| given.rule.on_limit.is_some(), &[excluded_in(RuleKind::Allow)]),
    key_row(
        &["on_limit", "action"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.action.is_some()),
        RESPONSE_EXCLUSIONS,
    ),
    values_row(
        &["on_limit", "action"],
        "`close`",
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.action == Some(raw::LimitAction::Close)),
        &[excluded_in_decide("the connection is that of the proxy that asks")],
    )
    .reported_at_key(),
    key_row(
        &["on_limit", "status"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.status.is_some()),
        RESPONSE_EXCLUSIONS,
    ),
    key_row(
        &["on_limit", "body"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.body.is_some()),
        RESPONSE_EXCLUSIONS,
    ),
    key_row(
        &["on_limit", "headers"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.headers.is_some()),
        RESPONSE_EXCLUSIONS,
    ),
    key_row(
        &["on_limit", "fallback"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.fallback.is_some()),
        &[
            NOT_A_FALLBACK,
            NO_REQUESTS,
            ENVOY_RESPONDS,
            excluded_in_decide("a successful response would admit the request"),
        ],
    ),
    key_row(
        &["on_limit", "upstream"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.upstream.is_some()),
        &[FORWARDED_ELSEWHERE, NO_REQUESTS],
    ),
    key_row(
        &["on_limit", "cors"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.cors.is_some()),
        RESPONSE_EXCLUSIONS,
    ),
    key_row(
        &["on_limit", "ban"],
        |given| is_given_in_on_limit(given.rule, |on_limit| on_limit.ban.is_some()),
        &[excluded_in(RuleKind::Deny), excluded_in_remote(""), NO_REQUESTS],
    ),
    key_row(
        &["respond"],
        |given| given.rule.respond.is_some(),
        &[
            excluded_in(RuleKind::AllowOrDeny),
            excluded_in_remote("use `scope: shared`"),
            excluded_in_domain("Envoy forwards its requests itself", "use a separate rule without `domain`"),
            FORWARDED_ELSEWHERE,
            NO_REQUESTS,
        ],
    ),
    key_row(
        &["domain"],
        |given| given.rule.domain.is_some(),
        &[Exclusion {
            kind: RuleKind::Remote,
            reason: "calls from Envoy cannot wait for another service",
            hint: "`scope.domain` is the domain sent to that service",
        }],
    ),
];

/// Reports every key of the rule at `at` that has no meaning in a rule of this kind.
pub(super) fn check(given: &CheckedRule<'_>, kind: RuleKind, at: At<'_>) {
    for row in TABLE.iter().filter(|row| (row.is_given)(given)) {
        let Some(exclusion) = row.exclusions.iter().find(|void| void.kind == kind) else { continue };
        // A key that has no meaning for two reasons is one problem.
        if kind == RuleKind::WithoutLimit && given.is_streams_only && at.key(row.path[0]).is_reported() {
            continue;
        }
        let error = exclusion_error(row, exclusion, given.rule);
        match row.path {
            [outer, inner] => at.key(outer).key(inner).key_error(error),
            [key, ..] if !row.is_reported_at_value => at.key(key).key_error(error),
            [key, ..] => at.key(key).error(error),
            [] => {}
        }
    }
}

fn exclusion_error(row: &ApplicabilityRow, exclusion: &Exclusion, rule: &raw::Rule) -> ValueError {
    let name = row.path.last().copied().unwrap_or_default();
    let subject = match row.values {
        "with `prefixes`" => "`prefixes` have".to_owned(),
        _ if row.is_reported_at_value => "has".to_owned(),
        _ => format!("`{name}` has"),
    };
    let context = match exclusion.kind {
        RuleKind::AllowOrDeny if rule.action == Some(raw::Action::Allow) => "with `action: allow`",
        RuleKind::Allow => "with `action: allow`",
        RuleKind::AllowOrDeny | RuleKind::Deny => "with `action: deny`",
        RuleKind::WithoutLimit => "without `limit`",
        RuleKind::StreamsOnly => "in a rule that limits only what is inside streams",
        RuleKind::Remote => "with `scope: {rls: …}`",
        RuleKind::RemoteOnly => "with `scope: {rls: …}`: the rate limit service sets the limit",
        RuleKind::Shared => "with `scope: shared`",
        RuleKind::Domain => "with `domain`",
        RuleKind::Descriptors => "in a rule that matches descriptors",
        RuleKind::Decide => "on a listener with `decide`",
    };
    let reason = if exclusion.reason.is_empty() { String::new() } else { format!(": {}", exclusion.reason) };
    // Such a combination would have a meaning, but is not implemented.
    let error = ValueError::new(match exclusion.kind == RuleKind::Shared {
        true => format!("is not supported {context}"),
        false => format!("{subject} no meaning {context}{reason}"),
    });
    if exclusion.hint.is_empty() { error } else { error.with_hint(exclusion.hint) }
}

fn is_given_in_on_limit(rule: &raw::Rule, is_given: fn(&raw::OnLimit) -> bool) -> bool {
    rule.on_limit.as_deref().is_some_and(is_given)
}

fn is_in_flight_adaptive(rule: &raw::Rule) -> bool {
    match rule.in_flight.as_deref() {
        Some(raw::InFlight::Auto(_) | raw::InFlight::Map(_)) => true,
        Some(raw::InFlight::Max(_)) | None => false,
    }
}

fn is_cost_measured_later(rule: &raw::Rule) -> bool {
    match rule.cost.as_deref() {
        Some(raw::Cost::Variable(measured)) => {
            rule.counts_messages()
                || measured.request_bytes.is_some()
                || measured.response_header.is_some()
                || measured.response_bytes.is_some()
                || measured.response_json.is_some()
                || measured.tokens.is_some()
        }
        Some(raw::Cost::Units(_)) | None => false,
    }
}

fn has_network_prefixes(rule: &raw::Rule) -> bool {
    let several = |part: &raw::KeyPart| match part {
        raw::KeyPart::Named(named) => {
            named.client_ip.as_ref().is_some_and(|networks| networks.prefixes.is_some())
        }
        raw::KeyPart::Plain(_) => false,
    };
    rule.key.iter().flat_map(|key| key.items()).any(|(_, part)| several(part))
}

/// Whether the throttle has a meaning only for rates.
fn limits_only_rates(rule: &raw::Rule) -> bool {
    rule.throttle.as_deref().is_some_and(|throttle| match throttle {
        raw::Throttle::Words(words) => !matches!(words.0.trim(), "hard" | "shadow"),
        raw::Throttle::Map(map) => map.wait.is_none(),
    })
}

/// The table as JSON Schema conditions on a rule, for editors. Covers only what the file's text alone shows.
pub(super) fn schema_conditions() -> Value {
    let when = |kind, condition: Value| {
        let is_void = |row: &&ApplicabilityRow| {
            row.values.is_empty() && row.exclusions.iter().any(|void| void.kind == kind)
        };
        let keys = TABLE.iter().filter(is_void).filter(|row| row.path.len() == 1);
        let forbidden: serde_json::Map<_, _> =
            keys.map(|row| (row.path[0].to_owned(), Value::Bool(false))).collect();
        json!({ "if": condition, "then": { "properties": forbidden } })
    };
    let unlimited =
        json!({ "properties": { "action": { "enum": ["allow", "deny"] } }, "required": ["action"] });
    let exempting = json!({ "properties": { "action": { "const": "allow" } }, "required": ["action"] });
    let remote = json!({ "properties": { "scope": { "type": "object", "required": ["rls"] } }, "required": ["scope"] });
    let domain = json!({ "required": ["domain"] });
    json!([
        when(RuleKind::AllowOrDeny, unlimited),
        when(RuleKind::Remote, remote),
        when(RuleKind::Domain, domain),
        when(RuleKind::Allow, exempting)
    ])
}

#[cfg(test)]
mod tests;
