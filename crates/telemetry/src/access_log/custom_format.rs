//! Format strings of access log lines, with Envoy's command operators.
//!
//! A format is literal text with operators such as `%RESPONSE_CODE%` or `%REQ(USER-AGENT):64%` (Envoy, "Access logging",
//! "Command operators"). Operators with `WEIR` in their names are Weir's own. A format is parsed once; writing a line
//! looks nothing up.

use http::HeaderName;
use http::header::{HOST, USER_AGENT};

use super::line::{MAX_PATH_LENGTH, MAX_VALUE_LENGTH, protocol, push_escaped, push_number, response_code};
use super::time_format::{TimeFormat, known_specifiers, push_time};
use super::{AccessLogEntry, LoggedRule};
use weir_limiter::timestamp::saturating_millis;
use weir_policy::identify::forwarded::write_ip;

/// Maximum number of header names in a format that other formats do not contain.
const MAX_OTHER_HEADERS: usize = 32;

const MISSING: &[u8] = b"-";

/// A parsed format string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomFormat {
    pieces: Box<[FormatPiece]>,
    other_headers: Box<[HeaderName]>,
}

/// Why a text is not a format string.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A percent sign without a second one.
    #[error("an operator that begins with % does not end with %")]
    Unterminated,
    /// An operator that does not exist.
    #[error("unknown operator %{0}%, expected one of {known}", known = known_operators())]
    UnknownOperator(String),
    /// The argument of an operator, or its length.
    #[error("invalid argument of operator %{0}%")]
    InvalidArgument(String),
    /// A specifier of `%START_TIME(FORMAT)%`.
    #[error("unknown specifier {0} of START_TIME, expected one of {known}", known = known_specifiers())]
    UnknownTimeSpecifier(String),
    #[error("more than {max} headers", max = MAX_OTHER_HEADERS)]
    TooManyHeaders,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatPiece {
    Literal(Box<[u8]>),
    Value { value: FormatValue, max_length: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormatValue {
    /// The first of these headers that the request has.
    Header(Box<[HeaderSource]>),
    /// Arrival time of the request.
    Time(TimeFormat),
    /// The path without the query.
    PlainPath,
    Field(Field),
}

/// Operators without an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    StartTime,
    Protocol,
    ResponseCode,
    ResponseFlags,
    BytesReceived,
    BytesSent,
    Duration,
    UpstreamTime,
    UpstreamHost,
    Attempts,
    ClientIp,
    Rule,
    Outcome,
    Key,
    Limit,
    Remaining,
    DelayMillis,
    Cost,
    ShadowRules,
}

const FIELDS: [(&str, Field); 19] = [
    ("START_TIME", Field::StartTime),
    ("PROTOCOL", Field::Protocol),
    ("RESPONSE_CODE", Field::ResponseCode),
    ("RESPONSE_FLAGS", Field::ResponseFlags),
    ("BYTES_RECEIVED", Field::BytesReceived),
    ("BYTES_SENT", Field::BytesSent),
    ("DURATION", Field::Duration),
    ("RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)", Field::UpstreamTime),
    ("UPSTREAM_HOST", Field::UpstreamHost),
    ("UPSTREAM_REQUEST_ATTEMPT_COUNT", Field::Attempts),
    ("DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", Field::ClientIp),
    ("WEIR_RULE", Field::Rule),
    ("WEIR_OUTCOME", Field::Outcome),
    ("WEIR_KEY", Field::Key),
    ("WEIR_LIMIT", Field::Limit),
    ("WEIR_REMAINING", Field::Remaining),
    ("WEIR_DELAY_MS", Field::DelayMillis),
    ("WEIR_COST", Field::Cost),
    ("WEIR_SHADOW_RULES", Field::ShadowRules),
];

/// Where a header of the request is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderSource {
    Method,
    Path,
    Authority,
    UserAgent,
    RequestId,
    ForwardedFor,
    /// Position among the other headers.
    Other(usize),
}

fn known_operators() -> String {
    let fields = FIELDS.iter().map(|(name, _)| format!("%{name}%"));
    let with_arguments = ["%REQ(NAME)%", "%PATH(NQ)%", "%PATH(WQ)%", "%START_TIME(FORMAT)%"];
    with_arguments.map(str::to_owned).into_iter().chain(fields).collect::<Vec<_>>().join(", ")
}

