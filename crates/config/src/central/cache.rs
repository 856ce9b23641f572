//! The last good document on disk: written atomically, and readable only by its owner.
//!
//! Three header lines, which are YAML comments, precede the document as it was received. The header contains
//! the URL, the validators and a digest, so that a damaged file or one of another URL is not used.

use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::document::{FetchedDocument, Validators};
use weir_net::atomic_file;
use weir_net::http_client::HttpUrl;

const TITLE: &str = "# Fetched by Weir, which starts with it while the server is away. Not to be edited.";

/// Maximum size in bytes, with the header.
const MAX_CACHE_SIZE: u64 = super::client::MAX_DOCUMENT_SIZE as u64 + 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CacheHeader {
    url: String,
    etag: Option<String>,
    modified: Option<String>,
    sha256: String,
}

/// Loads the document of `url` that is cached in `file`; `None` if there is no such file.
///
/// # Errors
/// Returns why the file is not used: it cannot be read, is damaged, or is of another URL.
pub fn load(file: &Path, url: &HttpUrl) -> Result<Option<FetchedDocument>, String> {
    let opened = atomic_file::open(file).map_err(|error| format!("not readable: {error}"))?;
    let Some(opened) = opened else { return Ok(None) };
    let mut content = String::new();
    opened
        .take(MAX_CACHE_SIZE)
        .read_to_string(&mut content)
        .map_err(|error| format!("not readable: {error}"))?;
    parse(&content, url).map(Some)
}

pub(super) fn parse(content: &str, url: &HttpUrl) -> Result<FetchedDocument, String> {
    let parts = content.strip_prefix(TITLE).and_then(|rest| rest.strip_prefix("\n# "));
    let parts = parts.and_then(|rest| rest.split_once('\n'));
    let Some((header, text)) = parts else { return Err("not a cached configuration".to_owned()) };
    let header: CacheHeader =
        serde_json::from_str(header).map_err(|error| format!("damaged header: {error}"))?;
    if header.sha256 != sha256_hex(text) {
        return Err("damaged: wrong digest".to_owned());
    }
    if header.url != url.full_url() {
        return Err("fetched from another URL".to_owned());
    }
    let validators =
        Validators { etag: header.etag.map(Into::into), last_modified: header.modified.map(Into::into) };
    Ok(FetchedDocument { text: text.into(), url: url.without_query().into(), validators })
}

/// Stores `document` of `url` in `file`, replacing its content.
///
/// # Errors
/// Returns the error of the file system.
pub fn store(file: &Path, url: &HttpUrl, document: &FetchedDocument) -> io::Result<()> {
    let text = encode(url, document)?;
    atomic_file::replace(file, |out| out.write_all(text.as_bytes()).map(Some)).map(drop)
}

pub(super) fn encode(url: &HttpUrl, document: &FetchedDocument) -> io::Result<String> {
    let Validators { etag, last_modified } = document.validators.clone();
    let header = CacheHeader {
        url: url.full_url(),
        etag: etag.map(Into::into),
        modified: last_modified.map(Into::into),
        sha256: sha256_hex(&document.text),
    };
    // JSON on one line, so that nothing that a server sends can end the comment.
    Ok(format!("{TITLE}\n# {}\n{}", serde_json::to_string(&header)?, document.text))
}

fn sha256_hex(text: &str) -> String {
    let mut hex = String::new();
    for byte in digest(&SHA256, text.as_bytes()).as_ref() {
        // Writing to a `String` cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn url(target: &str) -> HttpUrl {
        HttpUrl::new(false, "h".into(), 80, target)
    }

    fn document(text: &str) -> FetchedDocument {
        let validators = Validators { etag: Some("\"a\\n\"".into()), last_modified: None };
        FetchedDocument { text: text.into(), url: "http://h/a".into(), validators }
    }

    #[test]
    fn cached_document_is_loaded_again() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cache");
        assert_eq!(load(&file, &url("/a")), Ok(None));
        for text in ["", "rules: []\n", "# a\n\n...\n", "no line break"] {
            store(&file, &url("/a"), &document(text)).unwrap();
            let loaded = load(&file, &url("/a")).unwrap().unwrap();
            assert_eq!((&*loaded.text, &loaded.validators), (text, &document(text).validators));
        }
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(load(&file, &url("/b")).unwrap_err().contains("another URL"));
        assert!(load(directory.path(), &url("/a")).unwrap_err().contains("not a regular file"));
    }

    #[test]
    fn damaged_cache_is_rejected() {
        let intact = encode(&url("/a"), &document("rules: []\n")).unwrap();
        assert!(parse(&intact, &url("/a")).is_ok());
        for end in 0..intact.len() {
            assert!(parse(&intact[..end], &url("/a")).is_err(), "{end}");
        }
        for (at, _) in intact.char_indices() {
            let mut damaged = intact.clone();
            damaged.replace_range(at..=at, "\u{7f}");
            assert!(
                parse(&damaged, &url("/a")).is_err() || header_line(&damaged) != header_line(&intact),
                "{at}"
            );
        }
    }

    /// A damaged validator is harmless: the server does not respond to it with 304.
    fn header_line(content: &str) -> &str {
        content.lines().nth(1).unwrap()
    }
}
