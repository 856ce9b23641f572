//! Compiled patterns of `match`: paths, hosts and attribute values.

use std::sync::Arc;

use regex::bytes::Regex as BytesRegex;
use regex::{Regex, RegexBuilder};

use super::value_list::ValueList;

/// Maximum memory of a compiled regex, in bytes. Handwritten ones need a fraction of it.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

/// Why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not a path.
    #[error("a path starts with `/`, or with `~` for a regex")]
    NoSlash,
    /// Broken percent-encoding.
    #[error("broken percent-encoding")]
    Encoding,
    /// `*` anywhere but at the end.
    #[error("`*` may only be the last segment, as in `/prefix/*`")]
    Star,
    /// `{` or `}` that does not enclose a whole segment.
    #[error("`{{name}}` must be a whole segment, as in `/users/{{id}}`")]
    Braces,
    /// The regex does not compile.
    #[error("{0}")]
    Regex(String),
    #[error("empty")]
    Empty,
}

/// The path pattern that matched a request; empty if the rule has no path pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route<'a>(pub &'a str);

/// A pattern for normalised paths, matched case-sensitively.
#[derive(Clone, Debug)]
pub struct PathPattern {
    text: Box<str>,
    kind: PathKind,
}

#[derive(Clone, Debug)]
pub(super) enum PathKind {
    Exact(Box<str>),
    /// Every path with this prefix, which ends in `/`.
    Prefix(Box<str>),
    /// One matcher per segment; an open template matches the paths below it instead.
    Template {
        segments: Box<[Segment]>,
        open: bool,
    },
    /// Unanchored regex.
    Regex(Regex),
}

/// One segment of a template.
#[derive(Clone, Debug)]
pub(super) enum Segment {
    Literal(Box<str>),
    /// Any non-empty segment.
    Any,
}

