//! Import of Envoy's local rate limit filter from any position: a bootstrap, a listener, routes, or the
//! filter's configuration alone.
//!
//! Its buckets become rules with `algorithm: token_bucket`. Descriptors are translated to the attributes that
//! make them, if the same file shows those: the client's address, headers, routes. Otherwise the rule matches
//! the descriptor itself, which only works for calls of Envoy to its rate limit service.

use super::Problem;
use super::actions::{Meaning, Source, Wanted};
use super::buckets::{self, Bucket};
use super::routes::Scope;
use super::tree::{fields, get, is_named, is_true, items, problem, text, text_of};
use super::writing::{Item, Names, RuleText, exactly, list, map, one_or_list, scalar, written};
use crate::yaml::{self, Dialect, Node, Value};

const TYPE: &str = "extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

/// Fields that are imported, or have no effect on which requests are admitted.
const KNOWN: [&str; 12] = [
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
pub fn import(file: &str, text: &str) -> Result<String, Vec<Problem>> {
    let of_file =
        |message: &str| vec![Problem { file: file.to_owned(), place: None, message: message.to_owned() }];
    let root = match yaml::parse(text, Dialect::Go) {
        Ok(Some(root)) => root,
        Ok(None) => return Err(of_file("empty, expected an Envoy configuration")),
        Err(errors) => {
            let problem = |error: &yaml::Error| {
                let (place, message) = (Some((error.at.line, error.at.column)), error.problem.to_string());
                Problem { file: file.to_owned(), place, message }
            };
            return Err(errors.iter().map(problem).collect());
        }
    };
    let mut search = Search::default();
    search.walk(&root, &Scope::default());
    if search.found.is_empty() && get(&root, "token_bucket").or_else(|| get(&root, "stat_prefix")).is_some() {
        search.found(&root, &Scope::default());
    }
    if search.found.is_empty() {
        return Err(of_file("no envoy.filters.http.local_ratelimit in the file"));
    }
    let mut importer =
        Importer { file, search: &search, items: Vec::new(), names: Names::default(), problems: Vec::new() };
    search.found.iter().for_each(|found| importer.configuration(found));
    if !importer.problems.is_empty() {
        return Err(importer.problems);
    }
    Ok(written(&head(file), &importer.items))
}

fn head(file: &str) -> Vec<String> {
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
struct Found<'n> {
    config: &'n Node,
    scope: Scope,
}

/// The parts of a file that matter here.
#[derive(Debug, Default)]
struct Search<'n> {
    found: Vec<Found<'n>>,
    sources: Vec<Source<'n>>,
}

impl<'n> Search<'n> {
    /// Searches everything below `node`, which applies to the requests of `scope`. The depth of nodes is
    /// bounded.
    fn walk(&mut self, node: &'n Node, scope: &Scope) {
        match &node.value {
            Value::Scalar(_) | Value::Tagged(_) => {}
            Value::List(nodes) => nodes.iter().for_each(|node| self.walk(node, scope)),
            Value::Map(_) if is_configuration(node) => self.found(configuration(node), scope),
            Value::Map(_) => {
                let scope = within(node, scope);
                for (name, value) in fields(node) {
                    if is_named(name, "rate_limits") {
                        self.sources(value, &scope);
                    } else if is_named(name, "typed_per_filter_config") {
                        self.walk(value, &Scope { is_own: true, ..scope.clone() });
                    } else {
                        self.walk(value, &scope);
                    }
                }
            }
        }
    }

    fn found(&mut self, config: &'n Node, scope: &Scope) {
        if let Some(limits) = get(config, "rate_limits") {
            self.sources(limits, scope);
        }
        self.found.push(Found { config, scope: scope.clone() });
    }

    fn sources(&mut self, limits: &'n Node, scope: &Scope) {
        for limit in items(Some(limits)) {
            let actions = items(get(limit, "actions")).iter().collect();
            self.sources.push(Source { actions, scope: Scope { is_own: false, ..scope.clone() } });
        }
    }
}

