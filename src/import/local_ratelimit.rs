//! Import of Envoy's local rate limit filter from any position: a bootstrap, a listener, routes, or the
//! filter's configuration alone.
//!
//! Its buckets become rules with `algorithm: token_bucket`. Descriptors are translated to the attributes that
//! make them, if the same file shows those: the client's address, headers, routes. Otherwise the rule matches
//! the descriptor itself, which only works for calls of Envoy to its rate limit service.

use super::ImportError;
use super::actions::{DescriptorSource, ExpectedEntry, MatchAndKey};
use super::match_fields::MatchFields;
use super::rule_text::{
    RuleListItem, RuleText, UniqueNames, exact_pattern, format_rules, list, map, one_or_list, scalar,
};
use super::token_bucket::{self, ImportedBucket};
use super::tree::{error_at, field_text, fields, get, is_named, is_true, items, scalar_text};
use crate::yaml::{self, Dialect, Node, NodeValue};

const FILTER_TYPE: &str = "extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

/// Fields that are imported, or have no effect on which requests are admitted.
const KNOWN_FIELDS: [&str; 12] = [
    "@type",
    "stat_prefix",
    "status",
    "token_bucket",
    "filter_enabled",
    "filter_enforced",
    "descriptors",
    "rate_limits",
    "enable_x_ratelimit_headers",
    "enable_retry_after_header",
    "max_dynamic_descriptors",
    "always_consume_default_token_bucket",
];

/// Converts the filter's configurations in `text` to rules.
///
/// # Errors
/// Returns the problems of the file.
pub fn import(file: &str, text: &str) -> Result<String, Vec<ImportError>> {
    let file_error = |message: &str| {
        vec![ImportError { file: file.to_owned(), position: None, message: message.to_owned() }]
    };
    let root = match yaml::parse(text, Dialect::Go) {
        Ok(Some(root)) => root,
        Ok(None) => return Err(file_error("empty, expected an Envoy configuration")),
        Err(errors) => {
            let import_error = |error: &yaml::YamlError| {
                let (position, message) =
                    (Some((error.position.line, error.position.column)), error.kind.to_string());
                ImportError { file: file.to_owned(), position, message }
            };
            return Err(errors.iter().map(import_error).collect());
        }
    };
    let mut search = FilterSearch::default();
    search.walk(&root, &MatchFields::default());
    if search.filters.is_empty() && get(&root, "token_bucket").or_else(|| get(&root, "stat_prefix")).is_some()
    {
        search.add_filter(&root, &MatchFields::default());
    }
    if search.filters.is_empty() {
        return Err(file_error("no envoy.filters.http.local_ratelimit in the file"));
    }
    let mut importer = FilterImporter {
        file,
        search: &search,
        items: Vec::new(),
        names: UniqueNames::default(),
        problems: Vec::new(),
    };
    search.filters.iter().for_each(|found| importer.import_filter(found));
    if !importer.problems.is_empty() {
        return Err(importer.problems);
    }
    Ok(format_rules(&header_comments(file), &importer.items))
}

fn header_comments(file: &str) -> Vec<String> {
    let lines = [
        "A rejected request is not charged; Envoy takes tokens from the buckets before the empty one.",
        "Each client has a bucket, at most `limiter.max_keys` in total; Envoy keeps the last 20 buckets.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "Routes are independent of each other; in Envoy only the first that matches applies.",
        "`rate_limits` of a virtual host apply to all its routes; in Envoy not to routes with their own.",
    ];
    let first = format!(
        "From {file}, Envoy's local_ratelimit. Differences of a rule are above it, of all rules here:"
    );
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

/// A configuration of the filter, and the requests it applies to.
#[derive(Debug)]
struct FilterConfig<'n> {
    config: &'n Node,
    match_fields: MatchFields,
}

/// The parts of a file that matter here.
#[derive(Debug, Default)]
struct FilterSearch<'n> {
    filters: Vec<FilterConfig<'n>>,
    sources: Vec<DescriptorSource<'n>>,
}