impl CustomFormat {
    /// Parses a format string.
    ///
    /// # Errors
    /// [`FormatError`] if an operator is unknown or malformed.
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let (mut pieces, mut other_headers) = (Vec::new(), Vec::new());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            push_literal(&mut pieces, before);
            let end = end_of_operator(after).ok_or(FormatError::Unterminated)?;
            let (operator, next) = (&after[..end], &after[end + 1..]);
            match operator {
                "" => push_literal(&mut pieces, "%"),
                operator => pieces.push(parse_operator(operator, &mut other_headers)?),
            }
            rest = next;
        }
        push_literal(&mut pieces, rest);
        if !text.ends_with('\n') {
            push_literal(&mut pieces, "\n");
        }
        if other_headers.len() > MAX_OTHER_HEADERS {
            return Err(FormatError::TooManyHeaders);
        }
        Ok(Self { pieces: pieces.into(), other_headers: other_headers.into() })
    }

    /// Returns the request headers that are not part of an [`AccessLogEntry`] otherwise.
    pub fn other_headers(&self) -> &[HeaderName] {
        &self.other_headers
    }

    /// Returns whether it contains `%WEIR_KEY%`.
    pub(super) fn shows_keys(&self) -> bool {
        let is_key = |value: &FormatValue| *value == FormatValue::Field(Field::Key);
        self.pieces.iter().any(|piece| matches!(piece, FormatPiece::Value { value, .. } if is_key(value)))
    }

    /// Appends the line of a request.
    pub(super) fn write(&self, entry: &AccessLogEntry<'_>, line: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                FormatPiece::Literal(text) => line.extend_from_slice(text),
                FormatPiece::Value { value: FormatValue::Field(field), max_length } => {
                    write_field(*field, entry, *max_length, line);
                }
                FormatPiece::Value { value: FormatValue::Time(format), .. } => {
                    format.write(entry.start, line)
                }
                FormatPiece::Value { value: FormatValue::PlainPath, max_length } => {
                    let path = entry.path.split('?').next().unwrap_or_default();
                    push_escaped(line, path.as_bytes(), *max_length);
                }
                FormatPiece::Value { value: FormatValue::Header(sources), max_length } => {
                    let value = sources.iter().find_map(|source| source.read(entry));
                    push_escaped(line, value.unwrap_or(MISSING), *max_length);
                }
            }
        }
    }
}

fn push_literal(pieces: &mut Vec<FormatPiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(FormatPiece::Literal(before)) => *before = [before, text.as_bytes()].concat().into(),
        _ => pieces.push(FormatPiece::Literal(text.as_bytes().into())),
    }
}

/// Returns the position of the percent sign that ends an operator. Arguments may contain percent signs, but no closing
/// parenthesis, as in Envoy.
fn end_of_operator(text: &str) -> Option<usize> {
    let end = text.find('%')?;
    match text[..end].find('(').and_then(|open| Some(open + text[open..].find(')')?)) {
        Some(closed) => Some(closed + text[closed..].find('%')?),
        None => Some(end),
    }
}

/// Parses the text between two percent signs: `NAME`, `NAME(ARGUMENT)`, either followed by `:LENGTH`.
fn parse_operator(operator: &str, other_headers: &mut Vec<HeaderName>) -> Result<FormatPiece, FormatError> {
    let invalid = || FormatError::InvalidArgument(operator.to_owned());
    // A header name never contains a colon, except at its beginning.
    let (name, length) = match operator.rsplit_once(':') {
        Some((name, length)) if !length.contains(')') => {
            (name, Some(length.parse::<usize>().map_err(|_| invalid())?))
        }
        _ => (operator, None),
    };
    let upper = name.to_ascii_uppercase();
    let (word, arguments) = match upper.split_once('(') {
        Some((word, _)) => (word, Some(&name[word.len() + 1..])),
        None => (&*upper, None),
    };
    let arguments = arguments.map(|text| text.strip_suffix(')').ok_or_else(invalid));
    let value = match (word, arguments) {
        ("REQ", Some(names)) => {
            let names = names?.to_ascii_uppercase();
            let mut source = |name: &str| HeaderSource::parse(name, other_headers).ok_or_else(invalid);
            FormatValue::Header(names.split('?').map(&mut source).collect::<Result<_, _>>()?)
        }
        ("PATH", arguments) => parse_path(arguments.transpose()?.unwrap_or_default()).ok_or_else(invalid)?,
        ("START_TIME", Some(format)) if format != Ok("") => {
            FormatValue::Time(TimeFormat::parse(format?).map_err(FormatError::UnknownTimeSpecifier)?)
        }
        ("START_TIME", _) => FormatValue::Field(Field::StartTime),
        _ => {
            let field = FIELDS.iter().find(|(known, _)| *known == upper).map(|(_, field)| *field);
            FormatValue::Field(field.ok_or_else(|| FormatError::UnknownOperator(operator.to_owned()))?)
        }
    };
    let longest = match &value {
        FormatValue::PlainPath => MAX_PATH_LENGTH,
        FormatValue::Header(sources) if sources.contains(&HeaderSource::Path) => MAX_PATH_LENGTH,
        FormatValue::Header(_) | FormatValue::Time(_) | FormatValue::Field(_) => MAX_VALUE_LENGTH,
    };
    Ok(FormatPiece::Value { value, max_length: length.map_or(longest, |length| length.min(longest)) })
}

