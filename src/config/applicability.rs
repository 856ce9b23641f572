//! The keys of a rule that have no meaning in some kinds of rules: one table for the check, the documentation
//! and the schema.

use serde_json::{Value, json};

use super::at::At;
use super::problem::{Fault, Report};
use super::raw;
use crate::rules::rule::Throttle;

/// A kind of rule in which some keys have no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `action: allow` or `action: deny`.
    Unlimited,
    /// `in_flight` without a limit.
    InFlight,
    /// `scope: {rls: …}`: another service decides, once, before the request is forwarded.
    Remote,
    /// `scope: {rls: …}` without `on_error: local`: the rule has no limits of its own.
    RemoteAlone,
    /// `scope: shared` in any form: the instances share the limit.
    Shared,
    /// `domain`: the rule also applies to Envoy's calls.
    Domain,
    /// A rule that matches descriptors: it applies only to Envoy's calls.
    Descriptors,
}

/// The rule as written, as far as the table needs it.
pub(super) struct Given<'a> {
    pub(super) rule: &'a raw::Rule,
    pub(super) throttle: Throttle,
}

/// A key of rules, or some of its values.
struct Row {
    /// Path of the key in a rule.
    path: &'static [&'static str],
    /// Description of the values that the row covers; empty for every value.
    values: &'static str,
    /// Whether a problem is reported for the value, and not for the key.
    is_value: bool,
    is_given: fn(&Given<'_>) -> bool,
    void: &'static [Void],
}

/// A kind of rule in which a key has no meaning.
struct Void {
    kind: Kind,
    /// The reason, if the kind alone does not give it; may be empty.
    reason: &'static str,
    hint: &'static str,
}

const fn void(kind: Kind) -> Void {
    Void { kind, reason: "", hint: "" }
}

const ONCE: &str = "the rate limit service decides once, before the request is forwarded";

/// Marks a key that has no meaning if another service decides the limit.
const fn remote(hint: &'static str) -> Void {
    Void { kind: Kind::Remote, reason: ONCE, hint }
}

const fn domain(reason: &'static str, hint: &'static str) -> Void {
    Void { kind: Kind::Domain, reason, hint }
}

const NO_SCOPE: &str = "use a separate rule without `scope`";
const ENDS: Void = domain("Envoy does not report how requests end", "use a separate rule without `domain`");
const LOCAL: Void = Void {
    kind: Kind::RemoteAlone,
    reason: "",
    hint: "add `on_error: local` to use it while that service is unavailable",
};
const OWN_ANSWER: &[Void] = &[Void { kind: Kind::Descriptors, reason: "", hint: "Envoy sends the response" }];
const UNLIMITED: &[Void] = &[void(Kind::Unlimited)];
const COUNTS: &[Void] = &[void(Kind::Unlimited), void(Kind::InFlight), remote(NO_SCOPE), ENDS];
const LIMITS: &[Void] = &[void(Kind::Unlimited), LOCAL];
const PARTICULARS: &[Void] = &[void(Kind::Unlimited), void(Kind::InFlight), LOCAL];

const fn key(path: &'static [&'static str], is_given: fn(&Given<'_>) -> bool, void: &'static [Void]) -> Row {
    Row { path, values: "", is_value: false, is_given, void }
}

const fn values(
    path: &'static [&'static str],
    values: &'static str,
    is_given: fn(&Given<'_>) -> bool,
    void: &'static [Void],
) -> Row {
    Row { path, values, is_value: true, is_given, void }
}

impl Row {
    /// Returns the row with its problems reported for the key.
    const fn by_key(self) -> Self {
        Self { is_value: false, ..self }
    }
}