impl<'n> FilterSearch<'n> {
    /// Searches everything below `node`, which applies to the requests of `scope`. The depth of nodes is
    /// bounded.
    fn walk(&mut self, node: &'n Node, match_fields: &MatchFields) {
        match &node.value {
            NodeValue::Scalar(_) | NodeValue::Tagged(_) => {}
            NodeValue::List(nodes) => nodes.iter().for_each(|node| self.walk(node, match_fields)),
            NodeValue::Map(_) if is_filter_config(node) => {
                self.add_filter(unwrap_typed_struct(node), match_fields)
            }
            NodeValue::Map(_) => {
                let match_fields = match_fields_within(node, match_fields);
                for (name, value) in fields(node) {
                    if is_named(name, "rate_limits") {
                        self.add_sources(value, &match_fields);
                    } else if is_named(name, "typed_per_filter_config") {
                        self.walk(value, &MatchFields { is_per_route: true, ..match_fields.clone() });
                    } else {
                        self.walk(value, &match_fields);
                    }
                }
            }
        }
    }

    fn add_filter(&mut self, config: &'n Node, match_fields: &MatchFields) {
        if let Some(limits) = get(config, "rate_limits") {
            self.add_sources(limits, match_fields);
        }
        self.filters.push(FilterConfig { config, match_fields: match_fields.clone() });
    }

    fn add_sources(&mut self, limits: &'n Node, match_fields: &MatchFields) {
        for limit in items(Some(limits)) {
            let actions = items(get(limit, "actions")).iter().collect();
            self.sources.push(DescriptorSource {
                actions,
                match_fields: MatchFields { is_per_route: false, ..match_fields.clone() },
            });
        }
    }
}

/// Returns the requests that a virtual host or a route applies to; `scope` for any other node.
fn match_fields_within(node: &Node, match_fields: &MatchFields) -> MatchFields {
    if get(node, "domains").is_some() && get(node, "routes").is_some() {
        return match_fields.for_virtual_host(node);
    }
    let action_fields = ["route", "redirect", "direct_response", "typed_per_filter_config", "filter_action"];
    match get(node, "match") {
        Some(matching) if action_fields.iter().any(|name| get(node, name).is_some()) => {
            match_fields.for_route(matching)
        }
        _ => match_fields.clone(),
    }
}

fn is_filter_config(node: &Node) -> bool {
    let is_filter_type = |name: &str| field_text(node, name).is_some_and(|kind| kind.ends_with(FILTER_TYPE));
    is_filter_type("@type") || is_filter_type("type_url")
}

/// Returns the configuration itself, which a typed struct wraps in a field.
fn unwrap_typed_struct(node: &Node) -> &Node {
    get(node, "value").filter(|_| get(node, "type_url").is_some()).unwrap_or(node)
}

struct FilterImporter<'a, 'n> {
    file: &'a str,
    search: &'a FilterSearch<'n>,
    items: Vec<RuleListItem>,
    names: UniqueNames,
    problems: Vec<ImportError>,
}

/// A descriptor of the filter.
struct FilterDescriptor {
    entries: Vec<ExpectedEntry>,
    bucket: ImportedBucket,
    is_shadow: bool,
}

impl FilterDescriptor {
    /// Whether this descriptor takes precedence for some requests of `other`: it has values where the other
    /// accepts any.
    fn takes_precedence_over(&self, other: &Self) -> bool {
        let each = |(one, other): (&ExpectedEntry, &ExpectedEntry)| {
            one.key == other.key && (one.value == other.value || other.value.is_empty())
        };
        self.entries != other.entries
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(each)
    }

    /// Formats the whole descriptor as a condition of `match`.
    fn entries_condition(&self) -> String {
        let pattern = |wanted: &ExpectedEntry| {
            let value = if wanted.value.is_empty() { scalar("*") } else { exact_pattern(&wanted.value) };
            map([(&wanted.key, value)])
        };
        format!("{{ entries: {} }}", list(self.entries.iter().map(pattern)))
    }
}

