//! The one change that is ever made to a body: a request for a stream of OpenAI's format asks for its usage as well.
//!
//! Without `stream_options.include_usage`, such a stream does not state the tokens that it has used.

use std::ops::Range;
use std::sync::LazyLock;

use crate::fields::{FieldIndex, FieldMask, FieldName, FieldSet};
use crate::json::{JsonPosition, JsonReader};
use crate::path::Path;

/// Member that asks for the usage.
const INCLUDE_USAGE: &str = "\"include_usage\":true";

const STREAM: FieldIndex = 0;
const OPTIONS: FieldIndex = 1;
const OPTION: FieldIndex = 2;

static FIELDS: LazyLock<FieldSet> = LazyLock::new(|| {
    let paths = ["stream", "stream_options", "stream_options.include_usage"].map(str::parse::<Path>);
    FieldSet::new(paths.into_iter().filter_map(Result::ok).map(|path| FieldName::Json(path.into())))
});

/// A part of a document that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The bytes that are removed.
    pub range: Range<usize>,
    /// What takes their place.
    pub text: String,
}

/// Why a request for a stream stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// It has a digest of its body.
    Digest,
    /// A signature covers the length of its body.
    Signature,
    /// Its body is compressed.
    Coding,
}

/// Positions in a document.
#[derive(Default)]
struct UsageOption {
    /// Whether it asks for a stream.
    streams: bool,
    /// Where the document's first member begins.
    document: Option<usize>,
    /// Where the value of `stream_options` begins.
    options: Option<usize>,
    /// Where the value of `stream_options.include_usage` begins.
    option: Option<usize>,
}

/// Returns the edit of a document, or of its beginning, that makes it ask for the usage. `None` if it does not ask for a stream, asks
/// for the usage already, or is not of this format.
pub fn include_usage(document: &[u8]) -> Option<Edit> {
    let found = UsageOption::find(document)?;
    let rest = |position: usize| document.get(position..).unwrap_or_default();
    let replace = |position: usize, word: &str, text: String| {
        let is_there = rest(position).starts_with(word.as_bytes());
        is_there.then(|| Edit { range: position..position + word.len(), text })
    };
    let member = |begin: usize, member: &str| {
        let is_only = rest(begin).trim_ascii_start().starts_with(b"}");
        Edit { range: begin..begin, text: format!("{member}{}", if is_only { "" } else { "," }) }
    };
    match found {
        UsageOption { streams: false, .. } => None,
        UsageOption { option: Some(value), .. } => {
            let scalar = scalar(rest(value))?;
            let edit = || Edit { range: value..value + scalar.len(), text: "true".to_owned() };
            (scalar != b"true").then(edit)
        }
        UsageOption { options: Some(value), .. } if rest(value).starts_with(b"{") => {
            Some(member(value + 1, INCLUDE_USAGE))
        }
        UsageOption { options: Some(value), .. } => replace(value, "null", format!("{{{INCLUDE_USAGE}}}")),
        UsageOption { document, .. } => {
            Some(member(document?, &format!("\"stream_options\":{{{INCLUDE_USAGE}}}")))
        }
    }
}

/// Returns the scalar with which `text` begins.
fn scalar(text: &[u8]) -> Option<&[u8]> {
    let length = match text.first()? {
        b'{' | b'[' => return None,
        b'"' => {
            let mut is_escaped = false;
            let end = text[1..].iter().position(|byte| {
                let ends = *byte == b'"' && !is_escaped;
                is_escaped = *byte == b'\\' && !is_escaped;
                ends
            });
            2 + end?
        }
        _ => text.iter().position(|byte| b",} \t\r\n".contains(byte))?,
    };
    Some(&text[..length])
}

impl Unchanged {
    /// All reasons, in order of declaration.
    pub const ALL: [Self; 3] = [Self::Digest, Self::Signature, Self::Coding];

    /// Returns the name of the reason in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Digest => "digest",
            Self::Signature => "signature",
            Self::Coding => "coding",
        }
    }
}

