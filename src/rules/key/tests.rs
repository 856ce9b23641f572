mod injectivity;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::identify::lookup::Ambiguity;
use crate::identify::{IdentifySettings, identify};
use crate::limiter::timestamp::Timestamp;

const HASHER: KeyHasher = KeyHasher::new([7, 11]);
const MISSING: Result<KeyHash, IncompleteKey> = Err(IncompleteKey::Missing);
const REPEATED: Result<KeyHash, IncompleteKey> = Err(IncompleteKey::Ambiguous(Ambiguity::Repeated));

/// A request from which keys are taken.
struct Request {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    settings: IdentifySettings,
}

fn get(uri: &str) -> Request {
    Request {
        method: Method::GET,
        uri: uri.parse().unwrap(),
        headers: HeaderMap::new(),
        peer: [192, 0, 2, 1].into(),
        settings: IdentifySettings::default(),
    }
}

impl Request {
    fn with(mut self, name: &'static str, value: &[u8]) -> Self {
        self.headers.append(name, HeaderValue::from_bytes(value).unwrap());
        self
    }

    fn from(mut self, peer: &str) -> Self {
        self.peer = peer.parse().unwrap();
        self
    }

    fn by(&self, parts: &[Attribute]) -> Result<KeyHash, IncompleteKey> {
        self.by_route(parts, "")
    }