impl FilterImporter<'_, '_> {
    fn import_filter(&mut self, filter: &FilterConfig<'_>) {
        let config = filter.config;
        let name = field_text(config, "stat_prefix").unwrap_or("local").to_owned();
        let descriptors = items(get(config, "descriptors"));
        match get(config, "token_bucket").map(|bucket| token_bucket::read_bucket(self.file, bucket)) {
            Some(Ok(bucket)) => {
                let mut rule = self.start_rule(&name, filter);
                if field_text(config, "always_consume_default_token_bucket") == Some("false") {
                    let key = "always_consume_default_token_bucket";
                    rule.add_comment(format!(
                        "{key}: not supported, requests that match descriptors count too"
                    ));
                }
                let unrestricted = MatchAndKey { match_fields: filter.match_fields.clone(), key: Vec::new() };
                self.set_limit(&mut rule, filter, &unrestricted, &bucket, false, Vec::new());
                self.items.push(RuleListItem::Rule(rule));
            }
            Some(Err(problem)) => self.problems.push(problem),
            None if descriptors.is_empty() => {
                self.items.push(RuleListItem::Comment(format!("{name}: skipped, no token bucket")));
            }
            None => {}
        }
        let mut parsed = Vec::new();
        for descriptor in descriptors {
            match self.read_descriptor(descriptor) {
                Ok(one) => parsed.push(one),
                Err(problem) => self.problems.push(problem),
            }
        }
        for one in &parsed {
            let before: Vec<&FilterDescriptor> =
                parsed.iter().filter(|other| other.takes_precedence_over(one)).collect();
            self.import_descriptor(
                &format!("{name}.{}", descriptor_name(&one.entries)),
                filter,
                one,
                &before,
            );
        }
    }

    fn read_descriptor(&self, node: &Node) -> Result<FilterDescriptor, ImportError> {
        let Some(bucket) = get(node, "token_bucket") else {
            return Err(error_at(self.file, node, "a descriptor without `token_bucket`"));
        };
        let bucket = token_bucket::read_bucket(self.file, bucket)?;
        let read_entry = |entry: &Node| match field_text(entry, "key").filter(|key| !key.is_empty()) {
            Some(key) => {
                let value = field_text(entry, "value").unwrap_or_default().to_owned();
                Ok(ExpectedEntry { key: key.to_owned(), value })
            }
            None => Err(error_at(self.file, entry, "an entry without `key`")),
        };
        let entries = items(get(node, "entries")).iter().map(read_entry).collect::<Result<Vec<_>, _>>()?;
        if entries.is_empty() {
            return Err(error_at(self.file, node, "a descriptor without `entries`"));
        }
        Ok(FilterDescriptor { entries, bucket, is_shadow: is_true(node, "shadow_mode") })
    }

    /// Creates a rule with its name, and comments on what is not imported.
    fn start_rule(&mut self, name: &str, filter: &FilterConfig<'_>) -> RuleText {
        let mut rule = RuleText::default();
        rule.set("name", scalar(&self.names.make_unique(name)));
        for (field, _) in fields(filter.config) {
            if !KNOWN_FIELDS.iter().any(|known| is_named(field, known)) {
                rule.add_comment(format!("{field}: not supported"));
            }
        }
        rule
    }

    /// Sets the conditions of a rule, with `exceptions` for requests of other rules, and its key and limit.
    fn set_limit(
        &self,
        rule: &mut RuleText,
        filter: &FilterConfig<'_>,
        translated: &MatchAndKey,
        bucket: &ImportedBucket,
        is_shadow: bool,
        mut exceptions: Vec<String>,
    ) {
        for note in &translated.match_fields.notes {
            rule.add_comment(note.clone());
        }
        if let Some(matching) = translated.match_fields.match_text() {
            rule.set("match", matching);
        }
        if !filter.match_fields.is_per_route {
            exceptions.extend(self.per_route_conditions(rule));
        }
        if !exceptions.is_empty() {
            rule.set("except", one_or_list(&exceptions));
        }
        set_key_and_bucket(rule, &translated.key, bucket);
        set_enforcement(rule, filter.config, is_shadow);
        if let Some(status) = rejection_status(filter.config) {
            rule.set("on_limit", map([("status", status.to_string())]));
        }
    }

