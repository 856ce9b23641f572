//! Entry points for fuzzing: the server's responses and the cache.

use super::document::{FetchedDocument, Validators};
use super::{cache, envelope};
use weir_net::http_client::HttpUrl;

fn url() -> HttpUrl {
    HttpUrl::new(false, "h".into(), 80, "/")
}

/// Returns the document in a body.
pub fn parse_body(body: &str) -> FetchedDocument {
    let content = envelope::parse(body);
    let validators =
        Validators { etag: content.as_ref().map(|opened| opened.etag.clone()), last_modified: None };
    let text = content.map_or_else(|| body.to_owned(), |opened| opened.text);
    FetchedDocument { text: text.into(), url: url().without_query().into(), validators }
}

/// Stores a document in the cache format and reads it again.
pub fn round_trip_cache(document: &FetchedDocument) -> Result<FetchedDocument, String> {
    let content = cache::encode(&url(), document).map_err(|error| error.to_string())?;
    // Any text is either a valid cache or an error.
    let _ = cache::parse(&document.text, &url());
    cache::parse(&content, &url())
}