/// The text determines the compiled form.
impl PartialEq for PathPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl PathPattern {
    /// Reads `/exact`, `/prefix/*`, `/users/{id}` or `~regex`.
    ///
    /// # Errors
    /// [`PatternError`] for the rule of the grammar that is broken.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let kind = match text.strip_prefix('~') {
            Some(regex) => PathKind::Regex(regex_of(regex)?),
            None => Self::parse_literal(text)?,
        };
        Ok(Self { text: text.into(), kind })
    }

    fn parse_literal(text: &str) -> Result<PathKind, PatternError> {
        if !text.starts_with('/') {
            return Err(PatternError::NoSlash);
        }
        let (body, open) = match text.strip_suffix("/*") {
            Some(prefix) => (format!("{prefix}/"), true),
            None => (text.to_owned(), false),
        };
        if body.contains('*') {
            return Err(PatternError::Star);
        }
        let body = crate::identify::path::normalise(&body).map_err(|_| PatternError::Encoding)?;
        if !body.contains(['{', '}']) {
            let body = body.into_owned().into_boxed_str();
            return Ok(if open { PathKind::Prefix(body) } else { PathKind::Exact(body) });
        }
        let body = if open { body.strip_suffix('/').unwrap_or(&body) } else { &body };
        let segments = body.split('/').skip(1).map(Segment::parse).collect::<Result<_, _>>()?;
        Ok(PathKind::Template { segments, open })
    }

    /// Whether the pattern matches a normalised path.
    pub fn matches(&self, path: &str) -> bool {
        match &self.kind {
            PathKind::Exact(exact) => path == &**exact,
            PathKind::Prefix(prefix) => path.starts_with(&**prefix),
            PathKind::Template { segments, open } => matches_template(path, segments, *open),
            PathKind::Regex(regex) => regex.is_match(path),
        }
    }

    /// Returns the same pattern with the trailing slash added or removed; `None` for the root, for prefixes, for open
    /// templates and for regexes.
    pub fn with_other_end(&self) -> Option<Self> {
        let kind = match &self.kind {
            PathKind::Exact(exact) => PathKind::Exact(match exact.strip_suffix('/') {
                Some("") => return None,
                Some(without) => without.into(),
                None => format!("{exact}/").into(),
            }),
            PathKind::Template { segments, open: false } => {
                let end = Segment::Literal("".into());
                let segments = match segments.split_last() {
                    Some((Segment::Literal(last), others)) if last.is_empty() => others.into(),
                    _ => segments.iter().cloned().chain([end]).collect(),
                };
                PathKind::Template { segments, open: false }
            }
            PathKind::Prefix(_) | PathKind::Template { .. } | PathKind::Regex(_) => return None,
        };
        Some(Self { text: self.text.clone(), kind })
    }

    /// Returns a path that matches, with `x` in place of each variable; `None` for prefixes, open templates
    /// and regexes.
    pub fn example(&self) -> Option<String> {
        match &self.kind {
            PathKind::Exact(exact) => Some(exact.to_string()),
            PathKind::Template { segments, open: false } => {
                let segment = |segment: &Segment| match segment {
                    Segment::Literal(literal) => format!("/{literal}"),
                    Segment::Any => "/x".to_owned(),
                };
                Some(segments.iter().map(segment).collect())
            }
            PathKind::Prefix(_) | PathKind::Template { .. } | PathKind::Regex(_) => None,
        }
    }

    /// Returns a path that matches, also for prefixes and open templates; `None` for regexes.
    pub fn any_example(&self) -> Option<String> {
        match &self.kind {
            PathKind::Prefix(prefix) => Some(format!("{prefix}x")),
            PathKind::Template { segments, open: true } => {
                let kind = PathKind::Template { segments: segments.clone(), open: false };
                let closed = Self { text: self.text.clone(), kind };
                Some(closed.example()? + "/x")
            }
            PathKind::Exact(_) | PathKind::Template { .. } | PathKind::Regex(_) => self.example(),
        }
    }

    /// Returns the pattern as configured, which is the name of the route.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn kind(&self) -> &PathKind {
        &self.kind
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, PatternError> {
        match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
            Some(name) if !name.is_empty() && !name.contains(['{', '}']) => Ok(Self::Any),
            None if !text.contains(['{', '}']) => Ok(Self::Literal(text.into())),
            _ => Err(PatternError::Braces),
        }
    }

    fn matches(&self, segment: &str) -> bool {
        match self {
            Self::Literal(literal) => segment == &**literal,
            Self::Any => !segment.is_empty(),
        }
    }
}

fn matches_template(path: &str, segments: &[Segment], open: bool) -> bool {
    let mut rest = path.split('/').skip(1);
    for segment in segments {
        if !rest.next().is_some_and(|given| segment.matches(given)) {
            return false;
        }
    }
    rest.next().is_some() == open
}

#[derive(Clone, Debug)]
pub enum HostPattern {
    Exact(Box<str>),
    /// Every subdomain; starts with a dot.
    Suffix(Box<str>),
    /// Unanchored regex.
    Regex(Regex),
}

impl HostPattern {
    /// Reads `api.example.com`, `*.example.com` or `~regex`. Case and a port are ignored.
    ///
    /// # Errors
    /// [`PatternError`] for an empty host, a `*` in any other position, or an invalid regex.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if let Some(regex) = text.strip_prefix('~') {
            return Ok(Self::Regex(regex_of(regex)?));
        }
        let host = crate::identify::host::normalise(text);
        let pattern = match host.strip_prefix('*') {
            Some(suffix) if suffix.starts_with('.') => Self::Suffix(suffix.into()),
            Some(_) => return Err(PatternError::Star),
            None => Self::Exact(host.as_ref().into()),
        };
        match &pattern {
            Self::Exact(host) | Self::Suffix(host) if host.contains('*') => Err(PatternError::Star),
            Self::Exact(host) if host.is_empty() => Err(PatternError::Empty),
            _ => Ok(pattern),
        }
    }

    /// Whether the pattern matches a normalised host.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => host == &**exact,
            Self::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(&**suffix),
            Self::Regex(regex) => regex.is_match(host),
        }
    }
}

