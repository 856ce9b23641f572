use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use proptest::prelude::*;

use super::super::MAX_TABLE_SIZE;
use super::super::field::Protocol;
use super::super::fuzzing::{self, Fields};
use super::{DecodeError, FieldSink, HeaderField, HpackDecoder};
use crate::http2::malformation::Malformation;

/// Parses hexadecimal digits; white space is ignored.
fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<HeaderField>, DecodeError> {
    let mut fields = Fields::default();
    decoder.decode(block, &mut fields)?;
    Ok(fields.accepted)
}

/// Decodes blocks with a new decoder. Returns the fields of the last one.
fn decode_all(blocks: &[&str]) -> Result<Vec<HeaderField>, DecodeError> {
    let mut decoder = HpackDecoder::new();
    blocks.iter().try_fold(Vec::new(), |_, block| decode(&mut decoder, &hex(block)))
}

/// The block of a literal that enters the table, with a new name.
fn incremental(name: &[u8], value: &[u8]) -> Vec<u8> {
    literal(0x40, name, value)
}

fn literal(first: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![first];
    for string in [name, value] {
        super::integer::encode(0, 7, string.len(), &mut block);
        block.extend_from_slice(string);
    }
    block
}

fn field(name: &str, value: &str) -> HeaderField {
    match name {
        ":method" => HeaderField::Method(value.parse().unwrap()),
        ":scheme" => HeaderField::Scheme(value.parse().unwrap()),
        ":authority" => HeaderField::Authority(value.parse().unwrap()),
        ":path" => HeaderField::Path(value.parse().unwrap()),
        ":status" => HeaderField::Status(value.parse().unwrap()),
        _ => HeaderField::Header(name.parse().unwrap(), value.parse().unwrap()),
    }
}

fn request(scheme: &str, path: &str, others: &[(&str, &str)]) -> Vec<HeaderField> {
    let head = [(":method", "GET"), (":scheme", scheme), (":path", path), (":authority", "www.example.com")];
    head.iter().chain(others).map(|(name, value)| field(name, value)).collect()
}

fn response(status: &str, date: &str, others: &[(&str, &str)]) -> Vec<HeaderField> {
    let head = [
        (":status", status),
        ("cache-control", "private"),
        ("date", date),
        ("location", "https://www.example.com"),
    ];
    head.iter().chain(others).map(|(name, value)| field(name, value)).collect()
}

#[test]
fn each_representation_is_decoded() {
    // RFC 7541, appendix C.2.
    let custom = decode_all(&["400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572"]);
    assert_eq!(custom, Ok(vec![field("custom-key", "custom-header")]));
    let path = decode_all(&["040c 2f73 616d 706c 652f 7061 7468"]);
    assert_eq!(path, Ok(vec![field(":path", "/sample/path")]));
    let password = decode_all(&["1008 7061 7373 776f 7264 0673 6563 7265 74"]);
    assert_eq!(password, Ok(vec![field("password", "secret")]));
    assert_eq!(decode_all(&["82"]), Ok(vec![field(":method", "GET")]));
}

/// Decodes `blocks` with one decoder, and compares each.
fn assert_decoded(blocks: [&str; 3], expected: [Vec<HeaderField>; 3], sizes: [usize; 3]) {
    let mut decoder = HpackDecoder::new();
    for ((block, expected), size) in blocks.iter().zip(expected).zip(sizes) {
        assert_eq!(decode(&mut decoder, &hex(block)), Ok(expected));
        assert_eq!(decoder.table_size().0, size);
    }
}

#[test]
fn requests_are_decoded() {
    let expected = || {
        [
            request("http", "/", &[]),
            request("http", "/", &[("cache-control", "no-cache")]),
            request("https", "/index.html", &[("custom-key", "custom-value")]),
        ]
    };
    // RFC 7541, appendices C.3 and C.4.
    let plain = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let compressed = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    assert_decoded(plain, expected(), [57, 110, 164]);
    assert_decoded(compressed, expected(), [57, 110, 164]);
}

#[test]
fn responses_are_decoded_with_evictions() {
    let cookie = "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    let expected = || {
        [
            response("302", "Mon, 21 Oct 2013 20:13:21 GMT", &[]),
            response("307", "Mon, 21 Oct 2013 20:13:21 GMT", &[]),
            response(
                "200",
                "Mon, 21 Oct 2013 20:13:22 GMT",
                &[("content-encoding", "gzip"), ("set-cookie", cookie)],
            ),
        ]
    };
    // RFC 7541, appendices C.5 and C.6, with the update to 256 bytes that both presuppose.
    let plain = [
        "3fe101 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120
         474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 666f
         6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b
         2076 6572 7369 6f6e 3d31",
    ];
    let compressed = [
        "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718
         63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335
         dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    assert_decoded(plain, expected(), [222, 222, 215]);
    assert_decoded(compressed, expected(), [222, 222, 215]);
}