    /// Returns the virtual hosts and routes with a configuration of their own, to which the filter's does not
    /// apply.
    fn per_route_conditions(&self, rule: &mut RuleText) -> Vec<String> {
        let scopes =
            || self.search.filters.iter().map(|found| &found.match_fields).filter(|scope| scope.is_per_route);
        if scopes().any(|scope| scope.match_text().is_none()) {
            rule.add_comment("a route with its own configuration cannot be matched: both rules apply to it");
        }
        if scopes().any(|scope| !scope.notes.is_empty()) {
            rule.add_comment(
                "`except` covers more than the routes with their own configuration: `match` is simplified",
            );
        }
        let mut all: Vec<String> = Vec::new();
        for matching in scopes().filter_map(MatchFields::match_text) {
            if !all.contains(&matching) {
                all.push(matching);
            }
        }
        all
    }

    /// Creates the rules for one descriptor, except for what the descriptors `before` it match.
    fn import_descriptor(
        &mut self,
        name: &str,
        filter: &FilterConfig<'_>,
        descriptor: &FilterDescriptor,
        preceding: &[&FilterDescriptor],
    ) {
        let mut translations: Vec<(MatchAndKey, Vec<String>)> = Vec::new();
        for source in &self.search.sources {
            let Some(translated) = source.match_and_key(&descriptor.entries) else { continue };
            let within = |meaning: &MatchAndKey| filter.match_fields.narrowed_by(&meaning.match_fields);
            let exceptions = preceding.iter().filter_map(|other| source.match_and_key(&other.entries));
            let exceptions: Vec<String> =
                exceptions.filter_map(|meaning| within(&meaning).match_text()).collect();
            let translated = MatchAndKey { match_fields: within(&translated), ..translated };
            if !translations.iter().any(|(known, _)| *known == translated) {
                translations.push((translated, exceptions));
            }
        }
        if translations.is_empty() {
            let rule = self.descriptor_only_rule(name, filter, descriptor, preceding);
            return self.items.push(RuleListItem::Rule(rule));
        }
        let several = translations.len() > 1;
        for (translated, exceptions) in translations {
            let mut rule = self.start_rule(name, filter);
            if several {
                rule.add_comment("several actions produce this descriptor: each of them has its own buckets");
            }
            self.set_limit(
                &mut rule,
                filter,
                &translated,
                &descriptor.bucket,
                descriptor.is_shadow,
                exceptions,
            );
            self.items.push(RuleListItem::Rule(rule));
        }
    }

    /// Creates a rule for a descriptor of which the file does not show what makes it.
    fn descriptor_only_rule(
        &mut self,
        name: &str,
        filter: &FilterConfig<'_>,
        descriptor: &FilterDescriptor,
        preceding: &[&FilterDescriptor],
    ) -> RuleText {
        let mut rule = self.start_rule(name, filter);
        rule.add_comment("the actions that produce this descriptor are not in the file or not supported:");
        rule.add_comment(
            "the rule applies to Envoy's calls of the rate limit service, not to proxied requests",
        );
        rule.set("domain", scalar(field_text(filter.config, "stat_prefix").map_or("local", str::trim)));
        rule.set("match", descriptor.entries_condition());
        let exceptions: Vec<String> = preceding.iter().map(|other| other.entries_condition()).collect();
        if !exceptions.is_empty() {
            rule.set("except", one_or_list(&exceptions));
        }
        let mut key: Vec<String> = Vec::new();
        for entry in descriptor.entries.iter().filter(|entry| entry.value.is_empty()) {
            let part = map([("descriptor", scalar(&entry.key))]);
            if !key.contains(&part) {
                key.push(part);
            }
        }
        set_key_and_bucket(&mut rule, &key, &descriptor.bucket);
        set_enforcement(&mut rule, filter.config, descriptor.is_shadow);
        rule
    }
}