impl UsageOption {
    fn find(document: &[u8]) -> Option<Self> {
        let (mut found, mut reader, mut read) = (Self::default(), JsonReader::new(FieldMask::default()), 0);
        // What matters follows a colon or a brace, so no value is kept.
        for end in memchr::memchr2_iter(b':', b'{', document).map(|position| position + 1) {
            reader.read(&FIELDS, &document[read..end]).ok()?;
            read = end;
            let value = || end + document[end..].len() - document[end..].trim_ascii_start().len();
            match reader.position(&FIELDS) {
                Some(JsonPosition::Document) => found.document = Some(end),
                // Some services take any other value for true.
                Some(JsonPosition::Value(STREAM)) => {
                    let is = |word: &str| document[value()..].starts_with(word.as_bytes());
                    found.streams = !is("false") && !is("null");
                }
                Some(JsonPosition::Value(OPTIONS)) => found.options = Some(value()),
                Some(JsonPosition::Value(OPTION)) => found.option = Some(value()),
                Some(JsonPosition::Value(_)) | None => {}
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn edited(document: &str) -> Option<String> {
        let Edit { range, text } = include_usage(document.as_bytes())?;
        let mut edited = document.to_owned();
        edited.replace_range(range, &text);
        Some(edited)
    }

    #[test]
    fn streams_are_asked_for_their_usage() {
        let option = r#""stream_options":{"include_usage":true}"#;
        for (document, expected) in [
            (r#"{"stream":true}"#, format!("{{{option},\"stream\":true}}")),
            (r#" { "stream" : true } "#, format!(" {{{option}, \"stream\" : true }} ")),
            (
                r#"{"stream":true,"stream_options":null}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#.into(),
            ),
            (
                r#"{"stream":true,"stream_options": { } }"#,
                r#"{"stream":true,"stream_options": {"include_usage":true } }"#.into(),
            ),
            (
                r#"{"stream_options":{"include_usage": false},"stream":true}"#,
                r#"{"stream_options":{"include_usage": true},"stream":true}"#.into(),
            ),
            (
                r#"{"stream_options":{"include_usage":"o\"ff"},"stream":1}"#,
                r#"{"stream_options":{"include_usage":true},"stream":1}"#.into(),
            ),
            (
                r#"{"stream_options":{"x":":{"},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"x":":{"},"stream":true}"#.into(),
            ),
            (
                r#"{"messages":[{"stream":false}],"stream":true}"#,
                format!(r#"{{{option},"messages":[{{"stream":false}}],"stream":true}}"#),
            ),
        ] {
            assert_eq!(edited(document), Some(expected), "{document}");
        }
    }

    #[test]
    fn other_requests_stay_as_they_are() {
        for document in [
            "",
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
            r#"{"stream":true,"stream_options":{"include_usage":{}}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"stream":true,"stream_options":[]}"#,
            r#"{"stream":true,"stream":true}"#,
            r#"[{"stream":true}]"#,
            r#"{"a":{"stream":true}}"#,
        ] {
            assert_eq!(edited(document), None, "{document}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn nothing_else_changes(
            options in prop::option::of(prop::sample::select(vec!["null", "{}", r#"{"x":1}"#, r#"{"include_usage":false}"#, r#"{"x":[{}],"include_usage":true}"#])),
            keys in prop::collection::vec("[a-d{:\"\\\\]{1,4}", 0..4),
            pretty: bool,
        ) {
            let mut document = json!({ "stream": true });
            for key in keys {
                document[key] = json!({ "stream": false, "stream_options": [{ "include_usage": false }] });
            }
            if let Some(options) = options {
                document["stream_options"] = serde_json::from_str(options).expect("JSON");
            }
            let text = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
            let text = text.expect("JSON");
            let edited: Value = serde_json::from_str(&edited(&text).unwrap_or(text)).expect("still JSON");
            let mut expected = document;
            if !expected["stream_options"].is_object() {
                expected["stream_options"] = json!({});
            }
            expected["stream_options"]["include_usage"] = true.into();
            prop_assert_eq!(edited, expected);
        }
    }
}