/// Returns the requests that a virtual host or a route applies to; `scope` for any other node.
fn within(node: &Node, scope: &Scope) -> Scope {
    if get(node, "domains").is_some() && get(node, "routes").is_some() {
        return scope.of_host(node);
    }
    let acts = ["route", "redirect", "direct_response", "typed_per_filter_config", "filter_action"];
    match get(node, "match") {
        Some(matching) if acts.iter().any(|name| get(node, name).is_some()) => scope.of_route(matching),
        _ => scope.clone(),
    }
}

fn is_configuration(node: &Node) -> bool {
    let is_it = |name: &str| text_of(node, name).is_some_and(|kind| kind.ends_with(TYPE));
    is_it("@type") || is_it("type_url")
}

/// Returns the configuration itself, which a typed struct wraps in a field.
fn configuration(node: &Node) -> &Node {
    get(node, "value").filter(|_| get(node, "type_url").is_some()).unwrap_or(node)
}

struct Importer<'a, 'n> {
    file: &'a str,
    search: &'a Search<'n>,
    items: Vec<Item>,
    names: Names,
    problems: Vec<Problem>,
}

/// A descriptor of the filter.
struct Asked {
    wanted: Vec<Wanted>,
    bucket: Bucket,
    shadow: bool,
}

impl Asked {
    /// Whether this descriptor takes precedence for some requests of `other`: it has values where the other
    /// accepts any.
    fn takes_from(&self, other: &Self) -> bool {
        let each = |(one, other): (&Wanted, &Wanted)| {
            one.key == other.key && (one.value == other.value || other.value.is_empty())
        };
        self.wanted != other.wanted
            && self.wanted.len() == other.wanted.len()
            && self.wanted.iter().zip(&other.wanted).all(each)
    }

    /// Formats the whole descriptor as a condition of `match`.
    fn entries(&self) -> String {
        let pattern = |wanted: &Wanted| {
            let value = if wanted.value.is_empty() { scalar("*") } else { exactly(&wanted.value) };
            map([(&wanted.key, value)])
        };
        format!("{{ entries: {} }}", list(self.wanted.iter().map(pattern)))
    }
}

impl Importer<'_, '_> {
    fn configuration(&mut self, found: &Found<'_>) {
        let config = found.config;
        let name = text_of(config, "stat_prefix").unwrap_or("local").to_owned();
        let descriptors = items(get(config, "descriptors"));
        match get(config, "token_bucket").map(|bucket| buckets::read(self.file, bucket)) {
            Some(Ok(bucket)) => {
                let mut rule = self.rule(&name, found);
                if text_of(config, "always_consume_default_token_bucket") == Some("false") {
                    let key = "always_consume_default_token_bucket";
                    rule.note(format!("{key}: not supported, requests that match descriptors count too"));
                }
                let all = Meaning { scope: found.scope.clone(), key: Vec::new() };
                self.limit(&mut rule, found, &all, (&bucket, false), Vec::new());
                self.items.push(Item::Rule(rule));
            }
            Some(Err(problem)) => self.problems.push(problem),
            None if descriptors.is_empty() => {
                self.items.push(Item::Comment(format!("{name}: skipped, no token bucket")));
            }
            None => {}
        }
        let mut asked = Vec::new();
        for descriptor in descriptors {
            match self.asked(descriptor) {
                Ok(one) => asked.push(one),
                Err(problem) => self.problems.push(problem),
            }
        }
        for one in &asked {
            let before: Vec<&Asked> = asked.iter().filter(|other| other.takes_from(one)).collect();
            self.descriptor(&format!("{name}.{}", composite(&one.wanted)), found, one, &before);
        }
    }

    fn asked(&self, node: &Node) -> Result<Asked, Problem> {
        let Some(bucket) = get(node, "token_bucket") else {
            return Err(problem(self.file, node, "a descriptor without `token_bucket`"));
        };
        let bucket = buckets::read(self.file, bucket)?;
        let wanted = |entry: &Node| match text_of(entry, "key").filter(|key| !key.is_empty()) {
            Some(key) => {
                let value = text_of(entry, "value").unwrap_or_default().to_owned();
                Ok(Wanted { key: key.to_owned(), value })
            }
            None => Err(problem(self.file, entry, "an entry without `key`")),
        };
        let wanted = items(get(node, "entries")).iter().map(wanted).collect::<Result<Vec<_>, _>>()?;
        if wanted.is_empty() {
            return Err(problem(self.file, node, "a descriptor without `entries`"));
        }
        Ok(Asked { wanted, bucket, shadow: is_true(node, "shadow_mode") })
    }

