mod injectivity;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::identify::lookup::Ambiguity;
use crate::identify::{IdentifySettings, identify};
use weir_limiter::timestamp::Timestamp;

const HASHER: KeyHasher = KeyHasher::new([7, 11]);
const MISSING: Result<KeyHash, IncompleteKey> = Err(IncompleteKey::Missing);
const REPEATED: Result<KeyHash, IncompleteKey> = Err(IncompleteKey::Ambiguous(Ambiguity::Repeated));

/// A request from which keys are taken.
struct KeyRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    settings: IdentifySettings,
}

fn get(uri: &str) -> KeyRequest {
    KeyRequest {
        method: Method::GET,
        uri: uri.parse().unwrap(),
        headers: HeaderMap::new(),
        peer: [192, 0, 2, 1].into(),
        settings: IdentifySettings::default(),
    }
}

impl KeyRequest {
    fn with_header(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers.append(name, HeaderValue::from_bytes(value).unwrap());
        self
    }

    fn with_peer(mut self, peer: &str) -> Self {
        self.peer = peer.parse().unwrap();
        self
    }

    fn key_by(&self, parts: &[Attribute]) -> Result<KeyHash, IncompleteKey> {
        self.key_by_route(parts, "")
    }

    fn key_by_route(&self, parts: &[Attribute], route: &str) -> Result<KeyHash, IncompleteKey> {
        let Self { method, uri, headers, peer, settings } = self;
        let attributes = identify(method, uri, headers, *peer, settings, Timestamp::EPOCH).unwrap();
        KeyTemplate(parts.into()).hash(&attributes, Route(route), HASHER)
    }
}

fn header(name: &'static str) -> Attribute {
    Attribute::Header(HeaderName::from_static(name))
}

fn query(name: &str) -> Attribute {
    Attribute::Query(name.into())
}

fn a_cookie(name: &str) -> Attribute {
    Attribute::Cookie(name.into())
}

/// Returns the key of `?query` by its parameter `q`.
fn query_key(text: &str) -> Result<KeyHash, IncompleteKey> {
    get(&format!("/?{text}")).key_by(&[query("q")])
}

/// Returns the key of these cookie lines by the cookie `id`.
fn cookie_key(lines: &[&[u8]]) -> Result<KeyHash, IncompleteKey> {
    lines.iter().fold(get("/"), |request, line| request.with_header("cookie", line)).key_by(&[a_cookie("id")])
}

#[test]
fn keys_of_parts_with_equal_concatenation_differ() {
    let parts = [header("x-a"), header("x-b")];
    let key = |first: &str, second: &str| {
        get("/")
            .with_header("x-a", first.as_bytes())
            .with_header("x-b", second.as_bytes())
            .key_by(&parts)
            .unwrap()
    };
    assert_eq!(key("a_b", "c"), key("a_b", "c"));
    assert_ne!(key("a_b", "c"), key("a", "b_c"));
    assert_ne!(key("ab", ""), key("", "ab"));
    assert_ne!(key("a", "b"), key("b", "a"));
}

#[test]
fn value_imitating_the_key_encoding_does_not_collide() {
    let parts = [query("a"), query("b")];
    let key = |uri: &str| get(uri).key_by(&parts).unwrap();
    // The first value contains the encoded length of the second part.
    assert_ne!(key("/?a=x%00%00%00%01y&b="), key("/?a=x&b=y"));
    assert_ne!(key("/?a=%00%00%00%00&b="), key("/?a=&b=%00%00%00%00"));
}

/// Returns the key of these lines of a header by that header.
fn header_key(name: &'static str, lines: &[&[u8]]) -> Result<KeyHash, IncompleteKey> {
    lines.iter().fold(get("/"), |request, line| request.with_header(name, line)).key_by(&[header(name)])
}

#[test]
fn repeated_header_with_different_values_is_ambiguous() {
    let key = |lines: &[&[u8]]| header_key("x-key", lines);
    for several in [&[&b"a"[..], b"b"][..], &[b"b", b"a"], &[b"a", b"a", b"b"], &[b"a", b""], &[b"a", b"A"]] {
        assert_eq!(key(several), REPEATED);
    }
    assert_eq!(key(&[b"a", b"a", b"a"]), key(&[b"a"]), "repetitions of one value count as one");
    let different: [&[u8]; 5] = [b"a", b"b", b"a, a", b"", b"\xff\xfe"];
    for (index, one) in different.iter().enumerate() {
        assert!(key(&[one]).is_ok());
        assert!(different[..index].iter().all(|other| key(&[other]) != key(&[one])), "{index}");
    }
    assert_eq!(key(&[]), MISSING);
}

