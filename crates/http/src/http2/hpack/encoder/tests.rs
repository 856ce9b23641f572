use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::decoder::HpackDecoder;
use super::super::field::{HeaderField, Protocol};
use super::super::fuzzing::{self, Fields};
use super::{HpackEncoder, MAX_FIELD_LEN};

/// An encoder and the decoder of its peer.
struct Pair {
    encoder: HpackEncoder,
    decoder: HpackDecoder,
}

impl Pair {
    fn new() -> Self {
        Self { encoder: HpackEncoder::new(), decoder: HpackDecoder::new() }
    }

    /// Encodes a block, checks that it is decoded to the same fields, and returns it.
    fn send(&mut self, fields: &[HeaderField]) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for field in fields {
            fuzzing::encode(field, &mut self.encoder, &mut block);
        }
        let mut decoded = Fields::default();
        self.decoder.decode(&block, &mut decoded).unwrap();
        assert_eq!(decoded.accepted, fields);
        for (decoded, field) in decoded.accepted.iter().zip(fields) {
            assert_eq!(is_sensitive(decoded), is_sensitive(field));
        }
        block
    }
}

fn is_sensitive(field: &HeaderField) -> bool {
    matches!(field, HeaderField::Header(_, value) if value.is_sensitive())
}

fn header(name: &str, value: &str) -> HeaderField {
    HeaderField::Header(name.parse().unwrap(), value.parse().unwrap())
}

fn sensitive(name: &str, value: &str) -> HeaderField {
    let mut value: HeaderValue = value.parse().unwrap();
    value.set_sensitive(true);
    HeaderField::Header(name.parse().unwrap(), value)
}

#[test]
fn fields_of_the_static_table_are_one_byte() {
    let mut pair = Pair::new();
    for (field, index) in [
        (HeaderField::Method(Method::GET), 2),
        (HeaderField::Method(Method::POST), 3),
        (HeaderField::Path("/".parse().unwrap()), 4),
        (HeaderField::Path("/index.html".parse().unwrap()), 5),
        (HeaderField::Scheme(Scheme::HTTP), 6),
        (HeaderField::Scheme(Scheme::HTTPS), 7),
        (HeaderField::Status(StatusCode::OK), 8),
        (HeaderField::Status(StatusCode::NO_CONTENT), 9),
        (HeaderField::Status(StatusCode::PARTIAL_CONTENT), 10),
        (HeaderField::Status(StatusCode::NOT_MODIFIED), 11),
        (HeaderField::Status(StatusCode::BAD_REQUEST), 12),
        (HeaderField::Status(StatusCode::NOT_FOUND), 13),
        (HeaderField::Status(StatusCode::INTERNAL_SERVER_ERROR), 14),
        (header("accept-encoding", "gzip, deflate"), 16),
    ] {
        assert_eq!(pair.send(&[field]), [0x80 | index]);
    }
}

#[test]
fn a_field_enters_the_table_when_it_is_sent_again() {
    let mut pair = Pair::new();
    let field = header("server", "weir");
    assert_eq!(pair.send(std::slice::from_ref(&field)), b"\x0f\x27\x04weir");
    assert_eq!(pair.send(std::slice::from_ref(&field)), b"\x76\x04weir");
    assert_eq!(pair.send(std::slice::from_ref(&field)), [0x80 | 62]);
    assert_eq!(pair.send(&[header("server", "other")]), b"\x0f\x27\x05other");
}

#[test]
fn pseudo_headers_enter_the_table() {
    let mut pair = Pair::new();
    let fields = [
        HeaderField::Method(Method::CONNECT),
        HeaderField::Scheme("ws".parse().unwrap()),
        HeaderField::Authority("example.com".parse().unwrap()),
        HeaderField::Path("/chat?room=1".parse().unwrap()),
        HeaderField::Protocol(Protocol::from("websocket")),
        HeaderField::Status(StatusCode::TOO_MANY_REQUESTS),
    ];
    pair.send(&fields);
    pair.send(&fields);
    assert_eq!(pair.send(&fields), [0xc3, 0xc2, 0xc1, 0xc0, 0xbf, 0xbe]);
}