    /// Creates a rule with its name, and comments on what is not imported.
    fn rule(&mut self, name: &str, found: &Found<'_>) -> RuleText {
        let mut rule = RuleText::default();
        rule.set("name", scalar(&self.names.unique(name)));
        for (field, _) in fields(found.config) {
            if !KNOWN.iter().any(|known| is_named(field, known)) {
                rule.note(format!("{field}: not supported"));
            }
        }
        rule
    }

    /// Sets the conditions of a rule except for requests that are `taken` by others, its key and its limit.
    fn limit(
        &self,
        rule: &mut RuleText,
        found: &Found<'_>,
        meaning: &Meaning,
        (bucket, shadow): (&Bucket, bool),
        mut taken: Vec<String>,
    ) {
        for note in &meaning.scope.notes {
            rule.note(note.clone());
        }
        if let Some(matching) = meaning.scope.matching() {
            rule.set("match", matching);
        }
        if !found.scope.is_own {
            taken.extend(self.own(rule));
        }
        if !taken.is_empty() {
            rule.set("except", one_or_list(&taken));
        }
        fill(rule, &meaning.key, bucket);
        enforcement(rule, found.config, shadow);
        if let Some(status) = status(found.config) {
            rule.set("on_limit", map([("status", status.to_string())]));
        }
    }

    /// Returns the virtual hosts and routes with a configuration of their own, to which the filter's does not
    /// apply.
    fn own(&self, rule: &mut RuleText) -> Vec<String> {
        let scopes = || self.search.found.iter().map(|found| &found.scope).filter(|scope| scope.is_own);
        if scopes().any(|scope| scope.matching().is_none()) {
            rule.note("a route with its own configuration cannot be matched: both rules apply to it");
        }
        if scopes().any(|scope| !scope.notes.is_empty()) {
            rule.note(
                "`except` covers more than the routes with their own configuration: `match` is simplified",
            );
        }
        let mut all: Vec<String> = Vec::new();
        for matching in scopes().filter_map(Scope::matching) {
            if !all.contains(&matching) {
                all.push(matching);
            }
        }
        all
    }

    /// Creates the rules for one descriptor, except for what the descriptors `before` it match.
    fn descriptor(&mut self, name: &str, found: &Found<'_>, asked: &Asked, before: &[&Asked]) {
        let mut meanings: Vec<(Meaning, Vec<String>)> = Vec::new();
        for source in &self.search.sources {
            let Some(meaning) = source.meaning(&asked.wanted) else { continue };
            let within = |meaning: &Meaning| found.scope.and(&meaning.scope);
            let taken = before.iter().filter_map(|other| source.meaning(&other.wanted));
            let taken: Vec<String> = taken.filter_map(|meaning| within(&meaning).matching()).collect();
            let meaning = Meaning { scope: within(&meaning), ..meaning };
            if !meanings.iter().any(|(known, _)| *known == meaning) {
                meanings.push((meaning, taken));
            }
        }
        if meanings.is_empty() {
            let rule = self.told(name, found, asked, before);
            return self.items.push(Item::Rule(rule));
        }
        let several = meanings.len() > 1;
        for (meaning, taken) in meanings {
            let mut rule = self.rule(name, found);
            if several {
                rule.note("several actions produce this descriptor: each of them has its own buckets");
            }
            self.limit(&mut rule, found, &meaning, (&asked.bucket, asked.shadow), taken);
            self.items.push(Item::Rule(rule));
        }
    }

