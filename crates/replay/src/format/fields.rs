//! Names of the fields of JSON logs: those of Weir, Envoy, nginx, Caddy and Traefik, of Google Cloud, Azure and the Elastic
//! Common Schema, and those that the command line adds.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use http::HeaderName;

use crate::collected::{CollectedNames, FieldPlace};
use weir_policy::identify::forwarded::X_FORWARDED_FOR;

/// What a field of a JSON log means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogField {
    /// Arrival of the request.
    StartTime,
    /// Time at which the line was written, which is the end of the request.
    Time,
    Duration(LogDurationUnit),
    ClientIp,
    PeerIp,
    Method,
    /// Target, including the query.
    Target,
    /// Method, target and protocol.
    RequestLine,
    Host,
    Status,
    ResponseFlags,
    BytesReceived,
    BytesSent,
    Cost,
    ForwardedFor,
    UserAgent,
    Referer,
    RequestId,
    /// A header that rules need, by its number.
    Header(u32),
    /// A field of a body, by its number.
    OfBody(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDurationUnit {
    Seconds,
    Milliseconds,
    Nanoseconds,
    /// Whole numbers are milliseconds, as in Envoy; numbers with a fraction are seconds, as in Caddy.
    ByForm,
}

use LogField::{
    BytesReceived, BytesSent, ClientIp, Cost, Duration, ForwardedFor, Host, Method, PeerIp, Referer,
    RequestId, RequestLine, ResponseFlags, StartTime, Status, Target, Time, UserAgent,
};

/// Known names. A dot leads into a nested object.
const NAMES: [(&str, LogField); 109] = [
    ("start_time", StartTime),
    ("StartUTC", StartTime),
    ("StartLocal", StartTime),
    ("time", Time),
    ("@timestamp", Time),
    ("timestamp", Time),
    ("ts", Time),
    ("time_iso8601", Time),
    ("time_local", Time),
    ("msec", Time),
    ("date", Time),
    ("datetime", Time),
    ("duration", Duration(LogDurationUnit::ByForm)),
    ("duration_ms", Duration(LogDurationUnit::Milliseconds)),
    ("request_time", Duration(LogDurationUnit::Seconds)),
    ("Duration", Duration(LogDurationUnit::Nanoseconds)),
    ("event.duration", Duration(LogDurationUnit::Nanoseconds)),
    ("client_ip", ClientIp),
    ("downstream_remote_address", ClientIp),
    ("ClientHost", ClientIp),
    ("request.client_ip", ClientIp),
    ("client.ip", ClientIp),
    ("source.ip", ClientIp),
    ("remote_addr", PeerIp),
    ("remote_ip", PeerIp),
    ("remote_address", PeerIp),
    ("downstream_direct_remote_address", PeerIp),
    ("request.remote_ip", PeerIp),
    ("x_forwarded_for", ForwardedFor),
    ("http_x_forwarded_for", ForwardedFor),
    ("method", Method),
    ("request_method", Method),
    ("RequestMethod", Method),
    ("http_method", Method),
    ("verb", Method),
    ("request.method", Method),
    ("http.request.method", Method),
    ("path", Target),
    ("request_uri", Target),
    ("uri", Target),
    ("url", Target),
    ("RequestPath", Target),
    ("request.uri", Target),
    ("url.original", Target),
    ("url.path", Target),
    ("request", RequestLine),
    ("host", Host),
    ("authority", Host),
    (":authority", Host),
    ("http_host", Host),
    ("RequestHost", Host),
    ("request.host", Host),
    ("url.domain", Host),
    ("status", Status),
    ("response_code", Status),
    ("status_code", Status),
    ("DownstreamStatus", Status),
    ("http.response.status_code", Status),
    ("response_flags", ResponseFlags),
    ("bytes_received", BytesReceived),
    ("http.request.body.bytes", BytesReceived),
    ("bytes_sent", BytesSent),
    ("body_bytes_sent", BytesSent),
    ("size", BytesSent),
    ("cost", Cost),
    ("total_tokens", Cost),
    ("usage.total_tokens", Cost),
    ("gen_ai.usage.total_tokens", Cost),
    ("DownstreamContentSize", BytesSent),
    ("user_agent", UserAgent),
    ("http_user_agent", UserAgent),
    ("referer", Referer),
    ("http_referer", Referer),
    ("request_id", RequestId),
    ("x-envoy-origin-path", Target),
    (":path", Target),
    (":method", Method),
    ("user-agent", UserAgent),
    ("x-request-id", RequestId),
    ("httpRequest.requestMethod", Method),
    ("httpRequest.requestUrl", Target),
    ("httpRequest.status", Status),
    ("httpRequest.remoteIp", ClientIp),
    ("httpRequest.userAgent", UserAgent),
    ("httpRequest.referer", Referer),
    ("httpRequest.requestSize", BytesReceived),
    ("httpRequest.responseSize", BytesSent),
    ("properties.clientIP", ClientIp),
    ("properties.clientIp", ClientIp),
    ("properties.httpMethod", Method),
    ("properties.requestUri", Target),
    ("properties.httpStatus", Status),
    ("properties.httpStatusCode", Status),
    ("properties.host", Host),
    ("properties.hostName", Host),
    ("properties.userAgent", UserAgent),
    ("properties.sentBytes", BytesSent),
    ("properties.timeTaken", Duration(LogDurationUnit::Seconds)),
    ("httpMethod", Method),
    ("requestTime", Time),
    ("resourcePath", Target),
    ("sourceIp", ClientIp),
    ("ip", ClientIp),
    ("request_User-Agent", UserAgent),
    ("request_Referer", Referer),
    ("request_X-Forwarded-For", ForwardedFor),
    ("request.headers.User-Agent", UserAgent),
    ("request.headers.Referer", Referer),
    ("request.headers.X-Forwarded-For", ForwardedFor),
];

/// Names that `--field` may give another field's meaning.
const MAPPABLE: [&str; 15] = [
    "time",
    "start_time",
    "duration",
    "client_ip",
    "remote_addr",
    "x_forwarded_for",
    "method",
    "path",
    "host",
    "status",
    "response_flags",
    "bytes_received",
    "bytes_sent",
    "cost",
    "user_agent",
];

/// Names of the fields of JSON logs, with their meanings.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames {
    fields: HashMap<Box<[u8]>, LogField, FixedState>,
    /// Names of nested objects that contain fields.
    objects: HashSet<Box<[u8]>, FixedState>,
    /// Number of headers that rules need.
    headers: u32,
}

