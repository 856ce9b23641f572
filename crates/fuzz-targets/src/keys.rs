//! Fuzz target for keys of rules.

use std::net::{IpAddr, Ipv4Addr};

use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use weir_limiter::key::KeyHasher;
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::{self, Attributes, identify};
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::pattern::Route;

const FIRST: HeaderName = HeaderName::from_static("x-first");
const SECOND: HeaderName = HeaderName::from_static("x-second");

/// Two requests have the same counter exactly if all parts of the key are equal.
pub fn keys(data: &[u8]) {
    let middle = data.iter().position(|byte| *byte == 0).unwrap_or(data.len() / 2);
    let (one, other) = data.split_at(middle);
    let Some((one, other)) = FuzzedRequest::from_lines(one)
        .zip(FuzzedRequest::from_lines(other.strip_prefix(b"\0").unwrap_or(other)))
    else {
        return;
    };
    let settings = identify::IdentifySettings::default();
    let hasher = KeyHasher::new([3, 4]);
    let parts = [
        Attribute::Header(FIRST),
        Attribute::Header(SECOND),
        Attribute::Cookie("c".into()),
        Attribute::Query("q".into()),
        Attribute::Path,
    ];
    let template = KeyTemplate(parts.into());
    let Some((one, other)) = one.attributes(&settings).zip(other.attributes(&settings)) else { return };
    let counter = |request: &Attributes<'_>| template.hash(request, Route(""), hasher);
    let (by_one, by_other) = (key_parts(&template.0, &one), key_parts(&template.0, &other));
    assert_eq!(counter(&one).is_ok(), by_one.is_some());
    if let (Some(by_one), Some(by_other)) = (by_one, by_other) {
        let same = counter(&one) == counter(&other);
        assert_eq!(same, by_one == by_other, "{by_one:?} and {by_other:?}");
    }
}

/// A request parsed from lines: its target, two headers, and cookies.
struct FuzzedRequest {
    uri: Uri,
    headers: HeaderMap,
}

impl FuzzedRequest {
    fn from_lines(data: &[u8]) -> Option<Self> {
        let mut lines = data.split(|byte| *byte == b'\n');
        let uri = Uri::try_from(lines.next()?).ok().filter(|uri| uri.path().starts_with('/'))?;
        let mut headers = HeaderMap::new();
        for (name, line) in [FIRST, SECOND, COOKIE, FIRST, SECOND, COOKIE].into_iter().zip(lines) {
            headers.append(name, HeaderValue::from_bytes(line).ok()?);
        }
        Some(Self { uri, headers })
    }

    fn attributes<'a>(&'a self, settings: &'a identify::IdentifySettings) -> Option<Attributes<'a>> {
        let peer = IpAddr::V4(Ipv4Addr::LOCALHOST);
        identify(&Method::GET, &self.uri, &self.headers, peer, settings, Timestamp::from_nanos(1)).ok()
    }
}

fn key_parts(parts: &[Attribute], request: &Attributes<'_>) -> Option<Vec<Vec<u8>>> {
    parts.iter().map(|part| part.read(request, Route(""), <[u8]>::to_vec).ok()).collect()
}
