//! URLs of configuration documents.

use super::upstream_address;
use crate::central::settings::DocumentUrl;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_upstream::UpstreamAddress;

/// Maximum length of a URL in bytes; servers reject longer ones.
const MAX_URL_LENGTH: usize = 8192;

/// Parses the URL of a document: `http://host[:port][/path][?query]`, or with `https`.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a URL. The message does not quote parts that may be secret.
pub fn document_url(text: &str) -> Result<DocumentUrl, ValueError> {
    let expected = "expected `http://` or `https://` and a host";
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let is_secure = match scheme {
        "http" => false,
        "https" => true,
        "" => return Err(ValueError::new(expected).with_hint("as in `https://config.internal/weir.yaml`")),
        _ => return Err(ValueError::new(format!("unknown scheme {}, {expected}", quoted(scheme)))),
    };
    let (authority, target) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(ValueError::new("credentials are not allowed in the URL")
            .with_hint("use `headers: { authorization: … }`"));
    }
    if target.contains('#') {
        return Err(ValueError::new("a fragment (`#`) is not allowed in the URL"));
    }
    if text.len() > MAX_URL_LENGTH || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(ValueError::new(
            "not a URL: longer than 8 KiB, or contains spaces or non-ASCII characters",
        )
        .with_hint("percent-encode such characters"));
    }
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    let with_port = match has_port {
        true => authority.to_owned(),
        false => format!("{authority}:{}", if is_secure { 443 } else { 80 }),
    };
    let UpstreamAddress::Tcp { host, port } = upstream_address(&with_port)?.address else {
        return Err(ValueError::new(expected));
    };
    let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
    Ok(DocumentUrl { host, port, target: target.into(), is_https: is_secure })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_url_is_parsed_and_normalised() {
        let read = |text: &str| document_url(text).map(|url| url.full_url());
        for (text, whole) in [
            ("http://h", "http://h/"),
            ("http://H:80/a/b.yaml", "http://h/a/b.yaml"),
            ("https://h/a?b=c", "https://h/a?b=c"),
            ("https://h?b", "https://h/?b"),
            ("http://[::1]:8080/a", "http://[::1]:8080/a"),
            ("https://[::1]/a", "https://[::1]/a"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(whole));
        }
        for bad in [
            "",
            "h/a",
            "ftp://h/a",
            "http://",
            "http:///a",
            "http://h/a#b",
            "http://h/a b",
            "http://u:p@h/a",
            "http://h:0/",
            "http://h:x/",
            "http://ä/",
            "unix:/a",
        ] {
            assert!(document_url(bad).is_err(), "{bad}");
        }
        assert!(!document_url("http://u:s3cr3t@h/").unwrap_err().message.contains("s3cr3t"));
    }
}
