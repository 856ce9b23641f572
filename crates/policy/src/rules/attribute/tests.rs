use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::*;
use crate::identify::body::RequestFields;
use crate::identify::{IdentifySettings, identify};
use weir_bodies::fields::{FieldName, Kind, Record, Value};
use weir_limiter::timestamp::Timestamp;

/// Returns the value of `part` for a client at `peer` whose `x-key` header has these bytes.
fn text(part: &Attribute, peer: &str, key: &[u8]) -> Result<String, IncompleteKey> {
    let (uri, settings) = (Uri::from_static("/a%20b?q=1"), IdentifySettings::default());
    let headers =
        HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_bytes(key).unwrap())]);
    let now = Timestamp::from_secs(0);
    let peer = peer.parse().unwrap();
    let request = identify(&Method::GET, &uri, &headers, peer, &settings, now).unwrap();
    part.text(&request, Route("/{x}"), settings.ipv6_prefix)
}

#[test]
fn client_attribute_text_is_its_counted_network() {
    let network = |ipv4, ipv6| Attribute::ClientNetwork { ipv4, ipv6 };
    for (part, peer, written) in [
        (Attribute::ClientIp, "192.0.2.7", "192.0.2.7"),
        (Attribute::ClientIp, "2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
        (network(Some(24), None), "192.0.2.7", "192.0.2.0/24"),
        (network(Some(24), None), "2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
        (network(None, Some(48)), "2001:db8:1:2:3::7", "2001:db8:1::/48"),
        (network(None, Some(128)), "2001:db8::7", "2001:db8::7"),
    ] {
        assert_eq!(text(&part, peer, b""), Ok(written.to_owned()), "{part} of {peer}");
    }
}

#[test]
fn attribute_text_is_the_request_value() {
    let header = Attribute::Header(HeaderName::from_static("x-key"));
    for (part, key, written) in [
        (&header, &b"acme"[..], "acme"),
        (&header, b"\xff", "\u{fffd}"),
        (&Attribute::Path, b"", "/a b"),
        (&Attribute::Route, b"", "/{x}"),
        (&Attribute::Method, b"", "GET"),
        (&Attribute::Query("q".into()), b"", "1"),
    ] {
        assert_eq!(text(part, "192.0.2.1", key), Ok(written.to_owned()), "{part}");
    }
    assert_eq!(text(&Attribute::Cookie("none".into()), "192.0.2.1", b""), Err(IncompleteKey::Missing));
}

#[test]
fn field_of_either_kind_of_body_is_one_part() {
    let json = BodyField { field: FieldName::Json(Arc::new("user.name".parse().unwrap())), index: 0 };
    let form = BodyField { field: FieldName::Form("user[name]".into()), index: 1 };
    let part = Attribute::EitherBody(Box::new([json, form]));
    assert_eq!(part.to_string(), "{json: user.name, form: user[name]}");
    assert_eq!(part.source().body(), Some(FieldMask::of(0) | FieldMask::of(1)));
    let value = |text: &str| Some(Value { kind: Kind::String, text: text.into() });
    let records: [Record; 3] =
        [[value("ann"), None], [None, value("ann")], [None, None]].map(|record| record.into());
    let (uri, headers, settings) = (Uri::from_static("/"), HeaderMap::new(), IdentifySettings::default());
    let peer = [192, 0, 2, 1].into();
    let request = identify(&Method::POST, &uri, &headers, peer, &settings, Timestamp::from_secs(0)).unwrap();
    let expected = [Ok("ann".to_owned()), Ok("ann".to_owned()), Err(IncompleteKey::Missing)];
    for (record, expected) in records.iter().zip(expected) {
        request.body.set(RequestFields::Fields(record));
        assert_eq!(part.text(&request, Route(""), 64), expected);
    }
}