/// A pattern for the values of an attribute. A repeated header matches if any of its values does.
#[derive(Clone, Debug)]
pub enum HeaderPattern {
    /// `*`: there is a value.
    Present,
    /// `!present`: there is no value.
    Absent,
    /// This value, byte for byte.
    Exact(Box<str>),
    /// `~regex`.
    Regex(BytesRegex),
    /// This number, compared with its four big-endian bytes.
    Number(u32),
    /// Any value of a list.
    InList(Arc<ValueList>),
}

impl PartialEq for HostPattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(one), Self::Exact(other)) | (Self::Suffix(one), Self::Suffix(other)) => one == other,
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::Exact(_) | Self::Suffix(_) | Self::Regex(_), _) => false,
        }
    }
}

/// Every list is hashed under its own secret, so only the lengths of two lists can be compared.
impl PartialEq for HeaderPattern {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Present, Self::Present) | (Self::Absent, Self::Absent) => true,
            (Self::Exact(one), Self::Exact(other)) => one == other,
            (Self::Regex(one), Self::Regex(other)) => one.as_str() == other.as_str(),
            (Self::InList(one), Self::InList(other)) => one.len() == other.len(),
            (Self::Number(one), Self::Number(other)) => one == other,
            (
                Self::Present
                | Self::Absent
                | Self::Exact(_)
                | Self::Regex(_)
                | Self::InList(_)
                | Self::Number(_),
                _,
            ) => false,
        }
    }
}

impl HeaderPattern {
    /// Reads `*`, `!present`, `~regex`, or else an exact value.
    ///
    /// # Errors
    /// [`PatternError::Regex`] if the regex does not compile.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Ok(match text {
            "*" => Self::Present,
            "!present" => Self::Absent,
            _ => match text.strip_prefix('~') {
                Some(regex) => Self::Regex(
                    regex::bytes::RegexBuilder::new(regex)
                        .size_limit(REGEX_SIZE_LIMIT)
                        .build()
                        .map_err(|error| regex_error(&error))?,
                ),
                None => Self::Exact(text.into()),
            },
        })
    }

    /// Returns the value, if the pattern is an exact one.
    pub fn exact(&self) -> Option<&str> {
        if let Self::Exact(value) = self { Some(value) } else { None }
    }

    /// Whether any of an attribute's values matches.
    pub fn matches_any<'v>(&self, mut values: impl Iterator<Item = &'v [u8]>) -> bool {
        match self {
            Self::Present => values.next().is_some(),
            Self::Absent => values.next().is_none(),
            Self::Exact(exact) => values.any(|value| value == exact.as_bytes()),
            Self::Regex(regex) => values.any(|value| regex.is_match(value)),
            Self::Number(number) => values.any(|value| value == number.to_be_bytes()),
            Self::InList(list) => values.any(|value| list.contains(value)),
        }
    }
}

fn regex_of(text: &str) -> Result<Regex, PatternError> {
    RegexBuilder::new(text).size_limit(REGEX_SIZE_LIMIT).build().map_err(|error| regex_error(&error))
}

