//! Property test: different keys never share a counter, whatever clients send in the parts.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::COOKIE;
use proptest::prelude::*;

use super::*;
use crate::identify::jwt::claim::ClaimName;
use crate::identify::jwt::source::TokenSource;
use crate::identify::jwt::{self, TokenTrust, Verifier};

/// Key parts that a client can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientPart {
    HeaderA,
    HeaderB,
    QueryA,
    QueryB,
    Cookie,
    Claim,
    Path,
}

impl ClientPart {
    const ALL: [Self; 7] =
        [Self::HeaderA, Self::HeaderB, Self::QueryA, Self::QueryB, Self::Cookie, Self::Claim, Self::Path];

    fn attribute(self) -> Attribute {
        match self {
            Self::HeaderA => header("x-a"),
            Self::HeaderB => header("x-b"),
            Self::QueryA => query("a"),
            Self::QueryB => query("b"),
            Self::Cookie => a_cookie("id"),
            Self::Claim => Attribute::Jwt(ClaimName::new("sub").unwrap()),
            Self::Path => Attribute::Path,
        }
    }
}

/// Values of each part in the order of [`ClientPart::ALL`]. Claims and paths have one value each; none is absent.
type PartValues = [Vec<String>; 7];

/// Generates texts that are prefixes of each other, or resemble the lengths and counts of an encoding.
fn texts() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        Just("a".to_owned()),
        Just("_".to_owned()),
        Just("a_b".to_owned()),
        Just("\0\0\0\x01".to_owned()),
        Just("\0\0\0\x01a".to_owned()),
        Just("\0\0\0\0\0\0\0\x02".to_owned()),
        "[ab_]{0,4}",
        "[\0\x01\x02ab]{0,10}",
    ]
}

fn values() -> impl Strategy<Value = PartValues> {
    // Headers cannot contain control characters; cookies no semicolons or surrounding spaces.
    let line = || texts().prop_map(|text| text.replace(['\0', '\x01', '\x02'], "c"));
    let lines = || prop::collection::vec(line(), 0..4);
    let several = || prop::collection::vec(texts(), 0..3);
    let claim = prop::collection::vec(texts(), 0..2);
    let cookie = prop::collection::vec(line(), 0..3);
    let path =
        prop::sample::select(vec![vec!["/".to_owned()], vec!["/a".to_owned()], vec!["/a_b".to_owned()]]);
    (lines(), lines(), several(), several(), cookie, claim, path)
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g])
}

/// Generates the values of two clients that usually differ in few parts.
fn pairs() -> impl Strategy<Value = (PartValues, PartValues)> {
    let changed = (values(), values(), prop::collection::vec(0..7_usize, 0..3));
    changed.prop_map(|(one, other, which)| {
        let mut next = one.clone();
        for index in which {
            next[index].clone_from(&other[index]);
        }
        (one, next)
    })
}

fn templates() -> impl Strategy<Value = Vec<ClientPart>> {
    prop::sample::subsequence(ClientPart::ALL.to_vec(), 1..=4).prop_shuffle()
}

fn request(values: &PartValues) -> KeyRequest {
    let [a, b, query_a, query_b, cookie, claim, path] = values;
    let mut uri = format!("{}?", path[0]);
    for (name, value) in
        query_a.iter().map(|value| ("a", value)).chain(query_b.iter().map(|value| ("b", value)))
    {
        uri.push_str(name);
        uri.push('=');
        for byte in value.bytes() {
            write!(uri, "%{byte:02x}").unwrap();
        }
        uri.push('&');
    }
    let mut request = get(&uri);
    for line in a {
        request = request.with_header("x-a", line.as_bytes());
    }
    for line in b {
        request = request.with_header("x-b", line.as_bytes());
    }
    for value in cookie {
        request = request.with_header(COOKIE.as_str(), format!("id={value}").as_bytes());
    }
    if let [sub] = &claim[..] {
        let payload = URL_SAFE_NO_PAD.encode(serde_json::json!({ "sub": sub }).to_string());
        request = request.with_header("x-jwt-payload", payload.as_bytes());
    }
    let settings = jwt::JwtSettings {
        source: TokenSource::Header(HeaderName::from_static("x-jwt-payload")),
        trust: TokenTrust::PreVerified,
        issuers: Box::default(),
        audiences: Box::default(),
        leeway: Duration::ZERO,
    };
    let verifier = Verifier::new(settings, ClaimName::new("sub"), [1, 2]);
    request.settings.jwt = Some(Arc::new(verifier));
    request
}

/// Returns the values that the request has for these parts; `None` if a part is absent or ambiguous.
fn expected_parts(template: &[ClientPart], values: &PartValues) -> Option<Vec<String>> {
    let shown = template.iter().map(|part| {
        let (first, others) = values[*part as usize].split_first()?;
        others.iter().all(|other| other == first).then(|| first.clone())
    });
    shown.collect()
}

proptest! {
    #[test]
    fn keys_are_equal_only_if_all_parts_are_equal(template in templates(), (one, other) in pairs()) {
        let parts: Vec<Attribute> = template.iter().map(|chosen| chosen.attribute()).collect();
        let (one_key, other_key) = (request(&one).key_by(&parts), request(&other).key_by(&parts));
        let (one, other) = (expected_parts(&template, &one), expected_parts(&template, &other));
        prop_assert_eq!(one_key.is_ok(), one.is_some());
        prop_assert_eq!(other_key.is_ok(), other.is_some());
        if one.is_some() || other.is_some() {
            prop_assert_eq!(one_key == other_key, one == other, "{:?} {:?}", one, other);
        }
        for key in [one_key, other_key].into_iter().flatten() {
            prop_assert_ne!(key, incomplete_key(HASHER));
        }
    }

    #[test]
    fn split_of_values_between_two_parts_changes_the_key(text in "[ab_\\x00]{1,12}", cuts in (0..13_usize, 0..13_usize)) {
        let cut = |at: usize| {
            let (a, b) = text.split_at(at.min(text.len()));
            let mut values: PartValues = std::array::from_fn(|_| Vec::new());
            values[ClientPart::QueryA as usize] = vec![a.to_owned()];
            values[ClientPart::QueryB as usize] = vec![b.to_owned()];
            values[ClientPart::Path as usize] = vec!["/".to_owned()];
            request(&values).key_by(&[query("a"), query("b")]).unwrap()
        };
        let (one, other) = (cuts.0.min(text.len()), cuts.1.min(text.len()));
        prop_assert_eq!(cut(one) == cut(other), one == other);
    }
}