#[test]
fn lines_of_a_list_header_are_joined() {
    for name in ["accept", "accept-language", "cache-control", "x-forwarded-for", "x-forwarded-proto", "via"]
    {
        assert_eq!(header_key(name, &[b"a", b"b, c"]), header_key(name, &[b"a, b, c"]), "{name}");
        assert_ne!(header_key(name, &[b"a", b"b"]), header_key(name, &[b"b", b"a"]), "{name}");
    }
    assert_eq!(header_key("cookie", &[b"a=1", b"b=2"]), header_key("cookie", &[b"a=1; b=2"]));
}

#[test]
fn lines_of_two_headers_are_kept_apart() {
    let key = |lines: &[(&'static str, &str)]| {
        let with = |request: KeyRequest, (name, value): &(&'static str, &str)| {
            request.with_header(name, value.as_bytes())
        };
        lines.iter().fold(get("/"), with).key_by(&[header("accept"), header("via")]).unwrap()
    };
    assert_ne!(
        key(&[("accept", "1"), ("accept", "2"), ("via", "3")]),
        key(&[("accept", "1"), ("via", "2"), ("via", "3")])
    );
}

#[test]
fn cookie_with_several_values_is_ambiguous() {
    let seven = cookie_key(&[b"id=7"]);
    assert!(seven.is_ok());
    for same in ["a=1; id=7; b=8", "a=1;id=7", "id=7; id=7", "id = 7 ;a", "id =7"] {
        assert_eq!(cookie_key(&[same.as_bytes()]), seven, "{same}");
    }
    assert_eq!(cookie_key(&[b"a=1", b"id=7; b=2"]), seven);
    assert_eq!(cookie_key(&[b"id=7", b"id=7"]), seven);
    for several in ["id=7; id=8", "id=8; id=7", "id=7; id=", "id=7; a=1; id =8", "id=7; id=7; id=8"] {
        assert_eq!(cookie_key(&[several.as_bytes()]), REPEATED, "{several}");
    }
    assert_eq!(cookie_key(&[b"id=7; a=1", b"id=8"]), REPEATED);
    // The value extends to the semicolon and may contain any character.
    assert_ne!(cookie_key(&[b"id=7=8"]), seven);
    assert_ne!(cookie_key(&[b"id="]), seven);
    assert!(cookie_key(&[b"id="]).is_ok() && cookie_key(&[b"id=\xff"]).is_ok());
}

#[test]
fn cookie_of_another_name_is_missing() {
    assert_eq!(cookie_key(&[]), MISSING);
    for line in ["", "xid=7", "id", "i d=7", "a=id=7", ";;"] {
        assert_eq!(cookie_key(&[line.as_bytes()]), MISSING, "{line}");
    }
}

#[test]
fn query_parameter_keys_are_decoded() {
    assert_eq!(query_key("q=a+b"), query_key("q=a%20b"));
    assert_ne!(query_key("q=a+b"), query_key("q=a%2Bb"));
    assert_eq!(query_key("q=a%2Bb"), query_key("q=a%2bb"));
    assert_eq!(query_key("q=%61"), query_key("q=a"));
    assert_eq!(query_key("%71=a"), query_key("q=a"));
    // Values are decoded once, after the query was split.
    assert_ne!(query_key("q=%2561"), query_key("q=a"));
    assert_eq!(query_key("x=1%26q=2&q=a"), query_key("q=a"));
    assert_eq!(get("/?a+b=1").key_by(&[query("a b")]), get("/?a%20b=1").key_by(&[query("a b")]));
    assert!(get("/?a+b=1").key_by(&[query("a b")]).is_ok());
    assert_eq!(get("/?a+b=1").key_by(&[query("a+b")]), MISSING);
}

#[test]
fn query_parameter_with_several_values_is_ambiguous() {
    for same in ["a=1&q=a&b=2", "q=a&q=a", "q=a&%71=%61"] {
        assert_eq!(query_key(same), query_key("q=a"), "{same}");
    }
    for several in ["q=a&q=b", "q=b&a=1&q=a", "q=a&%71=b", "q=a&q", "q&q=a", "q=a&q=a&q=b"] {
        assert_eq!(query_key(several), REPEATED, "{several}");
    }
    assert_eq!(query_key("q"), query_key("q="));
    assert!(query_key("q").is_ok());
    assert_ne!(query_key("q=a=b"), query_key("q=a"));
    for missing in ["", "a=1", "Q=a", "qq=a", "a=q", "&&"] {
        assert_eq!(query_key(missing), MISSING, "{missing}");
    }
    assert_eq!(get("/").key_by(&[query("q")]), MISSING);
}

#[test]
fn key_with_a_missing_part_is_incomplete() {
    let request = get("/?q=1").with_header("x-a", b"1");
    assert!(request.key_by(&[query("q"), header("x-a"), Attribute::ClientIp]).is_ok());
    for part in [query("r"), header("x-b"), a_cookie("id"), Attribute::Host] {
        assert_eq!(request.key_by(&[query("q"), part.clone()]), MISSING, "{part}");
        assert_eq!(request.key_by(&[part, query("q")]), MISSING);
    }
}

#[test]
fn equivalent_hosts_share_a_key() {
    let host = |value: &str| get("/").with_header("host", value.as_bytes()).key_by(&[Attribute::Host]);
    assert_eq!(host("API.example.com:8080"), host("api.example.com"));
    assert_ne!(host("api.example.com"), host("www.example.com"));
    assert_eq!(host(""), MISSING);
}

#[test]
fn client_ip_key_is_the_network_for_ipv6_and_the_address_for_ipv4() {
    let key = |peer: &str| get("/").with_peer(peer).key_by(&[Attribute::ClientIp]).unwrap();
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
}

#[test]
fn equivalent_paths_share_a_key() {
    let path = |uri: &str| get(uri).key_by(&[Attribute::Path]).unwrap();
    assert_eq!(path("/%61/b?x=1"), path("/a//b"));
    assert_ne!(path("/a/b"), path("/A/b"));
}

#[test]
fn routes_and_methods_have_separate_keys() {
    let route = |route: &str| get("/users/1").key_by_route(&[Attribute::Route], route).unwrap();
    assert_ne!(route("/users/{id}"), route("/users/*"));
    let other = KeyRequest { method: Method::POST, ..get("/") };
    assert_ne!(other.key_by(&[Attribute::Method]), get("/").key_by(&[Attribute::Method]));
}

#[test]
fn complete_key_never_equals_the_incomplete_key() {
    let shared = incomplete_key(HASHER);
    let request =
        get("/?q=%ff&e=").with_header("x-a", b"\xff").with_header("x-e", b"").with_header("host", b"a");
    let parts = [
        Attribute::ClientIp,
        Attribute::Route,
        Attribute::Path,
        Attribute::Method,
        Attribute::Host,
        header("x-a"),
        header("x-e"),
        query("q"),
        query("e"),
    ];
    assert_ne!(request.key_by(&[]).unwrap(), shared);
    for first in &parts {
        assert_ne!(request.key_by(std::slice::from_ref(first)).unwrap(), shared, "{first}");
        for second in &parts {
            assert_ne!(
                request.key_by(&[first.clone(), second.clone()]).unwrap(),
                shared,
                "{first}, {second}"
            );
        }
    }
}

#[test]
fn key_template_displays_as_configured() {
    let template = KeyTemplate([Attribute::ClientIp, header("x-a"), a_cookie("id"), query("q")].into());
    assert_eq!(template.to_string(), "[client_ip, {header: x-a}, {cookie: id}, {query: q}]");
    assert_eq!(KeyTemplate::default().to_string(), "[]");
}

#[test]
fn client_network_key_uses_the_rule_prefixes() {
    let wide = |peer: &str| {
        get("/")
            .with_peer(peer)
            .key_by(&[Attribute::ClientNetwork { ipv4: Some(24), ipv6: Some(48) }])
            .unwrap()
    };
    assert_eq!(wide("2001:db8:1:2::1"), wide("2001:db8:1:3::1"));
    assert_ne!(wide("2001:db8:1::"), wide("2001:db8:2::"));
    assert_eq!(wide("192.0.2.1"), wide("192.0.2.2"));
    assert_ne!(wide("192.0.2.1"), wide("192.0.3.1"));
    let as_all =
        |peer: &str| get("/").with_peer(peer).key_by(&[Attribute::ClientNetwork { ipv4: None, ipv6: None }]);
    for peer in ["2001:db8:1:2::1", "192.0.2.1"] {
        assert_eq!(as_all(peer), get("/").with_peer(peer).key_by(&[Attribute::ClientIp]));
    }
}

#[test]
fn ipv4_key_is_unique_to_its_address() {
    let alone = |peer: &str| get("/").with_peer(peer).key_by(&[Attribute::ClientIp]).unwrap();
    assert_eq!(alone("192.0.2.7"), HASHER.hash_u32(0xc000_0207));
    assert_eq!(alone("::ffff:192.0.2.7"), alone("192.0.2.7"));
    // The same bits at different positions.
    let all = [alone("0.0.0.7"), alone("0.7.0.0"), alone("0:0:0:7::1"), alone("0:7::1")];
    for (index, hash) in all.iter().enumerate() {
        assert!(!all[..index].contains(hash), "{index}");
    }
}