#[test]
fn values_that_vary_displace_none_that_repeat() {
    let mut pair = Pair::new();
    let repeated = [header("server", "weir"), header("content-type", "text/plain")];
    pair.send(&repeated);
    pair.send(&repeated);
    for number in 0..1000 {
        pair.send(&[header("x-number", &number.to_string())]);
    }
    assert_eq!(pair.send(&repeated), [0xbf, 0xbe]);
}

#[test]
fn headers_whose_values_usually_vary_never_enter_the_table() {
    for name in ["date", "ratelimit", "traceparent", "x-request-id", "x-ratelimit-remaining"] {
        let mut pair = Pair::new();
        let blocks: Vec<_> = (0..4).map(|_| pair.send(&[header(name, "1")])).collect();
        assert!(blocks.iter().all(|block| *block == blocks[0] && block.ends_with(b"\x011")), "{name}");
    }
}

#[test]
fn a_sensitive_value_is_never_indexed() {
    let mut pair = Pair::new();
    for _ in 0..4 {
        assert_eq!(pair.send(&[sensitive("x-key", "1")]), b"\x10\x05x-key\x011");
        assert_eq!(pair.send(&[sensitive("cookie", "a=b")]), b"\x1f\x11\x03a=b");
    }
    // Nor is it looked up.
    for _ in 0..4 {
        pair.send(&[header("x-key", "1")]);
    }
    assert_eq!(pair.send(&[sensitive("x-key", "1")]), b"\x10\x05x-key\x011");
}

#[test]
fn credentials_never_enter_the_table() {
    let mut pair = Pair::new();
    for name in ["authorization", "cookie", "proxy-authorization", "set-cookie"] {
        let lens = [(); 4].map(|()| pair.send(&[header(name, "secret")]).len());
        assert_eq!(lens, [9; 4], "{name}");
    }
}

#[test]
fn fields_in_another_order_are_found() {
    let mut pair = Pair::new();
    let mut fields: Vec<_> = (0..8).map(|number| header(&format!("x-{number}"), "value")).collect();
    pair.send(&fields);
    pair.send(&fields);
    for _ in 0..4 {
        fields.reverse();
        assert_eq!(pair.send(&fields).len(), 8);
        fields.rotate_left(3);
        assert_eq!(pair.send(&fields[2..6]).len(), 4);
    }
}

#[test]
fn a_long_field_is_never_in_the_table() {
    let mut pair = Pair::new();
    for (len, is_indexed) in [(MAX_FIELD_LEN - 3, true), (MAX_FIELD_LEN - 2, false)] {
        let field = header("etag", &"x".repeat(len - 1));
        let lens: Vec<_> = (0..3).map(|_| pair.send(std::slice::from_ref(&field)).len()).collect();
        assert_eq!(lens[2] == 1, is_indexed, "{lens:?}");
    }
}

#[test]
fn a_change_of_the_size_precedes_the_next_block() {
    let mut pair = Pair::new();
    pair.encoder.set_max_size(100);
    assert_eq!(pair.send(&[]), [0x3f, 0x45]);
    assert!(pair.send(&[]).is_empty());
    // The smallest of several is sent, too.
    pair.encoder.set_max_size(50);
    pair.encoder.set_max_size(0);
    pair.encoder.set_max_size(200);
    assert_eq!(pair.send(&[]), [0x20, 0x3f, 0xa9, 0x01]);
    // Above the maximum.
    pair.encoder.set_max_size(u32::MAX);
    assert_eq!(pair.send(&[]), [0x3f, 0xe1, 0x1f]);
    pair.encoder.set_max_size(8192);
    assert!(pair.send(&[]).is_empty());
}

