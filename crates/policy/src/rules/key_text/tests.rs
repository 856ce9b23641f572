use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::identify::{IdentifySettings, identify};
use weir_limiter::timestamp::Timestamp;

const HASHER: KeyHasher = KeyHasher::new([7, 11]);
const PREFIX: u8 = 64;

fn header(name: &'static str) -> Attribute {
    Attribute::Header(HeaderName::from_static(name))
}

fn network(ipv4: Option<u8>, ipv6: Option<u8>) -> Attribute {
    Attribute::ClientNetwork { ipv4, ipv6 }
}

/// Returns the text of a request's key, and whether it is read as that key again.
fn round_trip(parts: &[Attribute], peer: &str, path: &str, values: [&[u8]; 2]) -> (String, bool) {
    let template = KeyTemplate(parts.into());
    let mut headers = HeaderMap::new();
    for (name, value) in ["x-a", "x-b"].into_iter().zip(values) {
        headers.append(name, HeaderValue::from_bytes(value).unwrap());
    }
    let (uri, settings) = (path.parse::<Uri>().unwrap(), IdentifySettings::default());
    let peer = peer.parse().unwrap();
    let request = identify(&Method::GET, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
    let hash = template.hash(&request, Route("/r"), HASHER).unwrap();
    let text = write_key(&template.parts(&request, Route("/r"), PREFIX));
    let read = template.parse(&text, PREFIX, HASHER);
    let is_same = read.is_ok_and(|read| read.hash == hash && write_key(&read.parts) == text);
    (text, is_same)
}

#[test]
fn key_text_is_read_as_the_same_key() {
    for (parts, peer, expected) in [
        (&[Attribute::ClientIp][..], "203.0.113.7", "client_ip=203.0.113.7"),
        (&[Attribute::ClientIp], "2001:db8:1:2:3::7", "client_ip=2001:db8:1:2::/64"),
        (&[network(Some(24), None)], "203.0.113.7", "client_ip=203.0.113.0/24"),
        (&[network(None, Some(48))], "2001:db8:1:2:3::7", "client_ip=2001:db8:1::/48"),
        (&[Attribute::ClientIp, Attribute::Path], "203.0.113.7", "client_ip=203.0.113.7, path=/x"),
        (
            &[Attribute::Method, Attribute::Route, header("x-a")],
            "::1",
            "method=GET, route=/r, header.x-a=acme",
        ),
        (&[], "::1", ""),
    ] {
        assert_eq!(round_trip(parts, peer, "/x", [b"acme", b""]), (expected.to_owned(), true));
    }
}

#[test]
fn value_that_looks_like_another_part_is_quoted() {
    let (text, is_same) =
        round_trip(&[header("x-a"), Attribute::Path], "::1", "/x", [b"k, path=/admin", b""]);
    assert_eq!(text, r#"header.x-a="k, path=/admin", path=/x"#);
    assert!(is_same);
}

/// Parses a text; returns the key in normal form, or the error.
fn normal_form(parts: &[Attribute], text: &str) -> Result<String, KeyTextError> {
    KeyTemplate(parts.into()).parse(text, PREFIX, HASHER).map(|key| write_key(&key.parts))
}

#[test]
fn texts_that_are_no_key_of_the_rule_are_errors() {
    let two = [Attribute::ClientIp, Attribute::Path];
    let form = Err(KeyTextError::Form("client_ip=…, path=…".to_owned()));
    for text in ["", "client_ip", "client_ip=::1", "path=/x, client_ip=::1", "client_ip=::1;path=/x", "::1"] {
        assert_eq!(normal_form(&two, text), form, "{text}");
    }
    let value = |label: &str, value: &str| {
        Err(KeyTextError::Value { label: label.to_owned(), value: value.to_owned() })
    };
    assert_eq!(normal_form(&[Attribute::ClientIp], "client_ip=acme"), value("client_ip", "acme"));
    assert_eq!(normal_form(&[Attribute::Country], "country=GBR"), value("country", "GBR"));
    assert_eq!(normal_form(&[Attribute::System], "asn=x"), value("asn", "x"));
    let error = normal_form(&[], "client_ip=::1").unwrap_err();
    assert_eq!(error.to_string(), "the rule counts all requests together (`key: []`): leave out `key`");
}

#[test]
fn networks_must_have_the_prefix_that_the_rule_counts() {
    let error = |part: Attribute, text: &str| normal_form(&[part], text).unwrap_err().to_string();
    assert_eq!(
        error(Attribute::ClientIp, "client_ip=198.51.100.0/8"),
        "`client_ip` counts single IPv4 addresses here: expected an address, or a network with the prefix /32, got `198.51.100.0/8`"
    );
    assert_eq!(
        error(Attribute::ClientIp, "client_ip=2001:db8::/32"),
        "`client_ip` counts /64 networks of IPv6 here: expected an address, or a network with the prefix /64, got `2001:db8::/32`"
    );
    assert!(error(network(Some(24), None), "client_ip=198.51.100.0/8").contains("/24 networks of IPv4"));
    for text in ["client_ip=198.51.100.7/", "client_ip=198.51.100.7/x", "client_ip=198.51.100.7/333"] {
        assert_eq!(
            error(Attribute::ClientIp, text),
            format!("not a value of `client_ip`: {}", &text["client_ip=".len()..])
        );
    }
}

#[test]
fn values_have_the_form_in_which_requests_have_them() {
    for (part, text, normal) in [
        (Attribute::ClientIp, "client_ip=198.51.100.7/32", "client_ip=198.51.100.7"),
        (Attribute::ClientIp, "client_ip=::ffff:198.51.100.7", "client_ip=198.51.100.7"),
        (Attribute::ClientIp, "client_ip=2001:DB8::7", "client_ip=2001:db8::/64"),
        (network(Some(24), None), "client_ip=198.51.100.7/24", "client_ip=198.51.100.0/24"),
        (Attribute::Host, "host=API.Example.com:8080", "host=api.example.com"),
        (Attribute::Path, "path=/a/../b", "path=/b"),
        (Attribute::Path, "path=//%61", "path=/a"),
        (Attribute::Country, "country=gb", "country=GB"),
        (Attribute::System, "asn=AS64496", "asn=64496"),
    ] {
        assert_eq!(normal_form(&[part], text).as_deref(), Ok(normal), "{text}");
    }
    for (part, text) in [
        (Attribute::Host, "host=bad host"),
        (Attribute::Host, "host=user:pw@host"),
        (Attribute::Host, "host="),
        (Attribute::Path, "path=a"),
        (Attribute::Path, "path=/%00"),
        (Attribute::Path, "path="),
    ] {
        assert!(matches!(normal_form(&[part], text), Err(KeyTextError::Value { .. })), "{text}");
    }
}

#[test]
fn comma_without_a_space_separates_parts_if_there_is_one_reading() {
    let headers = [header("x-a"), header("x-b")];
    for (text, normal) in [
        ("header.x-a=1,header.x-b=2", "header.x-a=1, header.x-b=2"),
        ("header.x-a=1,  header.x-b=2", "header.x-a=1, header.x-b=2"),
        ("header.x-a=1,2, header.x-b=3", r#"header.x-a="1,2", header.x-b=3"#),
        (r#"header.x-a="1",header.x-b="2""#, "header.x-a=1, header.x-b=2"),
        (r#"header.x-a=1,header.x-b=", header.x-b=3""#, r#"header.x-a=1, header.x-b=", header.x-b=3""#),
    ] {
        assert_eq!(normal_form(&headers, text).as_deref(), Ok(normal), "{text}");
    }
    for text in [
        "header.x-a=1, header.x-b=2, header.x-b=3",
        "header.x-a=1,header.x-b=2,header.x-b=3",
        "header.x-a=1, 2, header.x-b=3",
    ] {
        assert_eq!(normal_form(&headers, text), Err(KeyTextError::Ambiguous), "{text}");
    }
}

proptest! {
    #[test]
    fn every_key_is_read_back_from_its_text(
        a in "[ -~]{1,12}",
        b in r#"(, header\.x-b=|"|[a-c,= ]){1,6}"#,
        path in "/[a-z,=]{0,8}",
        peer in any::<u32>(),
    ) {
        let (a, b) = (a.trim(), b.trim());
        prop_assume!(!a.is_empty() && !b.is_empty());
        let peer = IpAddr::V4(peer.into()).to_string();
        let parts = [header("x-a"), Attribute::ClientIp, header("x-b"), Attribute::Path];
        let (text, is_same) = round_trip(&parts, &peer, &path, [a.as_bytes(), b.as_bytes()]);
        prop_assert!(is_same, "{}", text);
    }
}