/// Keys and values that no row covers have a meaning in every kind of rule, or depend on other keys.
const TABLE: &[Row] = &[
    key(&["limit"], |given| given.rule.limit.is_some(), LIMITS),
    key(&["limits"], |given| given.rule.limits.is_some(), LIMITS),
    key(&["token_bucket"], |given| given.rule.token_bucket.is_some(), LIMITS),
    key(&["burst"], |given| given.rule.burst.is_some(), PARTICULARS),
    key(&["algorithm"], |given| given.rule.algorithm.is_some(), PARTICULARS),
    key(&["timezone"], |given| given.rule.timezone.is_some(), PARTICULARS),
    key(&["precision"], |given| given.rule.precision.is_some(), PARTICULARS),
    key(&["on_change"], |given| given.rule.on_change.is_some(), PARTICULARS),
    key(&["key"], |given| given.rule.key.is_some(), UNLIMITED),
    values(
        &["key"],
        "with `prefixes`",
        |given| has_several_networks(given.rule),
        &[remote("use one rule for each prefix")],
    ),
    key(&["on_missing"], |given| given.rule.on_missing.is_some(), UNLIMITED),
    key(&["counter"], |given| given.rule.counter.is_some(), &[void(Kind::Unlimited), remote(NO_SCOPE)]),
    key(&["cost"], |given| given.rule.cost.is_some(), &[void(Kind::Unlimited), void(Kind::InFlight)]),
    values(
        &["cost"],
        "by bodies or responses",
        |given| is_told_later(given.rule),
        &[remote("use a number or `{header: …}`")],
    ),
    values(
        &["cost"],
        "other than a number",
        |given| matches!(given.rule.cost, Some(raw::Cost::Told(_))),
        &[domain(
            "Envoy sends neither headers nor bodies",
            "use a number, which is multiplied by `hits_addend` of the call",
        )],
    )
    .by_key(),
    key(&["count"], |given| given.rule.count.is_some(), COUNTS),
    key(&["refund_on"], |given| given.rule.refund_on.is_some(), COUNTS),
    key(
        &["in_flight"],
        |given| given.rule.in_flight.is_some(),
        &[void(Kind::Unlimited), remote(NO_SCOPE), ENDS],
    ),
    key(&["scope"], |given| given.rule.scope.is_some(), UNLIMITED),
    key(&["throttle"], |given| given.rule.throttle.is_some(), UNLIMITED),
    values(
        &["throttle"],
        "other than `hard`, `shadow`",
        |given| is_more_than_a_word(given.rule),
        &[void(Kind::InFlight)],
    )
    .by_key(),
    values(
        &["throttle"],
        "other than `hard`, `shadow`",
        |given| !matches!(given.throttle, Throttle::Hard | Throttle::Shadow),
        &[remote("use `hard` or `shadow`")],
    ),
    values(
        &["throttle"],
        "that delays",
        |given| matches!(given.throttle, Throttle::Delay(_) | Throttle::Soft { delay: Some(_), .. }),
        &[domain("Envoy cannot delay requests", "use `hard`, `shadow` or `soft 10%`")],
    ),
    values(
        &["throttle"],
        "`delay`",
        |given| matches!(given.throttle, Throttle::Delay(_)),
        &[void(Kind::Shared)],
    ),
    values(
        &["throttle"],
        "`elastic`",
        |given| matches!(given.throttle, Throttle::Elastic(_)),
        &[
            void(Kind::Shared),
            domain("the headroom of upstreams behind Envoy is unknown", "use `hard`, `shadow` or `soft 10%`"),
        ],
    ),
    key(&["enforce"], |given| given.rule.enforce.is_some(), UNLIMITED),
    key(
        &["on_denied"],
        |given| given.rule.on_denied.is_some(),
        &[void(Kind::Unlimited), void(Kind::InFlight), remote(NO_SCOPE)],
    ),
    key(&["on_limit"], |given| given.rule.on_limit.is_some(), UNLIMITED),
    key(&["on_limit", "status"], |given| answers(given.rule, |answer| answer.status.is_some()), OWN_ANSWER),
    key(&["on_limit", "body"], |given| answers(given.rule, |answer| answer.body.is_some()), OWN_ANSWER),
    key(&["on_limit", "headers"], |given| answers(given.rule, |answer| answer.headers.is_some()), OWN_ANSWER),
    key(
        &["on_limit", "fallback"],
        |given| answers(given.rule, |answer| answer.fallback.is_some()),
        OWN_ANSWER,
    ),
    key(&["on_limit", "ban"], |given| answers(given.rule, |answer| answer.ban.is_some()), &[remote("")]),
    key(
        &["domain"],
        |given| given.rule.domain.is_some(),
        &[Void {
            kind: Kind::Remote,
            reason: "calls from Envoy cannot wait for another service",
            hint: "`scope.domain` is the domain sent to that service",
        }],
    ),
];

/// Reports every key of the rule at `at` that has no meaning in a rule of this kind.
pub(super) fn check(given: &Given<'_>, kind: Kind, at: At<'_>, report: &mut Report<'_>) {
    for row in TABLE.iter().filter(|row| (row.is_given)(given)) {
        let Some(void) = row.void.iter().find(|void| void.kind == kind) else { continue };
        let fault = fault(row, void, given.rule);
        match row.path {
            [outer, inner] => report.key(at.key(outer).key(inner), fault),
            [key, ..] if !row.is_value => report.key(at.key(key), fault),
            [key, ..] => report.value(at.key(key), fault),
            [] => {}
        }
    }
}