#[test]
fn a_peer_without_a_table_gets_only_literals() {
    let mut pair = Pair::new();
    let field = header("server", "weir");
    pair.send(std::slice::from_ref(&field));
    pair.send(std::slice::from_ref(&field));
    pair.encoder.set_max_size(0);
    assert_eq!(pair.send(std::slice::from_ref(&field)), b"\x20\x0f\x27\x04weir");
    for _ in 0..3 {
        assert_eq!(pair.send(std::slice::from_ref(&field)), b"\x0f\x27\x04weir");
    }
}

#[test]
fn all_of_many_repeated_fields_are_found() {
    let mut pair = Pair::new();
    let fields: Vec<_> = (0..16).map(|number| header(&format!("x-{number}"), "value")).collect();
    pair.send(&fields);
    pair.send(&fields);
    assert_eq!(pair.send(&fields).len(), fields.len());
}

#[test]
fn new_fields_evict_the_oldest() {
    let mut pair = Pair::new();
    let fields: Vec<_> = (0..1000).map(|number| header("x-number", &number.to_string())).collect();
    for field in &fields {
        let lens = [(); 3].map(|()| pair.send(std::slice::from_ref(field)).len());
        assert_eq!(lens[2], 1);
    }
    // The newest are found, with few exceptions if many are in one set.
    assert!(pair.send(&fields[960..]).len() < 240);
    assert!(pair.send(&fields[..1]).len() > 3);
}

#[test]
fn memory_of_a_new_encoder_is_only_its_own() {
    assert!(HpackEncoder::new().table.is_none());
    assert!(size_of::<HpackEncoder>() <= 32);
}

fn any_field() -> impl Strategy<Value = HeaderField> {
    let names =
        prop_oneof!["[a-d]{1,2}", "x-[a-z]{1,40}", Just("content-type".to_owned()), Just("date".to_owned())];
    let values = prop_oneof![3 => "[a-c]{0,2}", 1 => "[ -~]{0,600}", 1 => "[x]{30,200}"];
    prop_oneof![
        8 => (names, values, any::<u8>()).prop_map(|(name, value, steer)| {
            let mut value = HeaderValue::from_str(&value).unwrap();
            value.set_sensitive(steer % 8 == 0);
            HeaderField::Header(name.parse::<HeaderName>().unwrap(), value)
        }),
        1 => "[A-Z]{1,5}".prop_map(|method| HeaderField::Method(method.parse().unwrap())),
        1 => "/[a-z]{0,30}".prop_map(|path| HeaderField::Path(path.parse().unwrap())),
        1 => (100_u16..1000).prop_map(|status| HeaderField::Status(StatusCode::from_u16(status).unwrap())),
        1 => "[a-z]{1,10}".prop_map(|name| HeaderField::Authority(name.parse().unwrap())),
        1 => "[a-z]{1,10}".prop_map(|name| HeaderField::Protocol(Protocol::from(&name[..]))),
    ]
}

/// Fields of a message, each of which is one of few, and sizes of the table that the peer chooses before.
fn messages() -> impl Strategy<Value = Vec<(Vec<HeaderField>, Vec<u32>)>> {
    let size = prop_oneof![Just(0_u32), 0_u32..300, 300_u32..5000, any::<u32>()];
    vec(any_field(), 1..80).prop_flat_map(move |pool| {
        let fields = vec(proptest::sample::select(pool), 0..40);
        let sizes = prop_oneof![12 => vec(size.clone(), 0..1), 1 => vec(size.clone(), 1..4)];
        vec((fields, sizes), 0..60)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn messages_are_decoded_to_themselves(messages in messages()) {
        let mut pair = Pair::new();
        for (fields, sizes) in messages {
            for size in sizes {
                pair.encoder.set_max_size(size);
            }
            pair.send(&fields);
            let (size, max) = pair.decoder.table_size();
            prop_assert!(size <= max as usize);
            prop_assert_eq!(max, pair.encoder.max_size);
        }
    }
}