/// Keeps the last line of the regex library's report, which has the message; the others draw the position.
fn regex_error(error: &regex::Error) -> PatternError {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    PatternError::Regex(last.trim_start_matches("error: ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        PathPattern::parse(pattern).unwrap().matches(path)
    }

    #[test]
    fn exact_path_pattern_matches_only_its_path() {
        assert!(matches("/login", "/login"));
        assert!(!matches("/login", "/login/") && !matches("/login", "/Login") && !matches("/login", "/"));
        assert!(matches("/a%20b", "/a b") && matches("/x//y", "/x/y"));
    }

    #[test]
    fn prefix_path_pattern_matches_everything_below_it() {
        assert!(matches("/p/*", "/p/") && matches("/p/*", "/p/a/b"));
        assert!(!matches("/p/*", "/p") && !matches("/p/*", "/pq"));
        assert!(matches("/*", "/") && matches("/*", "/anything"));
    }

    #[test]
    fn path_template_parameter_matches_one_segment() {
        assert!(matches("/users/{id}", "/users/42"));
        assert!(!matches("/users/{id}", "/users/") && !matches("/users/{id}", "/users/42/orders"));
        assert!(matches("/users/{id}/orders/{order}", "/users/42/orders/7"));
        assert!(matches("/users/{id}/*", "/users/42/orders") && matches("/users/{id}/*", "/users/42/"));
        assert!(!matches("/users/{id}/*", "/users/42"));
    }

    #[test]
    fn pattern_with_toggled_trailing_slash_keeps_its_route() {
        let other = |pattern: &str| PathPattern::parse(pattern).unwrap().with_other_end();
        for (pattern, path) in [
            ("/login", "/login/"),
            ("/login/", "/login"),
            ("/users/{id}", "/users/42/"),
            ("/users/{id}/", "/users/42"),
            ("/users/{id}/edit", "/users/42/edit/"),
        ] {
            let other = other(pattern).unwrap();
            assert!(other.matches(path) && !matches(pattern, path), "{pattern} {path}");
            assert_eq!(other.as_str(), pattern);
        }
        for pattern in ["/", "/p/*", "/users/{id}/*", "~^/login$"] {
            assert!(other(pattern).is_none(), "{pattern}");
        }
        assert!(!other("/login").unwrap().matches("/login") && !other("/{id}").unwrap().matches("//"));
    }

    #[test]
    fn path_regex_is_unanchored() {
        assert!(matches("~\\.php$", "/x/index.php") && !matches("~^/api", "/x/api"));
    }

    #[test]
    fn path_pattern_errors_name_the_mistake() {
        let error = |text: &str| PathPattern::parse(text).unwrap_err();
        assert_eq!(error("login"), PatternError::NoSlash);
        assert_eq!(error("/a*"), PatternError::Star);
        assert_eq!(error("/*/b"), PatternError::Star);
        assert_eq!(error("/a/{id"), PatternError::Braces);
        assert_eq!(error("/a/x{id}"), PatternError::Braces);
        assert_eq!(error("/a/{}"), PatternError::Braces);
        assert_eq!(error("/%zz"), PatternError::Encoding);
        assert_eq!(error("~(a"), PatternError::Regex("unclosed group".to_owned()));
        assert!(matches!(error("~\\w{5000}{5000}"), PatternError::Regex(_)));
    }

    #[test]
    fn host_pattern_ignores_case_and_port() {
        let host = |pattern: &str, host: &str| HostPattern::parse(pattern).unwrap().matches(host);
        assert!(host("API.example.com:8080", "api.example.com"));
        assert!(host("*.example.com", "a.b.example.com") && !host("*.example.com", "example.com"));
        assert!(host("~^v[0-9]+\\.", "v2.example.com"));
        assert!(HostPattern::parse("").is_err() && HostPattern::parse("a.*.com").is_err());
    }

    #[test]
    fn header_pattern_matches_any_value_of_a_repeated_header() {
        let mut headers = http::HeaderMap::new();
        headers.append("x-a", "one".parse().unwrap());
        headers.append("x-a", "two".parse().unwrap());
        let matches = |pattern: &str, name: &str| {
            HeaderPattern::parse(pattern)
                .unwrap()
                .matches_any(headers.get_all(name).iter().map(|value| value.as_bytes()))
        };
        assert!(matches("two", "x-a") && !matches("three", "x-a") && matches("~^o", "x-a"));
        assert!(matches("*", "x-a") && !matches("*", "x-b"));
        assert!(matches("!present", "x-b") && !matches("!present", "x-a"));
    }
}