impl FieldNames {
    /// Returns the known names, with those of the headers that rules need, and `mappings` such as
    /// `client_ip=remote_addr`, `header:x-api-key=key` or `json:model=model`.
    ///
    /// # Errors
    /// The first mapping that is not valid.
    pub(crate) fn new(collected: &CollectedNames, mappings: &[String]) -> Result<Self, String> {
        let headers = collected.headers.len() as u32;
        let mut names = Self { fields: HashMap::default(), objects: HashSet::default(), headers };
        for (header, index) in collected.headers.iter().zip(0..) {
            let underscored = header.as_str().replace('-', "_");
            names.insert(header.as_str(), LogField::Header(index));
            names.insert(&format!("http_{underscored}"), LogField::Header(index));
            names.insert(&underscored, LogField::Header(index));
            let capitalised = capitalised(header);
            names.insert(&format!("request_{capitalised}"), LogField::Header(index));
            names.insert(&format!("request.headers.{capitalised}"), LogField::Header(index));
        }
        NAMES.into_iter().for_each(|(name, field)| names.insert(name, field));
        names.insert(X_FORWARDED_FOR.as_str(), ForwardedFor);
        let mut named: HashMap<&str, &str> = HashMap::new();
        for mapping in mappings {
            let problem = |problem: String| format!("--field {mapping}: {problem}");
            let (meaning, key) = mapping
                .split_once('=')
                .filter(|(_, key)| !key.is_empty())
                .ok_or_else(|| problem("expected NAME=KEY, such as client_ip=remote_addr".to_owned()))?;
            let Some(field) = meaning_of(meaning, collected).map_err(problem)? else { continue };
            // Otherwise, the last one would count and the others would be absent without a word.
            if let Some(other) = named.insert(key, meaning).filter(|other| *other != meaning) {
                return Err(problem(format!("the key {key:?} is already that of {other}")));
            }
            names.insert(key, field);
        }
        Ok(names)
    }

    /// Returns the meaning of a field; nested names are joined by dots.
    pub(super) fn field(&self, name: &[u8]) -> Option<LogField> {
        self.fields.get(name).copied()
    }

    /// Whether an object of this name contains fields.
    pub(super) fn has_object(&self, name: &[u8]) -> bool {
        self.objects.contains(name)
    }

