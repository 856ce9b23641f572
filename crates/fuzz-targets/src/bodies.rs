//! Fuzz target for bodies: the fields do not depend on the pieces in which a body arrives, and are those that `serde_json` finds.

use std::sync::{Arc, LazyLock};

use serde::de::IgnoredAny;
use serde_json::Value;
use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::computed;
use weir_bodies::fields::{FieldMask, FieldName, FieldSet, GraphqlComplexity, Records};
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;

use super::split_selector;

/// More than one of these bytes is read of compressed content.
const MAX_CONTENT: usize = 1 << 16;

static FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
    let json = |path: &str| FieldName::Json(Arc::new(path.parse().expect("a path")));
    FieldSet::new([json("model"), json("a.b"), json("items[1].id"), FieldName::Form("user".into())])
});

/// A body has one reading.
pub fn body(data: &[u8]) {
    let (selector, body) = split_selector(data);
    match selector % 6 {
        0 => json(body),
        1 => drop(assert_same_in_pieces("application/x-www-form-urlencoded", body)),
        5 => graphql(body),
        coding => {
            let coding = [Coding::Gzip, Coding::Brotli, Coding::Zstd][usize::from(coding) - 2];
            let mut read = 0;
            let length = coding.decode(body, MAX_CONTENT, |piece| {
                read += piece.len();
                Ok(())
            });
            let length = length.ok();
            assert!(read <= MAX_CONTENT && length.is_none_or(|length| length == read));
        }
    }
}

fn json(body: &[u8]) {
    let read = assert_same_in_pieces("application/json", body);
    let text = std::str::from_utf8(body).ok();
    let is_valid = text.is_some_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    match read {
        Ok(records) => {
            assert!(is_valid, "only Weir accepts {}", body.escape_ascii());
            // It has no value for some valid documents, such as those with a lone surrogate.
            if let Ok(Value::Object(object)) = serde_json::from_slice(body) {
                let expected = object.get("model").and_then(Value::as_str);
                let found = records[0][0].as_ref().map(|value| &*value.text);
                assert!(expected.is_none() || found == expected, "{}", body.escape_ascii());
            }
        }
        Err(Unreadable::Invalid) => {
            let has_surrogate = text.is_some_and(|text| text.contains("\\u") || text.contains("\\U"));
            assert!(!is_valid || has_surrogate, "only Weir rejects {}", body.escape_ascii());
        }
        Err(_) => {}
    }
}

/// A document has a complexity or is unreadable, and the same by the body as by the URL.
fn graphql(document: &[u8]) {
    let Ok(query) = std::str::from_utf8(document) else { return };
    let complexity = GraphqlComplexity { max_depth: 15, lists: ["first", "limit"].map(Into::into).into() };
    let fields = FieldSet::new([FieldName::Graphql(Arc::new(complexity))]);
    let wanted = FieldMask::of(0);
    let body = serde_json::json!({ "query": query, "variables": { "n": 3 } }).to_string();
    let mut reader = BodyReader::new(&fields, wanted, [b"application/json".as_slice()]).expect("JSON");
    let by_body = reader
        .read(&fields, body.as_bytes())
        .and_then(|()| reader.finish(&fields, None))
        .map(|records| complexity_of(&records));
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let url =
        UrlParameters::read(&format!("query={encoded}&variables=%7B%22n%22:3%7D")).expect("one of each");
    let by_url = computed::without_body(&fields, wanted, url.as_ref()).map(|records| complexity_of(&records));
    assert_eq!(by_body, by_url, "{query}");
}

fn complexity_of(records: &Records) -> Option<String> {
    records[0][0].as_ref().map(|value| value.text.to_string())
}

/// Reads a body at once and in pieces of one, two and seven bytes.
fn assert_same_in_pieces(content_type: &str, body: &[u8]) -> Result<Records, Unreadable> {
    // Of some fields, all are known before the end.
    let masks = [FieldMask::ALL, FieldMask::of(0), FieldMask::of(0) | FieldMask::of(1)];
    let [whole, ..] = masks.map(|wanted| {
        let whole = read_in(content_type, wanted, body.chunks(body.len().max(1)));
        for size in [1, 2, 7] {
            let in_pieces = read_in(content_type, wanted, body.chunks(size));
            assert_eq!(in_pieces, whole, "in pieces of {size} bytes");
        }
        whole
    });
    whole
}

/// Reads a body in these pieces, as the proxy does: what is known before the end holds if the rest is readable.
fn read_in<'b>(
    content_type: &str,
    wanted: FieldMask,
    pieces: impl Iterator<Item = &'b [u8]>,
) -> Result<Records, Unreadable> {
    let mut reader = BodyReader::new(&FIELDS, wanted, [content_type.as_bytes()])?;
    let mut known = None;
    for piece in pieces {
        reader.read(&FIELDS, piece)?;
        if known.is_none() {
            known = reader.known(&FIELDS, None)?;
        }
    }
    let read = reader.finish(&FIELDS, None)?;
    Ok(known.unwrap_or(read))
}
