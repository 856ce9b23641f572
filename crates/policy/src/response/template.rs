//! Placeholders in the configured bodies and headers of local replies.
//!
//! `{name}` stands for a value of the request, and `{{name}}` for the text `{name}`. All other braces are text, because
//! JSON and programs have braces of their own. Values come from the client, so each is escaped for the place where it
//! stands, and is cut after [`MAX_VALUE_LENGTH`].

use std::borrow::Cow;
use std::fmt;

use super::request_details::RequestDetails;

/// Maximum length of one value, in bytes.
const MAX_VALUE_LENGTH: usize = 1024;

/// A value that a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// Name of the rule.
    Rule,
    /// Seconds of `retry-after`; 0 without that header.
    RetryAfter,
    /// ID of the request, as the upstream and the access log have it.
    RequestId,
    /// Address of the client.
    ClientIp,
    Method,
    /// Path as received, without the query.
    Path,
    /// Origin of the page that sends the request, if `cors` allows it; otherwise empty.
    Origin,
}

impl Placeholder {
    /// All placeholders, in the order in which messages list them.
    pub const ALL: [Self; 7] = [
        Self::Rule,
        Self::RetryAfter,
        Self::RequestId,
        Self::ClientIp,
        Self::Method,
        Self::Path,
        Self::Origin,
    ];

    /// Returns the name between the braces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::RetryAfter => "retry_after",
            Self::RequestId => "request_id",
            Self::ClientIp => "client_ip",
            Self::Method => "method",
            Self::Path => "path",
            Self::Origin => "origin",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// How values are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escaping {
    /// For plain text: line breaks and other control characters become spaces.
    Text,
    /// For a JSON string.
    Json,
    /// For HTML and XML, also in quoted attributes.
    Markup,
    /// For a header: everything other than visible ASCII is percent-encoded.
    Header,
}

/// Which braces are placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Every `{name}`; an unknown name is an error.
    Strict,
    /// Known names only, in files, which have braces of their own. `{{name}}` is text.
    Lenient,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError {
    /// A placeholder that does not exist; the text between the braces.
    Unknown(String),
    /// A placeholder with spaces between its name and the braces.
    Spaces(Placeholder),
    /// Syntax of a template engine, which has not rendered the text.
    Unrendered(String),
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown placeholder `{{{name}}}`"),
            Self::Spaces(known) => write!(f, "spaces in the placeholder `{{{}}}`", known.name()),
            Self::Unrendered(text) => write!(f, "unrendered template `{text}`"),
        }
    }
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Box<[Part]>,
    escaping: Escaping,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<[u8]>),
    Value(Placeholder),
}

impl Template {
    /// Parses `text`, in which `{rule}` stands for `rule`, if there is one.
    ///
    /// # Errors
    /// The first placeholder that is invalid.
    pub fn parse(
        text: &str,
        syntax: Syntax,
        escaping: Escaping,
        rule: Option<&str>,
    ) -> Result<Self, TemplateError> {
        let (mut parts, mut plain, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some(at) = rest.find('{') {
            plain.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at..];
            // `${` is written as `$${`, and stands for itself.
            let found = if plain.ends_with(b"$") { Brace::Text(1) } else { brace(rest, syntax)? };
            match found {
                Brace::Text(length) => plain.extend_from_slice(&rest.as_bytes()[..length]),
                Brace::Escaped(length) => plain.extend_from_slice(&rest.as_bytes()[1..length - 1]),
                Brace::Value(value) => match rule.filter(|_| value == Placeholder::Rule) {
                    Some(rule) => escaping.push(&mut plain, rule),
                    None => {
                        push_text(&mut parts, &mut plain);
                        parts.push(Part::Value(value));
                    }
                },
            }
            rest = &rest[found.length()..];
        }
        plain.extend_from_slice(rest.as_bytes());
        push_text(&mut parts, &mut plain);
        Ok(Self { parts: parts.into(), escaping })
    }

    /// Returns the text if it has no placeholders.
    pub fn fixed_text(&self) -> Option<&[u8]> {
        match &*self.parts {
            [] => Some(b""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether the value occurs.
    pub fn uses(&self, value: Placeholder) -> bool {
        self.parts.contains(&Part::Value(value))
    }

    /// Returns the text for a request. `origin` is empty unless it is allowed.
    pub fn expand(&self, request: &RequestDetails, retry_after: &str, origin: &str) -> Vec<u8> {
        let mut text = Vec::with_capacity(256);
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.extend_from_slice(plain),
                Part::Value(value) => {
                    self.escaping.push(&mut text, &value_of(*value, request, retry_after, origin));
                }
            }
        }
        text
    }
}

fn value_of<'a>(
    value: Placeholder,
    request: &'a RequestDetails,
    retry_after: &'a str,
    origin: &'a str,
) -> Cow<'a, str> {
    match value {
        // Part of the text already, if there is a rule.
        Placeholder::Rule => Cow::Borrowed(""),
        Placeholder::RetryAfter => retry_after.into(),
        Placeholder::RequestId => (&*request.request_id).into(),
        Placeholder::ClientIp => request.client_ip.to_string().into(),
        Placeholder::Method => request.method.as_str().into(),
        Placeholder::Path => (&*request.path).into(),
        Placeholder::Origin => origin.into(),
    }
}

