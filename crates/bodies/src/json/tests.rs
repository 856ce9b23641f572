//! The reader beside `serde_json`, which reads whole documents.

use std::sync::Arc;

use proptest::prelude::*;
use serde::de::IgnoredAny;
use serde_json::Value as Json;

use super::*;
use crate::fields::{FieldName, Value};
use crate::path::{Path, Step};
use crate::reader::BodyReader;

fn set(paths: &[&str]) -> FieldSet {
    FieldSet::new(paths.iter().map(|path| FieldName::Json(Arc::new(path.parse().expect("a path")))))
}

fn read_in(
    fields: &FieldSet,
    pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Result<Records, Unreadable> {
    let mut reader = JsonReader::new(FieldMask::ALL);
    for piece in pieces {
        reader.read(fields, piece.as_ref())?;
    }
    reader.finish(fields)
}

/// Reads a document at once, in two pieces split at every byte, and in single bytes: the result is the same.
fn read(fields: &FieldSet, document: &[u8]) -> Result<Records, Unreadable> {
    let whole = read_in(fields, [document]);
    for at in 0..document.len() {
        let (one, other) = document.split_at(at);
        assert_eq!(read_in(fields, [one, other]), whole, "split at {at}");
    }
    assert_eq!(read_in(fields, document.chunks(1)), whole, "in single bytes");
    whole
}

fn texts(paths: &[&str], document: &str) -> Result<Vec<Vec<Option<String>>>, Unreadable> {
    let text = |value: &Option<Value>| value.as_ref().map(|value| value.text.to_string());
    let records = read(&set(paths), document.as_bytes())?;
    Ok(records.iter().map(|record| record.iter().map(text).collect()).collect())
}

fn one(path: &str, document: &str) -> Result<Option<String>, Unreadable> {
    texts(&[path], document).map(|mut records| records.remove(0).remove(0))
}

#[test]
fn fields_are_found_by_their_paths() {
    let document =
        r#" {"a": {"b": [1, {"c": "x"}, null]}, "d.e": true, "f": "\u0041\n\ud83d\ude00", "n": 1.50} "#;
    let paths = ["a.b[0]", "a.b[1].c", "a.b[2]", "[\"d.e\"]", "f", "n", "a", "a.b[3]"];
    let paths = paths.map(|path| path.trim_start_matches('\0'));
    let found = texts(&paths[..3], document).expect("readable");
    assert_eq!(found, [[Some("1".to_owned()), Some("x".to_owned()), None]]);
    assert_eq!(one("f", document), Ok(Some("A\n\u{1f600}".to_owned())));
    assert_eq!(one("n", document), Ok(Some("1.5".to_owned())));
    assert_eq!(one("[\"d.e\"]", document), Ok(Some("true".to_owned())));
    assert_eq!(one("a", document), Ok(None), "an object is no scalar");
    assert_eq!(one("a.b[3]", document), Ok(None));
}

#[test]
fn names_with_escapes_are_the_same_names() {
    assert_eq!(one("model", r#"{"\u006dodel": "x"}"#), Ok(Some("x".to_owned())));
    assert_eq!(one("model", r#"{"model": "x", "mode\u006c": "y"}"#), Err(Unreadable::Duplicate));
}

#[test]
fn second_spellings_of_a_field_are_unreadable() {
    for document in [
        r#"{"model": 1, "model": 2}"#,
        r#"{"model": 1, "Model": 2}"#,
        r#"{"MODEL": 1}"#,
        r#"{"a": {"b": 1}, "model": 1, "a": {"b": 2}}"#,
    ] {
        assert_eq!(texts(&["model", "a.b"], document), Err(Unreadable::Duplicate), "{document}");
    }
    for key in ["model\\u0000", "model\\u0000x", "MODEL\\u0000\u{1f600}\u{1f600}\u{1f600}\u{1f600}"] {
        assert_eq!(one("model", &format!("{{\"{key}\": 1}}")), Err(Unreadable::Duplicate), "{key}");
    }
    assert_eq!(texts(&["tasks"], "{\"ta\u{17f}ks\": 1}"), Err(Unreadable::Duplicate));
    assert_eq!(texts(&["token"], "{\"to\u{212a}en\": 1}"), Err(Unreadable::Duplicate));
    // Elsewhere, and of keys that no rule reads, they are left to the upstream.
    assert_eq!(one("model", r#"{"model": 1, "x": {"model": 2}, "x": 3}"#), Ok(Some("1".to_owned())));
}

#[test]
fn each_element_of_a_batch_has_a_record() {
    let batch = r#"[{"m": "a", "x": [{"m": "no"}]}, 3, {"m": "b"}, [{"m": "no"}], "s", {}]"#;
    let some = |text: &str| vec![Some(text.to_owned())];
    assert_eq!(
        texts(&["m"], batch),
        Ok(vec![some("a"), vec![None], some("b"), vec![None], vec![None], vec![None]])
    );
    assert_eq!(texts(&["m"], "[]"), Ok(Vec::new()));
    let elements = |count| format!("[{}]", vec!["{}"; count].join(","));
    assert_eq!(texts(&["m"], &elements(MAX_BATCH)).map(|records| records.len()), Ok(MAX_BATCH));
    assert_eq!(texts(&["m"], &elements(MAX_BATCH + 1)), Err(Unreadable::TooManyElements));
}

#[test]
fn texts_are_counted() {
    let set = FieldSet::new([FieldName::JsonCount(Arc::new("p".parse().expect("a path")))]);
    let count = |value: &str| {
        let records = read(&set, format!("{{\"p\":{value},\"q\":[1]}}").as_bytes()).expect("readable");
        records[0][0].as_ref().map(|count| count.text.to_string())
    };
    for (value, texts) in [
        (r#""x""#, Some("1")),
        (r#""""#, Some("1")),
        ("[]", Some("1")),
        ("[1, -2, 3e1]", Some("1")),
        (r#"["a", "b"]"#, Some("2")),
        ("[[1, 2], [3], []]", Some("3")),
        (r#"[{"role": ["a", "b"]}, {}]"#, Some("2")),
        ("null", None),
        ("{}", None),
        ("5", None),
        ("true", None),
    ] {
        assert_eq!(count(value).as_deref(), texts, "{value}");
    }
    let both = FieldSet::new([
        FieldName::JsonCount(Arc::new("p".parse().expect("a path"))),
        FieldName::Json(Arc::new("p".parse().expect("a path"))),
        FieldName::Json(Arc::new("p[1].r".parse().expect("a path"))),
    ]);
    let values = |document: &str| {
        let records = read(&both, document.as_bytes()).expect("readable");
        records[0].iter().map(|value| value.as_ref().map(|value| value.text.to_string())).collect::<Vec<_>>()
    };
    assert_eq!(values(r#"{"p":"x"}"#), [Some("1".to_owned()), Some("x".to_owned()), None]);
    assert_eq!(values(r#"{"p":7}"#), [None, Some("7".to_owned()), None]);
    assert_eq!(values(r#"{"p":["x",{"r":3}]}"#), [Some("2".to_owned()), None, Some("3".to_owned())]);
}

#[test]
fn depth_is_bounded() {
    let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
    assert!(read(&set(&["m"]), nested(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(read(&set(&["m"]), nested(MAX_DEPTH + 1).as_bytes()), Err(Unreadable::TooDeep));
}

#[test]
fn what_is_not_json_in_utf8_is_invalid() {
    let documents: [&[u8]; 12] = [
        b"",
        b" ",
        b"\xef\xbb\xbf{}",
        b"{\0}",
        b"\xff\xfe{\0}\0",
        b"{\"m\": \"\xff\"}",
        b"{\"x\": \"\xc3",
        b"{} {}",
        b"{}x",
        b"{'m': 1}",
        b"{\"m\": 1,}",
        b"{\"m\": NaN}",
    ];
    for document in documents {
        assert_eq!(read(&set(&["m"]), document), Err(Unreadable::Invalid), "{}", document.escape_ascii());
    }
}

#[test]
fn lone_surrogates_are_invalid_in_fields_only() {
    assert_eq!(
        one("m", r#"{"m": 1, "x": "\ud800", "y": "\ud800\ud83d\ude00\udc00"}"#),
        Ok(Some("1".to_owned()))
    );
    for document in [r#"{"m": "\ud800"}"#, r#"{"m": "\udc00"}"#, r#"{"m": "\ud800\n"}"#, r#"{"\ud800": 1}"#] {
        assert_eq!(one("m", document), Err(Unreadable::Invalid), "{document}");
    }
}

/// Pieces of documents, valid and not.
fn fragment() -> impl Strategy<Value = String> {
    let strings = prop::sample::select(vec![
        r#""m""#,
        r#""M""#,
        r#""\u006d""#,
        r#""x""#,
        r#""é\ud83d\ude00""#,
        r#""\ud800""#,
        r#""\q""#,
        "\"\n\"",
        r#""""#,
        r#"""#,
    ]);
    let others = prop::sample::select(vec![
        "{", "}", "[", "]", ":", ",", " ", "0", "-", "12", "1.5", "1e", "e3", ".", "01", "true", "nul",
        "null", "false", "\u{feff}", "\0",
    ]);
    prop_oneof![2 => strings, 3 => others].prop_map(str::to_owned)
}

fn document() -> impl Strategy<Value = Json> {
    let scalar = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "\\PC{0,4}".prop_map(Json::from),
        any::<String>().prop_map(Json::from),
    ];
    let key = prop_oneof![Just("m".to_owned()), Just("n".to_owned()), "\\PC{0,3}"];
    scalar.prop_recursive(6, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    })
}

/// Returns what `serde_json` has for a path, in the words of the reader.
fn expected(document: &Json, path: &Path) -> Option<Value> {
    let step = |value: &'_ Json, step: &Step| match step {
        Step::Key(key) => value.get(&**key).cloned(),
        Step::Index(index) => value.as_array()?.get(*index as usize).cloned(),
    };
    let found = path.steps().iter().try_fold(document.clone(), |value, next| step(&value, next))?;
    let (kind, text) = match &found {
        Json::String(text) => (Kind::String, text.clone()),
        Json::Number(number) => {
            let canonical = number::canonical(number.to_string().as_bytes()).expect("a number");
            (Kind::Number, String::from_utf8(canonical).expect("text"))
        }
        Json::Bool(value) => (Kind::Bool, value.to_string()),
        Json::Null | Json::Array(_) | Json::Object(_) => return None,
    };
    Some(Value { kind, text: text.into() })
}

/// Reads the fields `wanted` as the proxy does: what is known before the end holds if the rest is readable.
fn read_as_it_arrives<'b>(
    fields: &FieldSet,
    wanted: FieldMask,
    pieces: impl Iterator<Item = &'b [u8]>,
) -> Result<Records, Unreadable> {
    let mut reader = BodyReader::new(fields, wanted, [b"application/json".as_slice()])?;
    let mut known = None;
    for piece in pieces {
        reader.read(fields, piece)?;
        if known.is_none() {
            known = reader.known(fields, None)?;
        }
    }
    let read = reader.finish(fields, None)?;
    Ok(known.unwrap_or(read))
}

fn has_similar_keys(document: &Json) -> bool {
    document.as_object().is_some_and(|object| object.keys().any(|key| ["M", "N"].contains(&&**key)))
}

proptest! {
    #[test]
    fn values_are_those_of_serde_json(document in document(), pretty in any::<bool>(), cut in any::<prop::sample::Index>()) {
        let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) }.expect("text");
        let paths = ["m", "n", "m.n", "n[0]", "m.m[1].n"];
        let fields = set(&paths);
        let (one, other) = text.as_bytes().split_at(cut.index(text.len()));
        let found = read_in(&fields, [one, other]);
        let documents: Vec<&Json> = document.as_array().map_or_else(|| vec![&document], |batch| batch.iter().collect());
        // Only keys on a path are compared without case.
        if found == Err(Unreadable::Duplicate) {
            prop_assert!(text.contains("\"M\"") || text.contains("\"N\""));
        } else {
            prop_assert!(!documents.iter().any(|document| has_similar_keys(document)));
            let records = found.expect("valid");
            prop_assert_eq!(records.len(), documents.len());
            for (record, document) in records.iter().zip(documents) {
                for (value, path) in record.iter().zip(&paths) {
                    prop_assert_eq!(value, &expected(document, &path.parse().expect("a path")), "{} of {}", path, text);
                }
            }
        }
    }

    #[test]
    fn what_is_known_before_the_end_is_what_the_whole_says(
        document in document(),
        behind in prop::sample::select(vec!["", ",\"m\":1", ",\"M\":1", ",\"m\\u0000\":1", ",\"x\":[", "}", "\u{feff}"]),
        size in 1_usize..9,
    ) {
        let whole = serde_json::json!({ "m": document, "n": "x" }).to_string();
        let text = format!("{}{behind}}}", &whole[..whole.len() - 1]);
        let (fields, wanted) = (set(&["m", "n", "m.n"]), FieldMask::of(1));
        let at_once = read_as_it_arrives(&fields, wanted, std::iter::once(text.as_bytes()));
        let in_pieces = read_as_it_arrives(&fields, wanted, text.as_bytes().chunks(size));
        prop_assert_eq!(&in_pieces, &at_once, "{}", text);
        if behind.is_empty() && !has_similar_keys(&document) {
            let records = in_pieces.expect("valid");
            let expected = expected(&serde_json::from_str(&text).expect("valid"), &"n".parse().expect("a path"));
            prop_assert_eq!(&*records[0], &[None, expected, None], "{}", text);
        } else if !behind.is_empty() {
            prop_assert!(in_pieces.is_err(), "{}", text);
        }
    }

    #[test]
    fn validity_is_that_of_serde_json(fragments in prop::collection::vec(fragment(), 0..12)) {
        let text = fragments.concat();
        let found = read(&set(&["q"]), text.as_bytes());
        prop_assert_eq!(found.is_ok(), serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{}: {:?}", text, found);
    }

    #[test]
    fn mutated_documents_are_valid_for_both_or_neither(
        document in document(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = serde_json::to_vec(&document).expect("text");
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let found = read_in(&set(&["q"]), [&bytes]);
        let is_valid = std::str::from_utf8(&bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
        prop_assume!(found != Err(Unreadable::Duplicate));
        prop_assert_eq!(found.is_ok(), is_valid, "{}", bytes.escape_ascii());
    }
}
