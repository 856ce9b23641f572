//! Which host a request is for, in one spelling.

use std::borrow::Cow;
use std::cell::OnceCell;

use http::header::HOST;
use http::{HeaderMap, Uri};

/// The host of a request, brought into its one spelling when a rule first asks for it.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    source: Source<'a>,
    normal: OnceCell<Cow<'a, str>>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Head { uri: &'a Uri, headers: &'a HeaderMap },
    Name(&'a str),
}

impl<'a> Host<'a> {
    /// The target's authority where it has one (RFC 9112 section 3.2.2), else the Host header.
    pub fn of(uri: &'a Uri, headers: &'a HeaderMap) -> Self {
        Self { source: Source::Head { uri, headers }, normal: OnceCell::new() }
    }

    /// A host that is said in so many words; empty for none.
    pub fn named(name: &'a str) -> Self {
        Self { source: Source::Name(name), normal: OnceCell::new() }
    }

    /// In lower case, without port and trailing dots; empty if the request names none or it is not text.
    pub fn as_str(&self) -> &str {
        self.normal.get_or_init(|| normalise(self.authority()))
    }

    fn authority(&self) -> &'a str {
        let (uri, headers) = match self.source {
            Source::Head { uri, headers } => (uri, headers),
            Source::Name(name) => return name,
        };
        match uri.authority() {
            Some(authority) => authority.as_str(),
            None => headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or(""),
        }
    }
}

/// `authority` without userinfo, port and trailing dots, in lower case.
pub fn normalise(authority: &str) -> Cow<'_, str> {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split_once(':').map_or(host, |(host, _)| host),
    };
    // One is the root of all names, and what more of them mean is anybody's guess.
    let host = host.trim_end_matches('.');
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(host.to_ascii_lowercase())
    } else {
        Cow::Borrowed(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_per_host() {
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
    fn the_target_beats_the_header() {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "header.test".parse().unwrap());
        assert_eq!(Host::of(&Uri::from_static("http://target.test/"), &headers).as_str(), "target.test");
        assert_eq!(Host::of(&Uri::from_static("/"), &headers).as_str(), "header.test");
    }
}