#[test]
fn a_value_that_is_never_indexed_is_sensitive() {
    for (first, expected) in [(0x00, false), (0x10, true), (0x40, false)] {
        let fields = decode(&mut HpackDecoder::new(), &literal(first, b"password", b"secret")).unwrap();
        let [HeaderField::Header(_, value)] = &fields[..] else { panic!("{fields:?}") };
        assert_eq!(value.is_sensitive(), expected);
    }
}

#[test]
fn an_index_without_an_entry_is_an_error() {
    assert_eq!(decode_all(&["80"]), Err(DecodeError::InvalidIndex(0)));
    assert_eq!(decode_all(&["be"]), Err(DecodeError::InvalidIndex(62)));
    assert_eq!(decode_all(&["7f 00 00"]), Err(DecodeError::InvalidIndex(63)));
    assert_eq!(decode_all(&["ff ff ff ff ff 07"]), Err(DecodeError::InvalidIndex(0x7fff_ffff + 127)));
    assert_eq!(decode_all(&["40 01 61 01 62", "be bf"]), Err(DecodeError::InvalidIndex(63)));
}

#[test]
fn a_block_that_ends_within_a_field_is_truncated() {
    for block in ["ff", "40", "40 01", "40 01 61", "40 01 61 02 62", "04", "00 85 a8", "3f"] {
        assert_eq!(decode_all(&[block]), Err(DecodeError::Truncated), "{block}");
    }
}

#[test]
fn the_size_can_only_be_updated_at_the_start_of_a_block() {
    assert_eq!(decode_all(&["20 3f e1 1f 82"]), Ok(vec![field(":method", "GET")]));
    assert_eq!(decode_all(&["82 20"]), Err(DecodeError::LateSizeUpdate));
}

#[test]
fn the_table_cannot_exceed_the_advertised_size() {
    assert_eq!(decode_all(&["3f e1 1f"]), Ok(vec![]));
    assert_eq!(decode_all(&["3f e2 1f"]), Err(DecodeError::TableTooLarge(MAX_TABLE_SIZE + 1)));
}

#[test]
fn a_smaller_table_evicts_the_oldest_fields() {
    let blocks = ["40 01 61 01 62", "40 01 63 01 64"];
    assert_eq!(decode_all(&[blocks[0], blocks[1], "bf"]), Ok(vec![field("a", "b")]));
    // One field of 34 bytes.
    assert_eq!(decode_all(&[blocks[0], blocks[1], "3f 03 be"]), Ok(vec![field("c", "d")]));
    assert_eq!(decode_all(&[blocks[0], blocks[1], "3f 03 bf"]), Err(DecodeError::InvalidIndex(63)));
    assert_eq!(decode_all(&[blocks[0], "20", "be"]), Err(DecodeError::InvalidIndex(62)));
}

#[test]
fn a_field_that_exceeds_the_table_empties_it() {
    let mut decoder = HpackDecoder::new();
    decode(&mut decoder, &incremental(b"a", b"b")).unwrap();
    let large = vec![b'x'; MAX_TABLE_SIZE as usize - 32];
    assert_eq!(decode(&mut decoder, &incremental(b"a", &large)).unwrap().len(), 1);
    assert_eq!(decoder.table_size().0, 0);
    // One byte less fits exactly.
    decode(&mut decoder, &incremental(b"a", &large[1..])).unwrap();
    assert_eq!(decoder.table_size().0, MAX_TABLE_SIZE as usize);
}

#[test]
fn a_name_can_refer_to_the_entry_that_its_field_evicts() {
    let mut decoder = HpackDecoder::new();
    let value = vec![b'x'; MAX_TABLE_SIZE as usize - 33];
    decode(&mut decoder, &incremental(b"a", &value)).unwrap();
    assert_eq!(decode(&mut decoder, &hex("7e 01 79")), Ok(vec![field("a", "y")]));
    assert_eq!(decoder.table_size().0, 34);
}