/// Parses the arguments of `PATH(X:Y)`. All sources Y are the request target as received.
fn parse_path(arguments: &str) -> Option<FormatValue> {
    let upper = arguments.to_ascii_uppercase();
    let (query, source) = upper.split_once(':').unwrap_or((&upper, ""));
    let path = || FormatValue::Header([HeaderSource::Path].into());
    match (query, source) {
        ("NQ", "" | "ORIG" | "PATH" | "ORIG_OR_PATH") => Some(FormatValue::PlainPath),
        ("" | "WQ", "" | "ORIG" | "PATH" | "ORIG_OR_PATH") => Some(path()),
        _ => None,
    }
}

impl HeaderSource {
    fn parse(name: &str, other_headers: &mut Vec<HeaderName>) -> Option<Self> {
        match name {
            ":METHOD" => return Some(Self::Method),
            ":PATH" | "X-ENVOY-ORIGINAL-PATH" => return Some(Self::Path),
            ":AUTHORITY" => return Some(Self::Authority),
            _ => {}
        }
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some(match name.as_str() {
            known if known == HOST.as_str() => Self::Authority,
            known if known == USER_AGENT.as_str() => Self::UserAgent,
            "x-request-id" => Self::RequestId,
            known if known == weir_policy::identify::forwarded::X_FORWARDED_FOR.as_str() => {
                Self::ForwardedFor
            }
            _ => {
                let known = other_headers.iter().position(|other| *other == name);
                Self::Other(known.unwrap_or_else(|| {
                    other_headers.push(name);
                    other_headers.len() - 1
                }))
            }
        })
    }

    fn read<'a>(self, entry: &AccessLogEntry<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Method => Some(entry.method.as_str().as_bytes()),
            Self::Path => Some(entry.path.as_bytes()),
            Self::Authority => entry.authority,
            Self::UserAgent => entry.user_agent,
            Self::RequestId => entry.request_id,
            Self::ForwardedFor => entry.x_forwarded_for,
            Self::Other(position) => Some(entry.other_headers.get(position)?.as_ref()?.as_bytes()),
        }
    }
}

fn write_field(field: Field, entry: &AccessLogEntry<'_>, max_length: usize, line: &mut Vec<u8>) {
    let rule: Option<&LoggedRule<'_>> = entry.decision.as_ref();
    let mut text = |text: Option<&str>| push_escaped(line, text.map_or(MISSING, str::as_bytes), max_length);
    let number = match field {
        Field::StartTime => return push_time(line, entry.start),
        Field::Protocol => return text(Some(protocol(entry.protocol))),
        Field::ResponseFlags => return text(Some(entry.response_flags).filter(|flags| !flags.is_empty())),
        Field::UpstreamHost => return text(entry.upstream_host),
        Field::Rule => return text(rule.map(|rule| rule.rule)),
        Field::Outcome => return text(rule.map(|rule| rule.outcome.as_str())),
        Field::Key => return text(rule.and_then(|rule| rule.key)),
        Field::ShadowRules => {
            let names = rule.map(|rule| rule.shadow_rules.join(","));
            return text(names.as_deref().filter(|names| !names.is_empty()));
        }
        Field::ClientIp => {
            return write_ip(line, entry.client_ip);
        }
        Field::ResponseCode => Some(response_code(entry.status).into()),
        Field::BytesReceived => Some(entry.bytes_received),
        Field::BytesSent => Some(entry.bytes_sent),
        Field::Duration => Some(saturating_millis(entry.duration)),
        Field::UpstreamTime => entry.upstream_time.map(saturating_millis),
        Field::Attempts => Some(entry.attempts.into()),
        Field::Limit => rule.and_then(|rule| rule.limit).map(u64::from),
        Field::Remaining => rule.and_then(|rule| rule.remaining).map(u64::from),
        Field::DelayMillis => rule.and_then(LoggedRule::delay_millis),
        Field::Cost => rule.and_then(|rule| rule.cost).map(u64::from),
    };
    match number {
        Some(number) => push_number(line, number),
        None => line.extend_from_slice(MISSING),
    }
}

#[cfg(test)]
mod tests;