    /// Creates a rule for a descriptor of which the file does not show what makes it.
    fn told(&mut self, name: &str, found: &Found<'_>, asked: &Asked, before: &[&Asked]) -> RuleText {
        let mut rule = self.rule(name, found);
        rule.note("the actions that produce this descriptor are not in the file or not supported:");
        rule.note("the rule applies to Envoy's calls of the rate limit service, not to proxied requests");
        rule.set("domain", scalar(text_of(found.config, "stat_prefix").map_or("local", str::trim)));
        rule.set("match", asked.entries());
        let taken: Vec<String> = before.iter().map(|other| other.entries()).collect();
        if !taken.is_empty() {
            rule.set("except", one_or_list(&taken));
        }
        let mut key: Vec<String> = Vec::new();
        for entry in asked.wanted.iter().filter(|entry| entry.value.is_empty()) {
            let part = map([("descriptor", scalar(&entry.key))]);
            if !key.contains(&part) {
                key.push(part);
            }
        }
        fill(&mut rule, &key, &asked.bucket);
        enforcement(&mut rule, found.config, asked.shadow);
        rule
    }
}

/// Sets the key and the bucket of each of its values.
fn fill(rule: &mut RuleText, key: &[String], bucket: &Bucket) {
    if !key.is_empty() {
        rule.set("key", list(key));
    }
    rule.set("limit", bucket.limit.clone());
    if let Some(burst) = bucket.burst {
        rule.set("burst", burst.to_string());
    }
    rule.set("algorithm", "token_bucket");
}

fn composite(wanted: &[Wanted]) -> String {
    let entry = |Wanted { key, value }: &Wanted| {
        if value.is_empty() { key.clone() } else { format!("{key}_{value}") }
    };
    wanted.iter().map(entry).collect::<Vec<_>>().join(".")
}

/// Sets what part of the rule is enforced. Envoy's two shares are of requests, and zero by default; `enforce`
/// is a share of keys, and all by default.
fn enforcement(rule: &mut RuleText, config: &Node, shadow: bool) {
    if shadow {
        return rule.set("throttle", "shadow");
    }
    let share = |name: &str| get(config, name).map_or(Some(0.0), percent);
    for name in ["filter_enabled", "filter_enforced"] {
        let runtime = get(config, name).and_then(|value| text_of(value, "runtime_key"));
        if let Some(key) = runtime {
            rule.note(format!("{name}: the runtime key `{key}` is not supported, the default value applies"));
        }
    }
    let (enabled, enforced) = (share("filter_enabled"), share("filter_enforced"));
    if enabled == Some(0.0) {
        rule.note("filter_enabled is 0 % (the default): Envoy does not count, this rule is in shadow mode");
    } else if enforced == Some(0.0) {
        rule.note("filter_enforced is 0 % (the default): shadow mode");
    }
    let (Some(enabled), Some(enforced)) = (enabled, enforced) else {
        return rule
            .note("invalid filter_enabled or filter_enforced: the limit is enforced for all requests");
    };
    let share = enabled * enforced / 100.0;
    if share <= 0.0 {
        rule.set("throttle", "shadow");
    } else if share < 100.0 {
        rule.note("filter_enabled and filter_enforced are shares of requests, `enforce` is a share of keys");
        rule.set("enforce", scalar(&format!("{}%", (share * 100.0).round() / 100.0)));
    }
}

/// Reads a fractional percentage, in percent.
fn percent(node: &Node) -> Option<f64> {
    let value = get(node, "default_value").unwrap_or(node);
    let numerator: f64 = match get(value, "numerator") {
        Some(number) => text(number)?.parse().ok()?,
        None => 0.0,
    };
    let all = match text_of(value, "denominator") {
        None | Some("HUNDRED" | "0") => 100.0,
        Some("TEN_THOUSAND" | "1") => 10_000.0,
        Some("MILLION" | "2") => 1_000_000.0,
        Some(_) => return None,
    };
    Some((numerator / all * 100.0).min(100.0))
}

/// Returns the status code of rejections, given by number or name, unless it is 429. Envoy replaces codes
/// below 400 by 429.
fn status(config: &Node) -> Option<u16> {
    let code = text_of(get(config, "status")?, "code")?;
    let is_named = |status: &u16| {
        let reason = http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        reason.is_some_and(|reason| reason.replace([' ', '-'], "") == code)
    };
    let code = code.parse().ok().or_else(|| (400..600).find(is_named))?;
    (code != 429 && (400..600).contains(&code)).then_some(code)
}