fn push_text(parts: &mut Vec<Part>, plain: &mut Vec<u8>) {
    if !plain.is_empty() {
        parts.push(Part::Text(std::mem::take(plain).into()));
    }
}

/// What begins at a `{`.
#[derive(Clone, Copy, Debug)]
enum Brace {
    /// Text of this length.
    Text(usize),
    /// `{{name}}` of this length, which stands for `{name}`.
    Escaped(usize),
    Value(Placeholder),
}

impl Brace {
    const fn length(self) -> usize {
        match self {
            Self::Text(length) | Self::Escaped(length) => length,
            Self::Value(value) => value.name().len() + 2,
        }
    }
}

/// Reads what begins at the `{` at the beginning of `text`.
fn brace(text: &str, syntax: Syntax) -> Result<Brace, TemplateError> {
    let inner = &text[1..];
    if let Some(doubled) = inner.strip_prefix('{') {
        return double_brace(text, doubled, syntax);
    }
    let Some((name, _)) = inner.split_once('}') else { return Ok(Brace::Text(1)) };
    match (Placeholder::from_name(name), syntax) {
        (Some(known), _) => Ok(Brace::Value(known)),
        (None, Syntax::Lenient) => Ok(Brace::Text(1)),
        (None, Syntax::Strict) => match Placeholder::from_name(name.trim()) {
            Some(known) => Err(TemplateError::Spaces(known)),
            None if is_name(name) => Err(TemplateError::Unknown(name.to_owned())),
            None => Ok(Brace::Text(1)),
        },
    }
}

/// Reads what begins at `{{`; `inner` is what follows it.
fn double_brace(text: &str, inner: &str, syntax: Syntax) -> Result<Brace, TemplateError> {
    let Some((name, _)) = inner.split_once("}}") else { return Ok(Brace::Text(1)) };
    let length = name.len() + 4;
    if syntax == Syntax::Strict
        && !is_name(name)
        && let Some(known) = Placeholder::from_name(name.trim())
    {
        return Err(TemplateError::Spaces(known));
    }
    match syntax {
        Syntax::Strict if is_name(name) => Ok(Brace::Escaped(length)),
        Syntax::Strict if name.starts_with([' ', '.', '-', '$', '%']) && !name.contains(['{', '"', '\n']) => {
            Err(TemplateError::Unrendered(text[..length].to_owned()))
        }
        Syntax::Lenient if is_name(name) => Ok(Brace::Text(length)),
        Syntax::Strict | Syntax::Lenient => Ok(Brace::Text(1)),
    }
}

/// Whether text between braces looks like the name of a placeholder.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Returns the names in `text` that are placeholders except for a misspelling that `nearest` recognises.
pub fn misspellings(
    text: &str,
    nearest: impl Fn(&str) -> Option<&'static str>,
) -> impl Iterator<Item = (&str, &'static str)> {
    text.match_indices('{').filter_map(move |(at, _)| {
        let (name, _) = text[at + 1..].split_once('}')?;
        let is_single = !text[..at].ends_with(['{', '$']);
        let is_unknown = is_single && is_name(name) && Placeholder::from_name(name).is_none();
        Some((name, nearest(name).filter(|_| is_unknown)?))
    })
}

impl Escaping {
    /// Appends `value`, escaped and cut.
    fn push(self, out: &mut Vec<u8>, value: &str) {
        let end = (0..=MAX_VALUE_LENGTH.min(value.len())).rfind(|end| value.is_char_boundary(*end));
        for letter in value[..end.unwrap_or_default()].chars() {
            match self {
                Self::Text if letter.is_control() => out.push(b' '),
                Self::Text => push_char(out, letter),
                Self::Json => push_json(out, letter),
                Self::Markup => push_markup(out, letter),
                Self::Header if letter.is_ascii_graphic() => push_char(out, letter),
                Self::Header => push_percent(out, letter),
            }
        }
    }
}

fn push_char(out: &mut Vec<u8>, letter: char) {
    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
}

fn push_json(out: &mut Vec<u8>, letter: char) {
    match letter {
        '"' | '\\' => out.extend_from_slice(&[b'\\', letter as u8]),
        // `<` ends a script in which the JSON may be embedded, and quotes end a string of the script.
        '<' | '>' | '&' | '\'' | '`' | '$' | '\u{0}'..='\u{1f}' | '\u{7f}' | '\u{2028}' | '\u{2029}' => {
            out.extend_from_slice(format!("\\u{:04x}", u32::from(letter)).as_bytes());
        }
        _ => push_char(out, letter),
    }
}

fn push_markup(out: &mut Vec<u8>, letter: char) {
    match letter {
        '&' => out.extend_from_slice(b"&amp;"),
        '<' => out.extend_from_slice(b"&lt;"),
        '>' => out.extend_from_slice(b"&gt;"),
        '"' => out.extend_from_slice(b"&quot;"),
        '\'' => out.extend_from_slice(b"&#39;"),
        _ if letter.is_control() => out.push(b' '),
        _ => push_char(out, letter),
    }
}

fn push_percent(out: &mut Vec<u8>, letter: char) {
    for byte in letter.encode_utf8(&mut [0; 4]).bytes() {
        out.extend_from_slice(format!("%{byte:02X}").as_bytes());
    }
}

#[cfg(test)]
mod tests;
