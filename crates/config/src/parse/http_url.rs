//! URLs of HTTP servers that Weir itself uses.

use super::address::has_no_port;
use super::upstream_address;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_net::http_client::HttpUrl;
use weir_upstream::UpstreamAddress;

/// The default port of OTLP over HTTP; `TRACES_PATH` is its path for spans.
const OTLP_PORT: u16 = 4318;
const TRACES_PATH: &str = "/v1/traces";

/// Maximum length of a URL in bytes; servers reject longer ones.
const MAX_URL_LENGTH: usize = 8192;

/// Parses the URL of a document: `http://host[:port][/path][?query]`, or with `https`.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a URL. The message does not quote parts that may be secret.
pub fn document_url(text: &str) -> Result<HttpUrl, ValueError> {
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
    let default_port = if is_secure { 443 } else { 80 };
    let default_port = (authority.is_empty() || has_no_port(authority)).then_some(default_port);
    let (host, port) = host_and_port(authority, default_port)?.ok_or_else(|| ValueError::new(expected))?;
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok(HttpUrl::new(is_secure, host, port, &format!("{slash}{target}")))
}

/// Parses the URL of a collector of spans: `http://host[:port][/path]`, or with `https`. Appends `/v1/traces`
/// to the path unless it ends with that.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a URL.
pub fn collector_url(text: &str) -> Result<HttpUrl, ValueError> {
    let invalid = || {
        ValueError::new(format!("expected `http://` or `https://`, a host and a port, got {}", quoted(text)))
    };
    let secured = text.strip_prefix("https://");
    let Some(rest) = secured.or_else(|| text.strip_prefix("http://")) else {
        return Err(invalid().with_hint("as in `http://127.0.0.1:4318`"));
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if text.contains(['?', '#', '@']) || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid().with_hint("only a path can follow the port"));
    }
    let default_port = if secured.is_some() { 443 } else { OTLP_PORT };
    let default_port = has_no_port(authority).then_some(default_port);
    let (host, port) = host_and_port(authority, default_port)?.ok_or_else(invalid)?;
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix(TRACES_PATH).unwrap_or(path);
    Ok(HttpUrl::new(secured.is_some(), host, port, &format!("{path}{TRACES_PATH}")).with_port())
}

/// Returns host and port, which is `default_port` if that is given; `None` if it is an address of another kind.
fn host_and_port(authority: &str, default_port: Option<u16>) -> Result<Option<(Box<str>, u16)>, ValueError> {
    let with_port = default_port.map(|port| format!("{authority}:{port}"));
    Ok(match upstream_address(with_port.as_deref().unwrap_or(authority))?.address {
        UpstreamAddress::Tcp { host, port } => Some((host, port)),
        UpstreamAddress::Unix(_) | UpstreamAddress::Echo => None,
    })
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
