//! The JSON in which Central Dogma sends a file, for `GET /api/v1/projects/P/repos/R/contents/FILE`: an
//! entry, or a revision with an entry if the request had an `If-None-Match`.

use serde::Deserialize;
use serde_json::Value;

/// A file taken from its envelope.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EnvelopeContent {
    /// The content of the file.
    pub(super) text: String,
    /// The revision of the repository, as the entity tag for `If-None-Match`.
    pub(super) etag: Box<str>,
}

#[derive(Deserialize)]
struct WatchEnvelope {
    revision: u64,
    entry: EnvelopeEntry,
}

#[derive(Deserialize)]
struct EnvelopeEntry {
    revision: u64,
    path: String,
    content: Option<Value>,
    #[serde(rename = "rawContent")]
    raw_content: Option<String>,
}

/// Returns the file in `body`, if that is such an envelope. A configuration never has a `revision` and a
/// `path`.
pub(super) fn parse(body: &str) -> Option<EnvelopeContent> {
    let (revision, entry) = match serde_json::from_str::<WatchEnvelope>(body) {
        Ok(watched) => (watched.revision, watched.entry),
        Err(_) => {
            let entry: EnvelopeEntry = serde_json::from_str(body).ok()?;
            (entry.revision, entry)
        }
    };
    let text = match (entry.raw_content, entry.content) {
        (Some(text), _) | (None, Some(Value::String(text))) => text,
        // JSON is valid YAML.
        (None, Some(content)) => serde_json::to_string_pretty(&content).ok()?,
        (None, None) => return None,
    };
    entry.path.starts_with('/').then(|| EnvelopeContent { text, etag: format!("\"{revision}\"").into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(text: &str, etag: &str) -> Option<EnvelopeContent> {
        Some(EnvelopeContent { text: text.to_owned(), etag: etag.into() })
    }

    #[test]
    fn envelope_content_is_extracted_with_the_revision_as_etag() {
        let entry =
            r#"{"revision":3,"path":"/weir.yaml","type":"TEXT","content":"rules: []\n","url":"/api/v1/x"}"#;
        assert_eq!(parse(entry), content("rules: []\n", "\"3\""));
        let watched = format!(r#"{{"revision":4,"entry":{entry}}}"#);
        assert_eq!(parse(&watched), content("rules: []\n", "\"4\""));
        let raw = r#"{"revision":3,"path":"/a.yaml","type":"YAML","rawContent":"rules: []"}"#;
        assert_eq!(parse(raw), content("rules: []", "\"3\""));
        let json = r#"{"revision":3,"path":"/a.json","type":"JSON","content":{"rules":[]}}"#;
        assert_eq!(parse(json), content("{\n  \"rules\": []\n}", "\"3\""));
    }

    #[test]
    fn body_without_envelope_is_not_extracted() {
        for plain in [
            r#"{"rules":[]}"#,
            "rules: []",
            "",
            r#"{"revision":3,"path":"/a"}"#,
            r#"{"revision":3,"path":"a","content":""}"#,
        ] {
            assert_eq!(parse(plain), None, "{plain}");
        }
    }
}