fn fault(row: &Row, void: &Void, rule: &raw::Rule) -> Fault {
    let name = row.path.last().copied().unwrap_or_default();
    let subject = match row.values {
        "with `prefixes`" => "`prefixes` have".to_owned(),
        _ if row.is_value => "has".to_owned(),
        _ => format!("`{name}` has"),
    };
    let place = match void.kind {
        Kind::Unlimited if rule.action == Some(raw::Action::Allow) => "with `action: allow`",
        Kind::Unlimited => "with `action: deny`",
        Kind::InFlight => "without `limit`",
        Kind::Remote => "with `scope: {rls: …}`",
        Kind::RemoteAlone => "with `scope: {rls: …}`: the rate limit service sets the limit",
        Kind::Shared => "with `scope: shared`",
        Kind::Domain => "with `domain`",
        Kind::Descriptors => "in a rule that matches descriptors",
    };
    let reason = if void.reason.is_empty() { String::new() } else { format!(": {}", void.reason) };
    // Such a combination would have a meaning, but is not implemented.
    if void.kind == Kind::Shared {
        return Fault::new(format!("is not supported {place}"));
    }
    let fault = Fault::new(format!("{subject} no meaning {place}{reason}"));
    if void.hint.is_empty() { fault } else { fault.hint(void.hint) }
}

fn answers(rule: &raw::Rule, is_given: fn(&raw::OnLimit) -> bool) -> bool {
    rule.on_limit.as_ref().is_some_and(is_given)
}

fn is_told_later(rule: &raw::Rule) -> bool {
    match &rule.cost {
        Some(raw::Cost::Told(told)) => {
            told.request_bytes.is_some() || told.response_header.is_some() || told.response_bytes.is_some()
        }
        Some(raw::Cost::Units(_)) | None => false,
    }
}

fn has_several_networks(rule: &raw::Rule) -> bool {
    let several = |part: &raw::KeyPart| match part {
        raw::KeyPart::Named(named) => {
            named.client_ip.as_ref().is_some_and(|networks| networks.prefixes.is_some())
        }
        raw::KeyPart::Plain(_) => false,
    };
    rule.key.iter().flat_map(|key| key.items()).any(|(_, part)| several(part))
}

fn is_more_than_a_word(rule: &raw::Rule) -> bool {
    rule.throttle.as_ref().is_some_and(|throttle| match throttle {
        raw::Throttle::Words(words) => !matches!(words.0.trim(), "hard" | "shadow"),
        raw::Throttle::Map(_) => true,
    })
}

/// The table as JSON Schema conditions on a rule, for editors. Covers only what the file's text alone shows.
pub(super) fn conditions() -> Value {
    let when = |kind, condition: Value| {
        let is_void = |row: &&Row| row.values.is_empty() && row.void.iter().any(|void| void.kind == kind);
        let keys = TABLE.iter().filter(is_void).filter(|row| row.path.len() == 1);
        let forbidden: serde_json::Map<_, _> =
            keys.map(|row| (row.path[0].to_owned(), Value::Bool(false))).collect();
        json!({ "if": condition, "then": { "properties": forbidden } })
    };
    let unlimited =
        json!({ "properties": { "action": { "enum": ["allow", "deny"] } }, "required": ["action"] });
    let remote = json!({ "properties": { "scope": { "type": "object", "required": ["rls"] } }, "required": ["scope"] });
    let domain = json!({ "required": ["domain"] });
    json!([when(Kind::Unlimited, unlimited), when(Kind::Remote, remote), when(Kind::Domain, domain)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the documentation's table, with one line for each row.
    fn documented() -> String {
        let columns = [
            Kind::Unlimited,
            Kind::InFlight,
            Kind::Remote,
            Kind::RemoteAlone,
            Kind::Shared,
            Kind::Domain,
            Kind::Descriptors,
        ];
        let mut lines: Vec<(String, Vec<Kind>)> = Vec::new();
        for row in TABLE {
            let values = if row.values.is_empty() { String::new() } else { format!(" {}", row.values) };
            let name = format!("{}{values}", row.path.join("."));
            let kinds = row.void.iter().map(|void| void.kind);
            match lines.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => known.extend(kinds),
                None => lines.push((name, kinds.collect())),
            }
        }
        let line = |(name, kinds): &(String, Vec<Kind>)| {
            let marks = columns.map(|kind| if kinds.contains(&kind) { "–" } else { "✓" });
            format!("| {name} | {} |\n", marks.join(" | "))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn the_documentation_has_the_table() {
        let documentation = include_str!("../../docs/reference/rules.md");
        assert!(
            documentation.contains(&documented()),
            "expected in docs/reference/rules.md:\n{}",
            documented()
        );
    }

    #[test]
    fn every_key_of_the_table_is_one_of_a_rule() {
        let rule = &super::super::schema::schema()["$defs"]["Rule"]["properties"];
        for row in TABLE {
            assert!(rule.get(row.path[0]).is_some(), "{:?}", row.path);
        }
    }

    #[test]
    fn editors_are_told_what_has_no_meaning() {
        let conditions = conditions();
        let forbidden = |index: usize| conditions[index]["then"]["properties"].as_object().unwrap();
        assert!(forbidden(0).contains_key("limit") && forbidden(0).contains_key("on_limit"));
        assert!(forbidden(1).contains_key("counter") && !forbidden(1).contains_key("cost"));
        assert!(forbidden(2).contains_key("count") && !forbidden(2).contains_key("cost"));
    }
}