    fn by_route(&self, parts: &[Attribute], route: &str) -> Result<KeyHash, IncompleteKey> {
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
fn q(text: &str) -> Result<KeyHash, IncompleteKey> {
    get(&format!("/?{text}")).by(&[query("q")])
}

/// Returns the key of these cookie lines by the cookie `id`.
fn id(lines: &[&[u8]]) -> Result<KeyHash, IncompleteKey> {
    lines.iter().fold(get("/"), |request, line| request.with("cookie", line)).by(&[a_cookie("id")])
}

#[test]
fn parts_that_join_to_the_same_text_never_meet() {
    let parts = [header("x-a"), header("x-b")];
    let key = |first: &str, second: &str| {
        get("/").with("x-a", first.as_bytes()).with("x-b", second.as_bytes()).by(&parts).unwrap()
    };
    assert_eq!(key("a_b", "c"), key("a_b", "c"));
    assert_ne!(key("a_b", "c"), key("a", "b_c"));
    assert_ne!(key("ab", ""), key("", "ab"));
    assert_ne!(key("a", "b"), key("b", "a"));
}

#[test]
fn a_value_that_imitates_an_encoding_meets_nobody() {
    let parts = [query("a"), query("b")];
    let key = |uri: &str| get(uri).by(&parts).unwrap();
    // The first value contains the encoded length of the second part.
    assert_ne!(key("/?a=x%00%00%00%01y&b="), key("/?a=x&b=y"));
    assert_ne!(key("/?a=%00%00%00%00&b="), key("/?a=&b=%00%00%00%00"));
}

/// Returns the key of these lines of a header by that header.
fn by_lines(name: &'static str, lines: &[&[u8]]) -> Result<KeyHash, IncompleteKey> {
    lines.iter().fold(get("/"), |request, line| request.with(name, line)).by(&[header(name)])
}

#[test]
fn a_second_value_of_a_header_is_no_key_of_its_own() {
    let key = |lines: &[&[u8]]| by_lines("x-key", lines);
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
fn lines_of_a_list_are_one_list() {
    for name in ["accept", "accept-language", "cache-control", "x-forwarded-for", "x-forwarded-proto", "via"]
    {
        assert_eq!(by_lines(name, &[b"a", b"b, c"]), by_lines(name, &[b"a, b, c"]), "{name}");
        assert_ne!(by_lines(name, &[b"a", b"b"]), by_lines(name, &[b"b", b"a"]), "{name}");
    }
    assert_eq!(by_lines("cookie", &[b"a=1", b"b=2"]), by_lines("cookie", &[b"a=1; b=2"]));
}

#[test]
fn lines_of_two_headers_do_not_run_together() {
    let key = |lines: &[(&'static str, &str)]| {
        let with =
            |request: Request, (name, value): &(&'static str, &str)| request.with(name, value.as_bytes());
        lines.iter().fold(get("/"), with).by(&[header("accept"), header("via")]).unwrap()
    };
    assert_ne!(
        key(&[("accept", "1"), ("accept", "2"), ("via", "3")]),
        key(&[("accept", "1"), ("via", "2"), ("via", "3")])
    );
}

#[test]
fn a_cookie_with_several_values_is_no_key() {
    let seven = id(&[b"id=7"]);
    assert!(seven.is_ok());
    for same in ["a=1; id=7; b=8", "a=1;id=7", "id=7; id=7", "id = 7 ;a", "id =7"] {
        assert_eq!(id(&[same.as_bytes()]), seven, "{same}");
    }
    assert_eq!(id(&[b"a=1", b"id=7; b=2"]), seven);
    assert_eq!(id(&[b"id=7", b"id=7"]), seven);
    for several in ["id=7; id=8", "id=8; id=7", "id=7; id=", "id=7; a=1; id =8", "id=7; id=7; id=8"] {
        assert_eq!(id(&[several.as_bytes()]), REPEATED, "{several}");
    }
    assert_eq!(id(&[b"id=7; a=1", b"id=8"]), REPEATED);
    // The value extends to the semicolon and may contain any character.
    assert_ne!(id(&[b"id=7=8"]), seven);
    assert_ne!(id(&[b"id="]), seven);
    assert!(id(&[b"id="]).is_ok() && id(&[b"id=\xff"]).is_ok());
}

#[test]
fn a_cookie_of_another_name_is_none() {
    assert_eq!(id(&[]), MISSING);
    for line in ["", "xid=7", "id", "i d=7", "a=id=7", ";;"] {
        assert_eq!(id(&[line.as_bytes()]), MISSING, "{line}");
    }
}

#[test]
fn query_parameters_are_decoded() {
    assert_eq!(q("q=a+b"), q("q=a%20b"));
    assert_ne!(q("q=a+b"), q("q=a%2Bb"));
    assert_eq!(q("q=a%2Bb"), q("q=a%2bb"));
    assert_eq!(q("q=%61"), q("q=a"));
    assert_eq!(q("%71=a"), q("q=a"));
    // Values are decoded once, after the query was split.
    assert_ne!(q("q=%2561"), q("q=a"));
    assert_eq!(q("x=1%26q=2&q=a"), q("q=a"));
    assert_eq!(get("/?a+b=1").by(&[query("a b")]), get("/?a%20b=1").by(&[query("a b")]));
    assert!(get("/?a+b=1").by(&[query("a b")]).is_ok());
    assert_eq!(get("/?a+b=1").by(&[query("a+b")]), MISSING);
}

#[test]
fn a_query_parameter_with_several_values_is_no_key() {
    for same in ["a=1&q=a&b=2", "q=a&q=a", "q=a&%71=%61"] {
        assert_eq!(q(same), q("q=a"), "{same}");
    }
    for several in ["q=a&q=b", "q=b&a=1&q=a", "q=a&%71=b", "q=a&q", "q&q=a", "q=a&q=a&q=b"] {
        assert_eq!(q(several), REPEATED, "{several}");
    }
    assert_eq!(q("q"), q("q="));
    assert!(q("q").is_ok());
    assert_ne!(q("q=a=b"), q("q=a"));
    for missing in ["", "a=1", "Q=a", "qq=a", "a=q", "&&"] {
        assert_eq!(q(missing), MISSING, "{missing}");
    }
    assert_eq!(get("/").by(&[query("q")]), MISSING);
}

#[test]
fn one_missing_part_makes_the_key_incomplete() {
    let request = get("/?q=1").with("x-a", b"1");
    assert!(request.by(&[query("q"), header("x-a"), Attribute::ClientIp]).is_ok());
    for part in [query("r"), header("x-b"), a_cookie("id"), Attribute::Host] {
        assert_eq!(request.by(&[query("q"), part.clone()]), MISSING, "{part}");
        assert_eq!(request.by(&[part, query("q")]), MISSING);
    }
}

#[test]
fn a_host_counts_once_however_it_is_written() {
    let host = |value: &str| get("/").with("host", value.as_bytes()).by(&[Attribute::Host]);
    assert_eq!(host("API.example.com:8080"), host("api.example.com"));
    assert_ne!(host("api.example.com"), host("www.example.com"));
    assert_eq!(host(""), MISSING);
}

#[test]
fn ipv6_clients_share_their_network_and_ipv4_clients_nothing() {
    let key = |peer: &str| get("/").from(peer).by(&[Attribute::ClientIp]).unwrap();
    assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
    assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
}

#[test]
fn a_path_counts_once_however_it_is_written() {
    let path = |uri: &str| get(uri).by(&[Attribute::Path]).unwrap();
    assert_eq!(path("/%61/b?x=1"), path("/a//b"));
    assert_ne!(path("/a/b"), path("/A/b"));
}

#[test]
fn routes_and_methods_count_apart() {
    let route = |route: &str| get("/users/1").by_route(&[Attribute::Route], route).unwrap();
    assert_ne!(route("/users/{id}"), route("/users/*"));
    let other = Request { method: Method::POST, ..get("/") };
    assert_ne!(other.by(&[Attribute::Method]), get("/").by(&[Attribute::Method]));
}

#[test]
fn no_complete_key_is_the_shared_one() {
    let shared = incomplete_key(HASHER);
    let request = get("/?q=%ff&e=").with("x-a", b"\xff").with("x-e", b"").with("host", b"a");
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
    assert_ne!(request.by(&[]).unwrap(), shared);
    for first in &parts {
        assert_ne!(request.by(std::slice::from_ref(first)).unwrap(), shared, "{first}");
        for second in &parts {
            assert_ne!(request.by(&[first.clone(), second.clone()]).unwrap(), shared, "{first}, {second}");
        }
    }
}

#[test]
fn templates_are_written_as_in_configuration() {
    let template = KeyTemplate([Attribute::ClientIp, header("x-a"), a_cookie("id"), query("q")].into());
    assert_eq!(template.to_string(), "[client_ip, {header: x-a}, {cookie: id}, {query: q}]");
    assert_eq!(KeyTemplate::default().to_string(), "[]");
}

#[test]
fn one_rule_may_count_wider_networks() {
    let wide = |peer: &str| {
        get("/").from(peer).by(&[Attribute::ClientNetwork { ipv4: Some(24), ipv6: Some(48) }]).unwrap()
    };
    assert_eq!(wide("2001:db8:1:2::1"), wide("2001:db8:1:3::1"));
    assert_ne!(wide("2001:db8:1::"), wide("2001:db8:2::"));
    assert_eq!(wide("192.0.2.1"), wide("192.0.2.2"));
    assert_ne!(wide("192.0.2.1"), wide("192.0.3.1"));
    let as_all = |peer: &str| get("/").from(peer).by(&[Attribute::ClientNetwork { ipv4: None, ipv6: None }]);
    for peer in ["2001:db8:1:2::1", "192.0.2.1"] {
        assert_eq!(as_all(peer), get("/").from(peer).by(&[Attribute::ClientIp]));
    }
}

#[test]
fn an_ipv4_address_alone_is_itself_and_no_other_address() {
    let alone = |peer: &str| get("/").from(peer).by(&[Attribute::ClientIp]).unwrap();
    assert_eq!(alone("192.0.2.7"), HASHER.hash_u32(0xc000_0207));
    assert_eq!(alone("::ffff:192.0.2.7"), alone("192.0.2.7"));
    // The same bits at different positions.
    let all = [alone("0.0.0.7"), alone("0.7.0.0"), alone("0:0:0:7::1"), alone("0:7::1")];
    for (index, hash) in all.iter().enumerate() {
        assert!(!all[..index].contains(hash), "{index}");
    }
}
