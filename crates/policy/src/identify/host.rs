//! Normalised host of a request.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::header::HOST;
use http::{HeaderMap, Uri};

/// The host of a request, normalised on first use.
#[derive(Clone, Debug)]
pub struct RequestHost<'a> {
    source: HostSource<'a>,
    normal: OnceCell<Cow<'a, str>>,
}

#[derive(Clone, Debug)]
enum HostSource<'a> {
    Head { uri: &'a Uri, headers: &'a HeaderMap },
    Name(&'a str),
    Recorded(&'a [u8]),
}

impl<'a> RequestHost<'a> {
    /// Creates the host from the target's authority if it has one (RFC 9112, section 3.2.2), else the Host header.
    pub fn from_request(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Self { source: HostSource::Head { uri, headers }, normal: OnceCell::new() }
    }

    /// Creates a host from a name; empty for none.
    pub fn named(name: &'a str) -> Self {
        Self { source: HostSource::Name(name), normal: OnceCell::new() }
    }

    /// Creates a host from the bytes that a record has of it; empty for none.
    pub fn recorded(name: &'a [u8]) -> Self {
        Self { source: HostSource::Recorded(name), normal: OnceCell::new() }
    }

    /// Returns the host in lower case, without port and trailing dots; empty if the request has none or it is not text.
    pub fn as_str(&self) -> &str {
        self.normal.get_or_init(|| normalise(self.authority()))
    }

    fn authority(&self) -> &'a str {
        let (uri, headers) = match self.source {
            HostSource::Head { uri, headers } => (uri, headers),
            HostSource::Name(name) => return name,
            HostSource::Recorded(name) => return str::from_utf8(name).unwrap_or_default(),
        };
        match uri.authority() {
            Some(authority) => authority.as_str(),
            None => headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or(""),
        }
    }
}

/// Returns `authority` in lower case, without userinfo, port and trailing dots.
pub fn normalise(authority: &str) -> Cow<'_, str> {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split_once(':').map_or(host, |(host, _)| host),
    };
    // One trailing dot is the DNS root; more have no defined meaning.
    let host = host.trim_end_matches('.');
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

/// Whether this is a name or address with an optional port (RFC 9110 section 7.2). The port may be empty, the name may
/// not.
pub fn is_valid(host: &[u8]) -> bool {
    let (inside, rest) = match host.strip_prefix(b"[") {
        Some(literal) => {
            let (inside, rest) = split_host(literal, |byte| byte == b':' || is_host_byte(byte));
            let Some(rest) = rest.strip_prefix(b"]") else { return false };
            (inside, rest)
        }
        None => split_host(host, is_host_byte),
    };
    let is_port = |port: &[u8]| port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    !inside.is_empty() && (rest.is_empty() || rest.strip_prefix(b":").is_some_and(is_port))
}

/// Splits off the leading bytes for which `may_stand` returns true.
fn split_host(host: &[u8], may_stand: impl Fn(u8) -> bool) -> (&[u8], &[u8]) {
    host.split_at(host.iter().position(|byte| !may_stand(*byte)).unwrap_or(host.len()))
}

fn is_host_byte(byte: u8) -> bool {
    HOST_BYTES[usize::from(byte)]
}

/// A lookup table for speed, since every request has a host.
static HOST_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        table[byte as usize] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'%' | b'~');
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_normalised_without_case_port_or_userinfo() {
        for (given, host) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM.:8080", "api.example.com"),
            ("a.test..:80", "a.test"),
            ("user:pw@a.test:80", "a.test"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("", ""),
        ] {
            assert_eq!(normalise(given), host);
        }
    }

    #[test]
    fn request_target_host_beats_the_host_header() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "header.test".parse().unwrap());
        assert_eq!(
            RequestHost::from_request(&Uri::from_static("http://target.test/"), &headers).as_str(),
            "target.test"
        );
        assert_eq!(RequestHost::from_request(&Uri::from_static("/"), &headers).as_str(), "header.test");
    }

    #[test]
    fn host_is_a_name_or_address_with_an_optional_port() {
        for (host, plausible) in [
            ("a.test", true),
            ("a.test:", true),
            ("192.0.2.1:80", true),
            ("[2001:db8::1]:8080", true),
            ("[2001:db8::1]", true),
            ("a.test:http", false),
            ("a.test:123456", false),
            (":80", false),
            ("[]", false),
            ("[::1", false),
            ("[::1]x", false),
            ("[::1]80", false),
            ("a:b:c", false),
            ("bad host", false),
            ("user:pw@host", false),
        ] {
            assert_eq!(is_valid(host.as_bytes()), plausible, "{host}");
        }
    }
}
