//! Matchers and keys of rules: which requests a rule applies to, and what it counts separately.

use http::{HeaderName, Method};

use super::context::CompileContext;
use super::{
    bodies, descriptors, geo, given_keys, map_items, nested_networks, networks, patterns, plans, tls,
};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse;
use crate::quoting::{backquoted, backquoted_list, quoted};
use crate::raw;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::matcher::{Condition, Matcher};
use weir_policy::rules::pattern::{HeaderPattern, HostPattern, PathPattern};
use weir_policy::rules::schedule::Schedule;

/// The methods of RFC 9110, and PATCH. In lower case they are certainly meant in upper case.
const STANDARD_METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Compiles `match`. Without it, or with an empty map, the rule matches every request.
pub(super) fn compile_matcher(
    raw: Option<&raw::Matcher>,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Matcher {
    let Some(raw) = raw else { return Matcher::default() };
    let mut matcher = Matcher::default();
    if let Some(paths) = &raw.path {
        let mut paths = map_items(paths, at.key("path"), |raw, at| at.ok(parse_path(&raw.0)));
        if raw.trailing_slash.unwrap_or(context.trailing_slash) == raw::TrailingSlash::Ignore {
            let others: Vec<_> = paths.iter().filter_map(PathPattern::with_other_end).collect();
            paths.extend(others);
        }
        matcher.paths = paths.into();
    } else if raw.trailing_slash.is_some() && !at.key("path").is_reported() {
        at.inapplicable_key("trailing_slash", "without `path`");
    }
    if let Some(methods) = &raw.method {
        matcher.methods = map_items(methods, at.key("method"), |raw, at| at.ok(parse_method(&raw.0))).into();
    }
    if let Some(hosts) = &raw.host {
        matcher.hosts = map_items(hosts, at.key("host"), |raw, at| at.ok(parse_host(&raw.0))).into();
    }
    if let Some(list) = &raw.client_ip {
        matcher.client_ip = Some(networks::compile_set(list, at.key("client_ip"), context.files));
    }
    if let Some(schedule) = &raw.schedule {
        let spans = map_items(schedule, at.key("schedule"), |raw, at| at.ok(parse::schedule(&raw.0)));
        matcher.schedule = Some(Schedule::new(spans));
    }
    matcher.conditions = compile_conditions(raw, at, context).into();
    matcher.entries =
        raw.entries.as_ref().map(|raw| descriptors::compile_entries(raw, at.key("entries"), context));
    matcher
}

/// Compiles the conditions on single attributes. Those that cost most to evaluate come last.
fn compile_conditions(raw: &raw::Matcher, at: At<'_>, context: &mut CompileContext<'_>) -> Vec<Condition> {
    // Without `..`, so that adding a field is a compile error until it is read here or listed as read
    // elsewhere.
    let raw::Matcher {
        header,
        descriptor,
        plan,
        country,
        continent,
        asn,
        jwt,
        tls: names,
        listener,
        json,
        form,
        path: _,
        trailing_slash: _,
        method: _,
        host: _,
        client_ip: _,
        schedule: _,
        entries: _,
    } = raw;
    let mut conditions = Vec::new();
    if let Some(map) = header {
        let patterns = map.iter().map(|(name, patterns)| (name, patterns.expose()));
        let headers = compile_header_patterns(patterns, at.key("header"), context).into_iter();
        conditions.extend(
            headers.map(|(name, any)| Condition { attribute: Attribute::Header(name), patterns: any }),
        );
    }
    if let Some(map) = descriptor {
        conditions.extend(descriptors::compile_conditions(map, at.key("descriptor"), context));
    }
    let found = [
        compile_plain_condition(raw::PlainKey::Plan, plan, at.key("plan"), context, plans::compile_pattern),
        compile_plain_condition(
            raw::PlainKey::Country,
            country,
            at.key("country"),
            context,
            geo::compile_country,
        ),
        compile_plain_condition(
            raw::PlainKey::Continent,
            continent,
            at.key("continent"),
            context,
            geo::compile_continent,
        ),
        compile_plain_condition(raw::PlainKey::Asn, asn, at.key("asn"), context, geo::compile_asn),
        compile_listeners(listener, at.key("listener"), context),
    ];
    conditions.extend(found.into_iter().flatten());
    if let Some(map) = jwt {
        conditions.extend(patterns::compile_claims(map, at.key("jwt"), context));
    }
    if let Some(map) = json {
        conditions.extend(bodies::compile_conditions(map, bodies::json_field, at.key("json"), context));
    }
    if let Some(map) = form {
        conditions.extend(bodies::compile_conditions(map, bodies::form_field, at.key("form"), context));
    }
    if let Some(names) = names {
        conditions.extend(tls::compile_conditions(names, at.key("tls"), context));
    }
    conditions
}

/// Compiles the condition on the listener.
fn compile_listeners(
    list: &Option<raw::OneOrMany<raw::ListenerName>>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Condition> {
    compile_plain_condition(raw::PlainKey::Listener, list, at, context, compile_listener)
}

/// Compiles the name of a listener, which must exist.
fn compile_listener(
    raw: &raw::ListenerName,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<HeaderPattern> {
    let name = &*raw.0;
    if !context.listeners.iter().any(|known| **known == *name) {
        let known = context.listeners.iter().map(|known| backquoted(known)).collect::<Vec<_>>().join(", ");
        let error = ValueError::new(format!("no listener has this name, got {}", quoted(name)));
        at.error(error.with_hint(format!("the listeners are {known}")));
        return None;
    }
    Some(HeaderPattern::Exact(name.into()))
}

/// Compiles the condition on an attribute that has no name; `read` parses one of its values.
fn compile_plain_condition<T>(
    kind: raw::PlainKey,
    list: &Option<raw::OneOrMany<T>>,
    at: At<'_>,
    context: &CompileContext<'_>,
    read: impl Fn(&T, At<'_>, &CompileContext<'_>) -> Option<HeaderPattern>,
) -> Option<Condition> {
    let list = list.as_ref()?;
    let attribute = compile_plain_part(kind, at, context);
    let any = map_items(list, at, |raw, at| read(raw, at, context)).into();
    Some(Condition { attribute: attribute?, patterns: any })
}

/// Compiles `except`. Reports an empty one, which would match every request and disable the rule.
pub(super) fn compile_except(raw: &raw::Matcher, at: At<'_>, context: &mut CompileContext<'_>) -> Matcher {
    let matcher = compile_matcher(Some(raw), at, context);
    if matcher.holds_for_all() && !at.is_reported() {
        at.error("an empty `except` matches every request, so the rule would never apply");
    }
    matcher
}

/// Compiles `key` of the rule at `rule`, in order. Reports duplicate parts, and `route` in a rule without
/// path patterns.
pub(super) fn compile_key(
    raw: &raw::ZeroOrMany<raw::KeyPart>,
    matcher: &Matcher,
    rule: At<'_>,
    context: &CompileContext<'_>,
) -> KeyTemplate {
    let mut seen: Vec<Attribute> = Vec::new();
    let no_route = matcher.paths.is_empty() && !rule.key("match").is_reported();
    map_items(raw, rule.key("key"), |raw, at| {
        let part = compile_key_part(raw, at, context)?;
        if part == Attribute::Route && no_route {
            let error = ValueError::new("`route` needs `match.path`, and this rule has none");
            at.error(error.with_hint("use `path` to count each path separately"));
        }
        if seen.contains(&part) {
            at.error(format!("duplicate key part `{part}`"));
        }
        seen.push(part);
        Some(())
    });
    KeyTemplate(seen.into())
}

pub(super) fn compile_key_part(
    raw: &raw::KeyPart,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Attribute> {
    let named = match raw {
        raw::KeyPart::Plain(plain) => return compile_plain_part(*plain, at, context),
        raw::KeyPart::Named(named) => named,
    };
    if !is_one_part(named, at) {
        return None;
    }
    if let Some(client) = &named.client_ip {
        return Some(nested_networks::compile_key_part(client, at.key("client_ip")));
    }
    if let Some(claim) = &named.jwt {
        return compile_claim_part(claim, at.key("jwt"), context);
    }
    if let Some(name) = named.tls {
        return tls::compile_name(name, at.key("tls"), context).map(Attribute::Certificate);
    }
    if named.json.is_some() || named.form.is_some() {
        return bodies::compile_key_part(named.json.as_deref(), named.form.as_deref(), at, context);
    }
    if let Some(key) = &named.descriptor {
        return descriptors::compile_key_part(key, at.key("descriptor"), context);
    }
    compile_named_part(&named.header, &named.cookie, &named.query, at)
}

/// Whether the map is one part of a key. The field of a body has two names, one for each kind of body. Reports others.
fn is_one_part(named: &raw::NamedKey, at: At<'_>) -> bool {
    // Without `..`, so that a new key is considered here.
    let raw::NamedKey { header, cookie, query, jwt, tls, client_ip, json, form, descriptor } = named;
    let keys = [
        ("header", header.is_some()),
        ("cookie", cookie.is_some()),
        ("query", query.is_some()),
        ("jwt", jwt.is_some()),
        ("tls", tls.is_some()),
        ("client_ip", client_ip.is_some()),
        ("json", json.is_some()),
        ("form", form.is_some()),
        ("descriptor", descriptor.is_some()),
    ];
    let given: Vec<_> = given_keys(keys).collect();
    let is_one = given.len() < 2 || given == ["json", "form"];
    if !is_one && !at.is_reported() {
        let known = backquoted_list(keys.map(|(key, _)| key));
        at.error(format!("expected exactly one of {known}, or `json` with `form`, got {} keys", given.len()));
    }
    is_one
}

/// Compiles a key part that is a claim of a token.
pub(super) fn compile_claim_part(claim: &str, at: At<'_>, context: &CompileContext<'_>) -> Option<Attribute> {
    patterns::register_claim(claim, at, context).map(Attribute::Jwt)
}

/// Compiles a key part with a name: a header, a cookie or a query parameter.
pub(super) fn compile_named_part(
    header: &Option<String>,
    cookie: &Option<String>,
    query: &Option<String>,
    at: At<'_>,
) -> Option<Attribute> {
    if let Some(header) = header {
        return at.key("header").ok(parse_header_name(header).map(Attribute::Header));
    }
    if let Some(cookie) = cookie {
        return at.key("cookie").ok(parse_cookie_name(cookie).map(Attribute::Cookie));
    }
    let query = query.as_deref()?;
    let name =
        if query.is_empty() { Err(invalid_value("query parameter name", query)) } else { Ok(query.into()) };
    at.key("query").ok(name.map(Attribute::Query))
}

/// Compiles a key part without a name. Reports a part that needs a section of the configuration that is
/// missing.
pub(super) fn compile_plain_part(
    plain: raw::PlainKey,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Attribute> {
    Some(match plain {
        raw::PlainKey::ClientIp => Attribute::ClientIp,
        raw::PlainKey::Country => {
            geo::require_geo_database(at, "country", context);
            Attribute::Country
        }
        raw::PlainKey::Continent => {
            geo::require_geo_database(at, "continent", context);
            Attribute::Continent
        }
        raw::PlainKey::Asn => {
            geo::require_asn_database(at, context);
            Attribute::System
        }
        raw::PlainKey::Plan => Attribute::Plan(plans::require_plans(at, context)?),
        raw::PlainKey::Route => Attribute::Route,
        raw::PlainKey::Path => Attribute::Path,
        raw::PlainKey::Method => Attribute::Method,
        raw::PlainKey::Host => Attribute::Host,
        raw::PlainKey::Listener => Attribute::Listener,
        raw::PlainKey::Stream => {
            let error = ValueError::new("`stream` is a key of rules with limits inside streams only");
            at.error(error.with_hint("`client_ip` counts the streams of a client together"));
            return None;
        }
    })
}

fn parse_path(text: &str) -> Result<PathPattern, ValueError> {
    if !text.starts_with('~') && text.contains(['?', '#']) {
        let error = ValueError::new(format!("a path has no query and no fragment, got {}", quoted(text)));
        return Err(error.with_hint("the query is not matched"));
    }
    if let Some(regex) = text.strip_prefix("~ ") {
        let error = ValueError::new(format!("a regex begins directly after `~`, got {}", quoted(text)));
        return Err(error.with_hint(format!("write `~{}`", regex.trim())));
    }
    PathPattern::parse(text).map_err(|error| {
        let error = ValueError::new(format!("{error}, got {}", quoted(text)));
        if let Some(pattern) = parse::misspelling::path_pattern(text) {
            return error.with_hint(format!("write `{pattern}`"));
        }
        match text.strip_suffix('*') {
            Some(stem) if text.starts_with('/') && !stem.contains('*') && !stem.ends_with('/') => {
                error.with_hint(format!("write `{stem}/*`, or the regex `~^{stem}`"))
            }
            _ if !text.is_empty() && !text.starts_with(['/', '~', '*']) => {
                error.with_hint(format!("did you mean `/{text}`?"))
            }
            _ => error,
        }
    })
}

fn parse_host(text: &str) -> Result<HostPattern, ValueError> {
    if !text.starts_with('~') && text.contains(['/', '@', ' ']) {
        return Err(ValueError::new(format!("a host has no scheme and no path, got {}", quoted(text))));
    }
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_*:[]".contains(&byte);
    if !text.starts_with('~') && !text.is_empty() && !text.bytes().all(is_host) {
        let error = ValueError::new(format!("not a host, got {}", quoted(text)));
        return Err(match text.is_ascii() {
            true => error.with_hint("write the name alone, as in `api.example.com`"),
            false => error.with_hint("clients send names in Punycode, as in `xn--bcher-kva.example`"),
        });
    }
    HostPattern::parse(text).map_err(|error| match error {
        weir_policy::rules::pattern::PatternError::Star => ValueError::new(format!(
            "`*` may only be the first label, as in `*.example.com`, got {}",
            quoted(text)
        )),
        error => ValueError::new(format!("not a host: {error}, got {}", quoted(text))),
    })
}

pub(super) fn parse_method(text: &str) -> Result<Method, ValueError> {
    let upper = text.to_ascii_uppercase();
    if upper != text && STANDARD_METHODS.contains(&upper.as_str()) {
        let error = ValueError::new(format!("methods are upper case, got {}", quoted(text)));
        return Err(error.with_hint(format!("did you mean `{upper}`?")));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| invalid_value("method", text))
}

pub(super) type HeaderPatterns = Vec<(HeaderName, Box<[HeaderPattern]>)>;

/// Compiles patterns for header values, by header name.
pub(super) fn compile_header_patterns<'r>(
    map: impl ExactSizeIterator<Item = (&'r String, &'r raw::OneOrMany<raw::HeaderValues>)>,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> HeaderPatterns {
    let mut headers: HeaderPatterns = Vec::new();
    if map.len() == 0 && !at.is_reported() {
        at.error("empty map, expected at least one header");
    }
    for (name, patterns) in map {
        let patterns =
            map_items(patterns, at.key(name), |raw, at| patterns::compile_header_pattern(raw, at, context));
        match parse_header_name(name) {
            Err(error) => at.key(name).key_error(error),
            Ok(header) if headers.iter().any(|(other, _)| *other == header) => {
                at.key(name).key_error(format!("duplicate header `{header}`: names are case-insensitive"));
            }
            Ok(header) => headers.push((header, patterns.into())),
        }
    }
    headers
}

/// Parses a header name, case-insensitively.
pub(super) fn parse_header_name(text: &str) -> Result<HeaderName, ValueError> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| {
        let error = invalid_value("header name", text);
        match text {
            ":path" => error.with_hint("write `path` in place of the header"),
            ":authority" => error.with_hint("write `host` in place of the header"),
            ":method" => error.with_hint("write `method` in place of the header"),
            _ => error,
        }
    })
}

/// Parses a cookie name. Like a method, it is a token (RFC 6265 section 4.1.1).
pub(super) fn parse_cookie_name(text: &str) -> Result<Box<str>, ValueError> {
    Method::from_bytes(text.as_bytes()).map(|_| text.into()).map_err(|_| invalid_value("cookie name", text))
}

fn invalid_value(what: &str, got: &str) -> ValueError {
    ValueError::new(format!("not a {what}, got {}", quoted(got)))
}
