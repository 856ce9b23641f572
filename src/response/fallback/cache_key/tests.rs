use proptest::prelude::*;

use super::*;

const CORPUS: &str = include_str!("../../../../tests/data/cache-poisoning-headers.txt");
const CLIENT: &str = "192.0.2.1";

/// Returns a GET request with these headers, in which `X-Forwarded-For` is not trusted.
fn request(headers: &HeaderMap, peer_is_trusted: bool) -> CacheRequest<'_> {
    CacheRequest {
        upstream: "default",
        authority: b"test.local",
        target: "/",
        is_tls: false,
        headers,
        client: CLIENT.parse().unwrap(),
        peer_is_trusted,
        chain_is_trusted: false,
        certificate: None,
    }
}

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let field = |(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
    fields.iter().map(field).collect::<Vec<(HeaderName, HeaderValue)>>().into_iter().collect()
}

fn key(request: &CacheRequest<'_>) -> CacheKey {
    CacheKey::new(request, &CacheHeaderRules::default())
}

/// Returns whether the request `wanted` is served the response stored under `stored`.
fn gets(wanted: &CacheKey, stored: &CacheKey) -> bool {
    stored.to_store().is_some_and(|stored| wanted.to_look_up().any(|key| key == stored.bytes))
}

/// Headers that Weir removes or overwrites.
const REWRITTEN: [&str; 9] = [
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "x-envoy-attempt-count",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-weir-over-limit",
];

#[test]
fn a_request_without_a_poisonous_header_never_gets_what_one_with_it_was_answered() {
    let plain = HeaderMap::new();
    for line in CORPUS.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.split_once(": ").unwrap();
        let value = value.replace("{marker}", "mark.evil");
        let poisonous = headers(&[(&*name.to_ascii_lowercase(), &value)]);
        for trusted in [false, true] {
            let name = name.to_ascii_lowercase();
            let is_rewritten = REWRITTEN.contains(&&*name)
                || (!trusted && ["x-forwarded-proto", "x-request-id"].contains(&&*name));
            let stored = key(&request(&poisonous, trusted));
            assert_eq!(gets(&key(&request(&plain, trusted)), &stored), is_rewritten, "{line} {trusted}");
        }
    }
}

#[test]
fn a_client_that_says_who_it_is_gets_what_was_made_for_nobody_or_for_itself() {
    let (plain, ada, eve) =
        (headers(&[]), headers(&[("cookie", "me=ada")]), headers(&[("cookie", "me=eve")]));
    let [plain, ada, eve] = [&plain, &ada, &eve].map(|headers| key(&request(headers, false)));
    assert!(gets(&ada, &plain) && gets(&ada, &ada));
    assert!(!gets(&plain, &ada) && !gets(&eve, &ada));
    assert_eq!(ada.to_store().map(|key| key.is_personal), Some(true));
    assert_eq!(plain.to_store().map(|key| key.is_personal), Some(false));
}

#[test]
fn a_client_with_a_certificate_says_who_it_is() {
    let headers = HeaderMap::new();
    let with = |certificate| key(&CacheRequest { certificate, ..request(&headers, false) });
    let (plain, ada, eve) = (with(None), with(Some(b"ada")), with(Some(b"eve")));
    assert!(gets(&ada, &plain) && gets(&ada, &ada));
    assert!(!gets(&plain, &ada) && !gets(&eve, &ada));
}

#[test]
fn what_a_rule_counts_by_says_who_the_client_is() {
    let of = |name: &'static str| Arc::from([HeaderName::from_static(name)]);
    let special = CacheHeaderRules { personal: of("user-agent"), ignored: of("x-build") };
    let asked = headers(&[("user-agent", "ada"), ("x-build", "7")]);
    let stored = CacheKey::new(&request(&asked, false), &special);
    let same = headers(&[("user-agent", "ada"), ("x-build", "8")]);
    assert!(gets(&CacheKey::new(&request(&same, false), &special), &stored));
    assert_eq!(stored.to_store().map(|key| key.is_personal), Some(true));
}

#[test]
fn what_differs_by_anything_but_headers_is_stored_apart() {
    let headers = HeaderMap::new();
    let plain = request(&headers, false);
    for other in [
        CacheRequest { upstream: "other", ..plain },
        CacheRequest { authority: b"test.local:1337", ..plain },
        CacheRequest { target: "/?", ..plain },
        CacheRequest { is_tls: true, ..plain },
    ] {
        assert!(!gets(&key(&plain), &key(&other)), "{other:?}");
    }
}

#[test]
fn an_address_is_ignored_where_it_is_the_clients() {
    let plain = headers(&[]);
    for (value, is_ignored) in
        [(CLIENT, true), ("::ffff:192.0.2.1", true), ("127.0.0.1", false), ("x", false)]
    {
        let given = headers(&[("x-real-ip", value)]);
        let is = gets(&key(&request(&plain, true)), &key(&request(&given, true)));
        assert_eq!(is, is_ignored, "{value}");
    }
    let chain = headers(&[("x-forwarded-for", CLIENT)]);
    for chain_is_trusted in [false, true] {
        let stored = key(&CacheRequest { chain_is_trusted, ..request(&chain, true) });
        assert_eq!(gets(&key(&request(&plain, true)), &stored), chain_is_trusted);
    }
}

#[test]
fn the_order_of_names_makes_no_difference_and_that_of_lines_does() {
    let of = |fields: &[(&str, &str)]| {
        let mut all = HeaderMap::new();
        fields.iter().for_each(|(name, value)| {
            all.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        });
        key(&request(&all, false))
    };
    let one = of(&[("accept", "a"), ("origin", "b"), ("accept", "c")]);
    assert_eq!(one, of(&[("origin", "b"), ("accept", "a"), ("accept", "c")]));
    assert_ne!(one, of(&[("accept", "c"), ("origin", "b"), ("accept", "a")]));
}

proptest! {
    #[test]
    fn two_requests_share_a_key_only_if_all_that_is_keyed_is_the_same(
        one in fields(), other in fields(), trusted: bool,
    ) {
        let (first, second) = (headers(&one), headers(&other));
        let stored = key(&request(&first, trusted));
        let wanted = key(&request(&second, trusted));
        if gets(&wanted, &stored) {
            for (name, value) in &first {
                let class = Class::classify(name.as_str(), value.as_bytes(), &request(&first, trusted));
                prop_assert!(class == Class::Ignored || second.get(name) == Some(value), "{name}");
            }
        }
    }
}

fn fields() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    const NAMES: &[&str] =
        &["accept", "origin", "cookie", "x-host", "via", "x-forwarded-for", "traceparent", "user-agent"];
    const VALUES: &[&str] = &["", "a", "b", "00-aa-01"];
    prop::collection::vec((prop::sample::select(NAMES), prop::sample::select(VALUES)), 0..5)
}