/// Sets the key and the bucket of each of its values.
fn set_key_and_bucket(rule: &mut RuleText, key: &[String], bucket: &ImportedBucket) {
    if !key.is_empty() {
        rule.set("key", list(key));
    }
    rule.set("limit", bucket.limit.clone());
    if let Some(burst) = bucket.burst {
        rule.set("burst", burst.to_string());
    }
    rule.set("algorithm", "token_bucket");
}

fn descriptor_name(wanted: &[ExpectedEntry]) -> String {
    let entry = |ExpectedEntry { key, value }: &ExpectedEntry| {
        if value.is_empty() { key.clone() } else { format!("{key}_{value}") }
    };
    wanted.iter().map(entry).collect::<Vec<_>>().join(".")
}

/// Sets what part of the rule is enforced. Envoy's two shares are of requests, and zero by default; `enforce`
/// is a share of keys, and all by default.
fn set_enforcement(rule: &mut RuleText, config: &Node, is_shadow: bool) {
    if is_shadow {
        return rule.set("throttle", "shadow");
    }
    let share = |name: &str| get(config, name).map_or(Some(0.0), read_percent);
    for name in ["filter_enabled", "filter_enforced"] {
        let runtime = get(config, name).and_then(|value| field_text(value, "runtime_key"));
        if let Some(key) = runtime {
            rule.add_comment(format!(
                "{name}: the runtime key `{key}` is not supported, the default value applies"
            ));
        }
    }
    let (enabled, enforced) = (share("filter_enabled"), share("filter_enforced"));
    if enabled == Some(0.0) {
        rule.add_comment(
            "filter_enabled is 0 % (the default): Envoy does not count, this rule is in shadow mode",
        );
    } else if enforced == Some(0.0) {
        rule.add_comment("filter_enforced is 0 % (the default): shadow mode");
    }
    let (Some(enabled), Some(enforced)) = (enabled, enforced) else {
        return rule.add_comment(
            "invalid filter_enabled or filter_enforced: the limit is enforced for all requests",
        );
    };
    let share = enabled * enforced / 100.0;
    if share <= 0.0 {
        rule.set("throttle", "shadow");
    } else if share < 100.0 {
        rule.add_comment(
            "filter_enabled and filter_enforced are shares of requests, `enforce` is a share of keys",
        );
        rule.set("enforce", scalar(&format!("{}%", (share * 100.0).round() / 100.0)));
    }
}

/// Reads a fractional percentage, in percent.
fn read_percent(node: &Node) -> Option<f64> {
    let value = get(node, "default_value").unwrap_or(node);
    let numerator: f64 = match get(value, "numerator") {
        Some(number) => scalar_text(number)?.parse().ok()?,
        None => 0.0,
    };
    let all = match field_text(value, "denominator") {
        None | Some("HUNDRED" | "0") => 100.0,
        Some("TEN_THOUSAND" | "1") => 10_000.0,
        Some("MILLION" | "2") => 1_000_000.0,
        Some(_) => return None,
    };
    Some((numerator / all * 100.0).min(100.0))
}

/// Returns the status code of rejections, given by number or name, unless it is 429. Envoy replaces codes
/// below 400 by 429.
fn rejection_status(config: &Node) -> Option<u16> {
    let code = field_text(get(config, "status")?, "code")?;
    let is_named = |status: &u16| {
        let reason = http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        reason.is_some_and(|reason| reason.replace([' ', '-'], "") == code)
    };
    let code = code.parse().ok().or_else(|| (400..600).find(is_named))?;
    (code != 429 && (400..600).contains(&code)).then_some(code)
}