    /// Whether the value with this number is a header.
    pub(super) const fn is_header(&self, number: u32) -> bool {
        number < self.headers
    }

    fn insert(&mut self, name: &str, field: LogField) {
        self.fields.insert(name.as_bytes().into(), field);
        for (at, _) in name.match_indices('.') {
            self.objects.insert(name.as_bytes()[..at].into());
        }
    }
}

/// Returns the name of a header as Traefik and Caddy write it, such as `X-Api-Key`.
fn capitalised(header: &HeaderName) -> String {
    let mut is_first = true;
    let letters = header.as_str().chars().map(|letter| {
        let is_start = std::mem::replace(&mut is_first, letter == '-');
        if is_start { letter.to_ascii_uppercase() } else { letter }
    });
    letters.collect()
}

/// Returns the field that a mapping names; `None` for a header that no rule needs.
///
/// # Errors
/// Why there is no such field.
fn meaning_of(name: &str, collected: &CollectedNames) -> Result<Option<LogField>, String> {
    if let Some(header) = name.strip_prefix("header:")
        && let Ok(header) = header.parse::<HeaderName>()
    {
        let index = collected.headers.iter().position(|needed| *needed == header);
        return Ok(index.map(|index| LogField::Header(index as u32)));
    }
    if let Some(place) = FieldPlace::parse(name) {
        return collected.number_of(&place?).map(|number| Some(LogField::OfBody(number)));
    }
    let known = MAPPABLE.contains(&name).then(|| NAMES.iter().find(|(known, _)| *known == name)).flatten();
    known.map(|(_, field)| Some(*field)).ok_or_else(|| {
        format!(
            "unknown name {name:?}, expected header:NAME, json:PATH, form:NAME, response_json:PATH or one of {}",
            MAPPABLE.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collected() -> CollectedNames {
        let fields = ["json:model", "form:user", "response_json:usage.total_tokens"];
        let fields = fields.map(|field| FieldPlace::parse(field).unwrap().unwrap());
        CollectedNames { headers: vec![HeaderName::from_static("x-api-key")], fields: fields.into() }
    }

    fn mapped(mapping: &str) -> Result<FieldNames, String> {
        FieldNames::new(&collected(), &[mapping.to_owned()])
    }

    #[test]
    fn fields_can_be_mapped_on_the_command_line() {
        let names = mapped("client_ip=who.address").unwrap();
        assert_eq!(names.field(b"who.address"), Some(ClientIp));
        assert!(names.has_object(b"who") && !names.has_object(b"who.address"));
        assert_eq!(mapped("header:X-Api-Key=key").unwrap().field(b"key"), Some(LogField::Header(0)));
        assert_eq!(mapped("header:x-other=key").unwrap().field(b"key"), None);
        assert_eq!(mapped("form:user=who.name").unwrap().field(b"who.name"), Some(LogField::OfBody(2)));
    }

    #[test]
    fn headers_that_rules_need_have_the_names_of_nginx_and_their_own() {
        let names = FieldNames::new(&collected(), &[]).unwrap();
        for name in ["x-api-key", "x_api_key", "http_x_api_key"] {
            assert_eq!(names.field(name.as_bytes()), Some(LogField::Header(0)), "{name}");
        }
    }

    #[test]
    fn unknown_mappings_are_rejected() {
        for (mapping, problem) in [
            ("client_ip", "expected NAME=KEY"),
            ("client=x", "unknown name \"client\""),
            ("client_ip=", "expected NAME=KEY"),
            ("header:a b=x", "unknown name"),
            (
                "json:modle=x",
                "no rule reads json:modle, but json:model, form:user and response_json:usage.total_tokens",
            ),
            ("json:a..b=x", "not a path: a path has no empty keys"),
            ("json:a[1024]=x", "the index 1024 is above 1023"),
            ("form:=x", "expected the name of a field"),
        ] {
            assert!(mapped(mapping).unwrap_err().contains(problem), "{mapping}");
        }
        let twice = ["json:model=user", "form:user=user"].map(str::to_owned);
        let problem = FieldNames::new(&collected(), &twice).unwrap_err();
        assert_eq!(problem, "--field form:user=user: the key \"user\" is already that of json:model");
        assert!(MAPPABLE.iter().all(|name| NAMES.iter().any(|(known, _)| known == name)));
    }
}
