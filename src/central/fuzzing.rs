//! Entry points for fuzzing: the server's responses and the cache.

use super::document::{Document, Validators};
use super::settings::Url;
use super::{cache, envelope};

fn url() -> Url {
    Url { host: "h".into(), port: 80, target: "/".into(), is_secure: false }
}

/// Returns the document in a body.
pub(crate) fn sent(body: &str) -> Document {
    let opened = envelope::open(body);
    let validators = Validators { etag: opened.as_ref().map(|opened| opened.etag.clone()), modified: None };
    let text = opened.map_or_else(|| body.to_owned(), |opened| opened.text);
    Document { text: text.into(), url: url().to_string().into(), validators }
}

/// Stores a document in the cache format and reads it again.
pub(crate) fn kept(document: &Document) -> Result<Document, String> {
    let content = cache::content(&url(), document).map_err(|error| error.to_string())?;
    // Any text is either a valid cache or an error.
    let _ = cache::read(&document.text, &url());
    cache::read(&content, &url())
}
