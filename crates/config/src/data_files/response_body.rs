//! Files that are sent unchanged as response bodies.

use std::path::Path;

use bytes::Bytes;
use http::HeaderValue;

use super::DataFileKind;
use crate::defaults::MAX_BODY_FILE_SIZE;

/// A response body with any content.
pub(crate) const RESPONSE_BODY: DataFileKind<Bytes> =
    DataFileKind { name: "body", max_size: MAX_BODY_FILE_SIZE, parse: |content| Ok(Bytes::from(content)) };

/// Returns the media type for a file name, for the formats of pages and API responses.
pub(crate) fn media_type(name: &str) -> HeaderValue {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    HeaderValue::from_static(match extension.to_ascii_lowercase().as_str() {
        "html" | "htm" => "text/html; charset=utf-8",
        "json" => "application/json",
        "xml" => "application/xml",
        "txt" => "text/plain; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_type_follows_file_extension() {
        assert_eq!(media_type("pages/busy.HTML"), "text/html; charset=utf-8");
        assert_eq!(media_type("busy.json"), "application/json");
        assert_eq!(media_type("busy"), "application/octet-stream");
    }
}