#[test]
fn fields_that_the_rfc_forbids_are_malformed() {
    for (name, value) in [
        ("Accept", "*/*"),
        ("x-Upper", "1"),
        ("", "1"),
        ("a b", "1"),
        (":unknown", "1"),
        (":Method", "GET"),
        (":", ""),
        (":method", ""),
        (":method", "G T"),
        (":scheme", "ht\ntp"),
        (":authority", "a\0b"),
        (":path", ""),
        (":path", "path"),
        (":path", "http://example.com/"),
        (":path", "/a b"),
        (":path", "*x"),
        (":status", "20"),
        (":status", "2000"),
        (":status", "abc"),
        (":status", "099"),
        (":protocol", ""),
        (":protocol", "web socket"),
        ("x-value", "a\nb"),
        ("x-value", "a\rb"),
        ("x-value", "a\0b"),
        ("x-value", "\x7f"),
    ] {
        for first in [0x00, 0x10, 0x40] {
            let fields = decode(&mut HpackDecoder::new(), &literal(first, name.as_bytes(), value.as_bytes()));
            let is_malformed = matches!(fields.as_deref(), Ok([HeaderField::Malformed(_)]));
            assert!(is_malformed, "{name:?}: {value:?}: {fields:?}");
        }
    }
}

#[test]
fn valid_fields_are_parsed() {
    for (name, value, expected) in [
        (":method", "PURGE", HeaderField::Method(Method::from_bytes(b"PURGE").unwrap())),
        (":scheme", "", HeaderField::OtherScheme),
        (":scheme", "ht tp", HeaderField::OtherScheme),
        (":scheme", "1http", HeaderField::OtherScheme),
        (":authority", "", HeaderField::OtherAuthority),
        (":authority", "a b", HeaderField::OtherAuthority),
        (":authority", "example.com/path", HeaderField::OtherAuthority),
        (":scheme", "ws", HeaderField::Scheme(Scheme::try_from("ws").unwrap())),
        (":authority", "[::1]:80", HeaderField::Authority(Authority::from_static("[::1]:80"))),
        (":path", "*", HeaderField::Path(PathAndQuery::from_static("*"))),
        (":path", "/a?b=c", HeaderField::Path(PathAndQuery::from_static("/a?b=c"))),
        (":status", "999", HeaderField::Status(StatusCode::from_u16(999).unwrap())),
        (":protocol", "websocket", HeaderField::Protocol(Protocol::from_static("websocket"))),
        ("x", "", HeaderField::Header(HeaderName::from_static("x"), HeaderValue::from_static(""))),
        (
            "x",
            "\u{fc}",
            HeaderField::Header(HeaderName::from_static("x"), HeaderValue::from_bytes(b"\xc3\xbc").unwrap()),
        ),
    ] {
        let fields = decode(&mut HpackDecoder::new(), &incremental(name.as_bytes(), value.as_bytes()));
        assert_eq!(fields, Ok(vec![expected]), "{name}: {value}");
    }
}

#[test]
fn a_malformed_field_keeps_its_place_and_its_name() {
    let mut decoder = HpackDecoder::new();
    decode(&mut decoder, &incremental(b"a", b"b")).unwrap();
    decode(&mut decoder, &incremental(b":path", b"relative")).unwrap();
    decode(&mut decoder, &incremental(b"Upper", b"1")).unwrap();
    assert_eq!(decoder.table_size().0, 34 + 45 + 38);
    let fields = decode(&mut decoder, &hex("be bf c0 0f30 02 2f61 0f2f 01 32")).unwrap();
    let expected = [
        HeaderField::Malformed(Malformation::FieldName),
        HeaderField::Malformed(Malformation::Path),
        field("a", "b"),
        field(":path", "/a"),
        HeaderField::Malformed(Malformation::FieldName),
    ];
    assert_eq!(fields, expected);
}

#[test]
fn fields_that_are_not_accepted_enter_the_table() {
    struct Limit(usize, Vec<HeaderField>);
    impl FieldSink for Limit {
        fn accepts(&mut self, size: usize) -> bool {
            size <= self.0
        }
        fn push(&mut self, field: HeaderField) {
            self.1.push(field);
        }
    }
    let mut decoder = HpackDecoder::new();
    let mut block = incremental(b"long", b"value");
    block.extend(incremental(b"a", b"b"));
    let mut limit = Limit(34, Vec::new());
    decoder.decode(&block, &mut limit).unwrap();
    assert_eq!(limit.1, [field("a", "b")]);
    assert_eq!(decode(&mut decoder, &hex("bf")), Ok(vec![field("long", "value")]));
}

