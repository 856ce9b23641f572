use proptest::prelude::*;

use super::*;

const CORPUS: &str = include_str!("../../../../../../tests/data/cache-poisoning-headers.txt");
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

/// Returns whether a request with the key `wanted` is served the response stored under `stored`.
fn is_served(wanted: &CacheKey, stored: &CacheKey) -> bool {
    stored.to_store().is_some_and(|stored| wanted.to_look_up().any(|key| key == stored.bytes))
}

/// Headers that Weir removes or overwrites.
const REWRITTEN: [&str; 10] = [
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "x-envoy-attempt-count",
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-weir-charged",
    "x-weir-over-limit",
];

#[test]
fn cache_poisoning_headers_are_part_of_the_cache_key() {
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
            assert_eq!(is_served(&key(&request(&plain, trusted)), &stored), is_rewritten, "{line} {trusted}");
        }
    }
}

#[test]
fn identified_client_is_served_shared_and_own_responses_only() {
    let (plain, ada, eve) =
        (headers(&[]), headers(&[("cookie", "me=ada")]), headers(&[("cookie", "me=eve")]));
    let [plain, ada, eve] = [&plain, &ada, &eve].map(|headers| key(&request(headers, false)));
    assert!(is_served(&ada, &plain) && is_served(&ada, &ada));
    assert!(!is_served(&plain, &ada) && !is_served(&eve, &ada));
    assert_eq!(ada.to_store().map(|key| key.is_personal), Some(true));
    assert_eq!(plain.to_store().map(|key| key.is_personal), Some(false));
}

#[test]
fn client_certificate_makes_a_cache_key_personal() {
    let headers = HeaderMap::new();
    let with = |certificate| key(&CacheRequest { certificate, ..request(&headers, false) });
    let (plain, ada, eve) = (with(None), with(Some(b"ada")), with(Some(b"eve")));
    assert!(is_served(&ada, &plain) && is_served(&ada, &ada));
    assert!(!is_served(&plain, &ada) && !is_served(&eve, &ada));
}

#[test]
fn headers_that_rules_count_by_make_a_cache_key_personal() {
    let of = |name: &'static str| Arc::from([HeaderName::from_static(name)]);
    let special = CacheHeaderRules { personal: of("user-agent"), ignored: of("x-build") };
    let asked = headers(&[("user-agent", "ada"), ("x-build", "7")]);
    let stored = CacheKey::new(&request(&asked, false), &special);
    let same = headers(&[("user-agent", "ada"), ("x-build", "8")]);
    assert!(is_served(&CacheKey::new(&request(&same, false), &special), &stored));
    assert_eq!(stored.to_store().map(|key| key.is_personal), Some(true));
}

#[test]
fn cache_key_includes_upstream_authority_target_and_scheme() {
    let headers = HeaderMap::new();
    let plain = request(&headers, false);
    for other in [
        CacheRequest { upstream: "other", ..plain },
        CacheRequest { authority: b"test.local:1337", ..plain },
        CacheRequest { target: "/?", ..plain },
        CacheRequest { is_tls: true, ..plain },
    ] {
        assert!(!is_served(&key(&plain), &key(&other)), "{other:?}");
    }
}

#[test]
fn client_address_headers_are_ignored_if_they_equal_the_clients_address() {
    let plain = headers(&[]);
    for (value, is_ignored) in
        [(CLIENT, true), ("::ffff:192.0.2.1", true), ("127.0.0.1", false), ("x", false)]
    {
        let given = headers(&[("x-real-ip", value)]);
        let is = is_served(&key(&request(&plain, true)), &key(&request(&given, true)));
        assert_eq!(is, is_ignored, "{value}");
    }
    let chain = headers(&[("x-forwarded-for", CLIENT)]);
    for chain_is_trusted in [false, true] {
        let stored = key(&CacheRequest { chain_is_trusted, ..request(&chain, true) });
        assert_eq!(is_served(&key(&request(&plain, true)), &stored), chain_is_trusted);
    }
}

#[test]
fn cache_key_ignores_order_of_names_but_not_of_values() {
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
    fn requests_with_the_same_cache_key_have_equal_keyed_headers(
        one in fields(), other in fields(), trusted: bool,
    ) {
        let (first, second) = (headers(&one), headers(&other));
        let stored = key(&request(&first, trusted));
        let wanted = key(&request(&second, trusted));
        if is_served(&wanted, &stored) {
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
