//! Matchers and keys of rules: which requests a rule applies to, and what it counts separately.

use http::{HeaderName, Method};

use super::scope::Scope;
use super::{descriptors, each, geo, nested, networks, patterns, plans, tls};
use crate::config::at::At;
use crate::config::parse;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::raw;
use crate::rules::attribute::Attribute;
use crate::rules::key::KeyTemplate;
use crate::rules::matcher::{Condition, Matcher};
use crate::rules::pattern::{HeaderPattern, HostPattern, PathPattern};
use crate::rules::schedule::Schedule;

/// The methods of RFC 9110, and PATCH. In lower case they are certainly meant in upper case.
const USUAL: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Compiles `match`. Without it, or with an empty map, the rule matches every request.
pub(super) fn matcher(
    raw: Option<&raw::Matcher>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Matcher {
    let Some(raw) = raw else { return Matcher::default() };
    let mut matcher = Matcher::default();
    if let Some(paths) = &raw.path {
        let mut paths = each(paths, at.key("path"), |raw, at| report.take(at, path(&raw.0)));
        if raw.trailing_slash.unwrap_or(scope.trailing_slash) == raw::TrailingSlash::Ignore {
            let others: Vec<_> = paths.iter().filter_map(PathPattern::with_other_end).collect();
            paths.extend(others);
        }
        matcher.paths = paths.into();
    } else if raw.trailing_slash.is_some() && !report.is_faulty(at.key("path")) {
        report.key(at.key("trailing_slash"), "`trailing_slash` has no meaning without `path`");
    }
    if let Some(methods) = &raw.method {
        matcher.methods = each(methods, at.key("method"), |raw, at| report.take(at, method(&raw.0))).into();
    }
    if let Some(hosts) = &raw.host {
        matcher.hosts = each(hosts, at.key("host"), |raw, at| report.take(at, host(&raw.0))).into();
    }
    if let Some(list) = &raw.client_ip {
        matcher.client_ip = Some(networks::set(list, at.key("client_ip"), scope.files, report));
    }
    if let Some(schedule) = &raw.schedule {
        let spans = each(schedule, at.key("schedule"), |raw, at| report.take(at, parse::schedule(&raw.0)));
        matcher.schedule = Some(Schedule::new(spans));
    }
    matcher.conditions = conditions(raw, at, scope, report).into();
    matcher.entries =
        raw.entries.as_ref().map(|raw| descriptors::entries(raw, at.key("entries"), scope, report));
    matcher
}

/// Compiles the conditions on single attributes. Those that cost most to evaluate come last.
fn conditions(
    raw: &raw::Matcher,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Vec<Condition> {
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
        let headers = headers(patterns, at.key("header"), scope, report).into_iter();
        conditions.extend(
            headers.map(|(name, any)| Condition { attribute: Attribute::Header(name), patterns: any }),
        );
    }
    if let Some(map) = descriptor {
        conditions.extend(descriptors::conditions(map, at.key("descriptor"), scope, report));
    }
    let found = [
        plain(raw::PlainKey::Plan, plan, at.key("plan"), (scope, report), plans::pattern),
        plain(raw::PlainKey::Country, country, at.key("country"), (scope, report), geo::country),
        plain(raw::PlainKey::Continent, continent, at.key("continent"), (scope, report), geo::continent),
        plain(raw::PlainKey::Asn, asn, at.key("asn"), (scope, report), geo::system),
    ];
    conditions.extend(found.into_iter().flatten());
    if let Some(map) = jwt {
        conditions.extend(patterns::of_claims(map, at.key("jwt"), scope, report));
    }
    if let Some(names) = names {
        conditions.extend(tls::conditions(names, at.key("tls"), scope, report));
    }
    conditions
}

/// Compiles the condition on an attribute that has no name; `read` parses one of its values.
fn plain<T>(
    kind: raw::PlainKey,
    list: &Option<raw::OneOrMany<T>>,
    at: At<'_>,
    (scope, report): (&Scope<'_>, &mut Report<'_>),
    read: impl Fn(&T, At<'_>, &Scope<'_>, &mut Report<'_>) -> Option<HeaderPattern>,
) -> Option<Condition> {
    let list = list.as_ref()?;
    let attribute = plain_part(kind, at, scope, report);
    let any = each(list, at, |raw, at| read(raw, at, scope, report)).into();
    Some(Condition { attribute: attribute?, patterns: any })
}

/// Compiles `except`. Reports an empty one, which would match every request and disable the rule.
pub(super) fn except(
    raw: &raw::Matcher,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Matcher {
    let matcher = matcher(Some(raw), at, scope, report);
    if matcher.holds_for_all() && !report.is_faulty(at) {
        report.value(at, "an empty `except` matches every request, so the rule would never apply");
    }
    matcher
}

/// Compiles `key` of the rule at `rule`, in order. Reports duplicate parts, and `route` in a rule without
/// path patterns.
pub(super) fn key(
    raw: &raw::ZeroOrMany<raw::KeyPart>,
    matcher: &Matcher,
    rule: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> KeyTemplate {
    let mut seen: Vec<Attribute> = Vec::new();
    let no_route = matcher.paths.is_empty() && !report.is_faulty(rule.key("match"));
    each(raw, rule.key("key"), |raw, at| {
        let part = part(raw, at, scope, report)?;
        if part == Attribute::Route && no_route {
            let fault = Fault::new("`route` needs `match.path`, and this rule has none");
            report.value(at, fault.hint("use `path` to count each path separately"));
        }
        if seen.contains(&part) {
            report.value(at, format!("duplicate key part `{part}`"));
        }
        seen.push(part);
        Some(())
    });
    KeyTemplate(seen.into())
}

fn part(raw: &raw::KeyPart, at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> Option<Attribute> {
    let named = match raw {
        raw::KeyPart::Plain(plain) => return plain_part(*plain, at, scope, report),
        raw::KeyPart::Named(named) => named,
    };
    if let Some(client) = &named.client_ip {
        return Some(nested::part(client, at.key("client_ip"), report));
    }
    if let Some(claim) = &named.jwt {
        return claim_part(claim, at.key("jwt"), scope, report);
    }
    if let Some(name) = named.tls {
        return tls::name(name, at.key("tls"), scope, report).map(Attribute::Certificate);
    }
    if let Some(key) = &named.descriptor {
        return descriptors::part(key, at.key("descriptor"), scope, report);
    }
    named_part([&named.header, &named.cookie, &named.query], at, report)
}

/// Compiles a key part that is a claim of a token.
pub(super) fn claim_part(
    claim: &str,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Attribute> {
    patterns::claim(claim, at, scope, report).map(Attribute::Jwt)
}

/// Compiles a key part with a name: a header, a cookie or a query parameter.
pub(super) fn named_part(
    [header, cookie, query]: [&Option<String>; 3],
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Attribute> {
    if let Some(header) = header {
        return report.take(at.key("header"), header_name(header).map(Attribute::Header));
    }
    if let Some(cookie) = cookie {
        return report.take(at.key("cookie"), cookie_name(cookie).map(Attribute::Cookie));
    }
    let query = query.as_deref()?;
    let name = if query.is_empty() { Err(not_a("query parameter name", query)) } else { Ok(query.into()) };
    report.take(at.key("query"), name.map(Attribute::Query))
}

/// Compiles a key part without a name. Reports a part that needs a section of the configuration that is
/// missing.
pub(super) fn plain_part(
    plain: raw::PlainKey,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Attribute> {
    Some(match plain {
        raw::PlainKey::ClientIp => Attribute::ClientIp,
        raw::PlainKey::Country => {
            geo::places_for(at, "country", scope, report);
            Attribute::Country
        }
        raw::PlainKey::Continent => {
            geo::places_for(at, "continent", scope, report);
            Attribute::Continent
        }
        raw::PlainKey::Asn => {
            geo::systems_for(at, scope, report);
            Attribute::System
        }
        raw::PlainKey::Plan => Attribute::Plan(plans::plans_for(at, scope, report)?),
        raw::PlainKey::Route => Attribute::Route,
        raw::PlainKey::Path => Attribute::Path,
        raw::PlainKey::Method => Attribute::Method,
        raw::PlainKey::Host => Attribute::Host,
    })
}

fn path(text: &str) -> Result<PathPattern, Fault> {
    if !text.starts_with('~') && text.contains(['?', '#']) {
        let fault = Fault::new(format!("a path has no query and no fragment, got {}", quoted(text)));
        return Err(fault.hint("the query is not matched"));
    }
    PathPattern::parse(text).map_err(|error| {
        let fault = Fault::new(format!("{error}, got {}", quoted(text)));
        match text.strip_suffix('*') {
            Some(stem) if text.starts_with('/') && !stem.contains('*') && !stem.ends_with('/') => {
                fault.hint(format!("write `{stem}/*`, or the regex `~^{stem}`"))
            }
            _ if !text.is_empty() && !text.starts_with(['/', '~', '*']) => {
                fault.hint(format!("did you mean `/{text}`?"))
            }
            _ => fault,
        }
    })
}

fn host(text: &str) -> Result<HostPattern, Fault> {
    if !text.starts_with('~') && text.contains(['/', '@', ' ']) {
        return Err(Fault::new(format!("a host has no scheme and no path, got {}", quoted(text))));
    }
    HostPattern::parse(text).map_err(|error| match error {
        crate::rules::pattern::PatternError::Star => Fault::new(format!(
            "`*` may only be the first label, as in `*.example.com`, got {}",
            quoted(text)
        )),
        error => Fault::new(format!("not a host: {error}, got {}", quoted(text))),
    })
}

pub(super) fn method(text: &str) -> Result<Method, Fault> {
    let upper = text.to_ascii_uppercase();
    if upper != text && USUAL.contains(&upper.as_str()) {
        let fault = Fault::new(format!("methods are upper case, got {}", quoted(text)));
        return Err(fault.hint(format!("did you mean `{upper}`?")));
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| not_a("method", text))
}

pub(super) type Headers = Vec<(HeaderName, Box<[HeaderPattern]>)>;

/// Compiles patterns for header values, by header name.
pub(super) fn headers<'r>(
    map: impl ExactSizeIterator<Item = (&'r String, &'r raw::OneOrMany<raw::HeaderValues>)>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Headers {
    let mut headers: Headers = Vec::new();
    if map.len() == 0 && !report.is_faulty(at) {
        report.value(at, "empty map, expected at least one header");
    }
    for (name, patterns) in map {
        let patterns = each(patterns, at.key(name), |raw, at| patterns::of_header(raw, at, scope, report));
        match header_name(name) {
            Err(fault) => report.key(at.key(name), fault),
            Ok(header) if headers.iter().any(|(other, _)| *other == header) => {
                report.key(at.key(name), format!("duplicate header `{header}`: names are case-insensitive"));
            }
            Ok(header) => headers.push((header, patterns.into())),
        }
    }
    headers
}

/// Parses a header name, case-insensitively.
pub(super) fn header_name(text: &str) -> Result<HeaderName, Fault> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| not_a("header name", text))
}

/// Parses a cookie name. Like a method, it is a token (RFC 6265 section 4.1.1).
pub(super) fn cookie_name(text: &str) -> Result<Box<str>, Fault> {
    Method::from_bytes(text.as_bytes()).map(|_| text.into()).map_err(|_| not_a("cookie name", text))
}

fn not_a(what: &str, got: &str) -> Fault {
    Fault::new(format!("not a {what}, got {}", quoted(got)))
}