/// A decoder whose newest entry is a malformed field of about 4000 bytes.
fn with_malformed_entry(name: &[u8], value: &[u8]) -> HpackDecoder {
    let mut decoder = HpackDecoder::new();
    decode(&mut decoder, &incremental(name, value)).unwrap();
    decoder
}

#[test]
fn references_to_a_malformed_name_neither_copy_nor_parse_it() {
    let upper = [b'X'; 4000];
    let lower = [b'x'; 3990];
    let pseudo = [&b":"[..], &lower].concat();
    for (name, value) in [(&upper[..], &b""[..]), (&lower, b"\0"), (&pseudo, b"")] {
        let mut decoder = with_malformed_entry(name, value);
        let place = |decoder: &HpackDecoder| match decoder.entry(62).unwrap().name() {
            super::Name::Malformed(raw) => raw.as_ptr(),
            // A valid name shares its memory in the same way, which the `http` crate does not show.
            name => name.as_bytes().as_ptr(),
        };
        let before = place(&decoder);
        // A new entry with the name of the last one, and a field without an entry.
        for _ in 0..1000 {
            assert!(decode(&mut decoder, b"\x7e\x00\x0f\x2f\x00").is_ok());
        }
        assert_eq!(place(&decoder), before, "{} bytes were copied", name.len());
    }
}

#[test]
fn after_a_failure_only_fields_that_enter_the_table_are_decoded() {
    #[derive(Default)]
    struct Failed(bool);
    impl FieldSink for Failed {
        fn accepts(&mut self, _: usize) -> bool {
            !self.0
        }
        fn push(&mut self, _: HeaderField) {
            assert!(!self.0, "nothing is accepted");
            self.0 = true;
        }
        fn has_failed(&self) -> bool {
            self.0
        }
    }
    let mut decoder = HpackDecoder::new();
    // The second field has a name with invalid padding, which is not looked into. The third one enters the table.
    let block = [&literal(0, b"a", b"b")[..], &hex("00 81 ff 01 61"), &incremental(b"kept", b"1")].concat();
    assert_eq!(decoder.decode(&block, &mut Failed::default()), Ok(()));
    assert_eq!(decode(&mut decoder, &hex("be")), Ok(vec![field("kept", "1")]));
    // Lengths and indices are always checked: what follows depends on them.
    for cut in 0..block.len() {
        let result = HpackDecoder::new().decode(&block[..cut], &mut Failed::default());
        assert_eq!(result.is_ok(), matches!(cut, 0 | 5 | 10), "{cut}");
    }
    let mut unknown = Failed(true);
    assert_eq!(decoder.decode(&hex("0f40 00"), &mut unknown), Err(DecodeError::InvalidIndex(79)));
}

#[test]
fn errors_are_found_in_fields_that_are_not_accepted() {
    // Padding of eight bits.
    fuzzing::header_blocks(&hex("00 01 61 81 ff"));
    assert_eq!(decode_all(&["00 01 61 81 ff"]), Err(DecodeError::InvalidHuffman));
}

#[test]
fn memory_of_a_new_decoder_is_only_its_own() {
    assert_eq!(HpackDecoder::new().table.capacity(), 0);
    assert!(size_of::<HpackDecoder>() <= 40);
}

/// Bytes that are likely to be valid for several fields.
fn plausible_block() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof!["[a-c]{0,3}", Just(":path".to_owned()), Just("Upper".to_owned())];
    let field = prop_oneof![
        (0x80_u8..=0xff).prop_map(|index| vec![index]),
        (0x80_u8..=0x90).prop_map(|index| vec![index]),
        (prop_oneof![Just(0x40), Just(0x00), Just(0x10)], name, "[/a-z]{0,60}")
            .prop_map(|(first, name, value)| literal(first, name.as_bytes(), value.as_bytes())),
        (0x41_u8..=0x7e, 0_usize..20)
            .prop_map(|(first, len)| [vec![first, len as u8], vec![b'/'; len]].concat()),
        (0x20_u8..=0x3e).prop_map(|size| vec![0xff, 0, size]),
        Just(vec![0xff, 0, 0x3f, 0xe1, 0x1f]),
        Just(vec![0xff, 0]),
    ];
    proptest::collection::vec(field, 0..60).prop_map(|fields| fields.concat())
}

proptest! {
    #[test]
    fn arbitrary_bytes_keep_the_invariants(data: Vec<u8>) {
        fuzzing::header_blocks(&data);
    }

    #[test]
    fn plausible_blocks_keep_the_invariants(data in plausible_block()) {
        fuzzing::header_blocks(&data);
    }
}
