//! The server of a client, as configured.

use std::fmt;

use http::HeaderMap;

use crate::tls::client::TlsClientSettings;

/// A server and what every request to it contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    /// URL of every request.
    pub url: HttpUrl,
    /// TLS to the server; `None` for an `http` URL.
    pub tls: Option<TlsClientSettings>,
    /// Headers of every request, usually credentials. All are sensitive, so `Debug` hides their values.
    pub headers: HeaderMap,
}

/// URL with the scheme `http` or `https`, without credentials and fragment. Path and query may contain a secret, so
/// `Debug` omits them.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl {
    /// Whether the scheme is `https`.
    pub is_https: bool,
    /// A host name or an IP address, without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// Host and port, as in the `Host` header.
    pub authority: Box<str>,
    /// The path, with the query if there is one.
    pub target: Box<str>,
}

impl HttpUrl {
    /// Creates a URL. Its authority has no default port.
    pub fn new(is_https: bool, host: Box<str>, port: u16, target: &str) -> Self {
        let url = Self { is_https, host, port, authority: Box::default(), target: target.into() };
        let default_port = if is_https { 443 } else { 80 };
        if port == default_port {
            let authority = url.bracketed_host().into();
            return Self { authority, ..url };
        }
        url.with_port()
    }

    /// Returns the same URL with the port in its authority, even if it is the default.
    #[must_use]
    pub fn with_port(self) -> Self {
        let authority = format!("{}:{}", self.bracketed_host(), self.port).into();
        Self { authority, ..self }
    }

    /// Returns the URL up to the path.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.is_https { "https" } else { "http" }, self.authority)
    }

    /// Returns the URL up to the query.
    pub fn without_query(&self) -> String {
        let path = self.target.split('?').next().unwrap_or_default();
        format!("{}{path}", self.origin())
    }

    /// Returns the complete URL, which may contain a secret.
    pub fn full_url(&self) -> String {
        format!("{}{}", self.origin(), self.target)
    }

    fn bracketed_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.to_string() }
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(host: &str, port: u16, target: &str, is_https: bool) -> HttpUrl {
        HttpUrl::new(is_https, host.into(), port, target)
    }

    #[test]
    fn debug_output_omits_path_and_query() {
        assert_eq!(format!("{:?}", url("h", 443, "/s3cr3t?s3cr3t", true)), "https://h");
        assert_eq!(url("::1", 8080, "/s3cr3t", false).origin(), "http://[::1]:8080");
    }

    #[test]
    fn authority_has_no_default_port_unless_wanted() {
        assert_eq!(&*url("h", 443, "/", false).authority, "h:443");
        assert_eq!(&*url("h", 8443, "/", true).authority, "h:8443");
        assert_eq!(&*url("h", 443, "/", true).with_port().authority, "h:443");
        assert_eq!(url("::1", 443, "/", true).without_query(), "https://[::1]/");
        assert_eq!(
            url("::1", 443, "/v1/traces", true).with_port().without_query(),
            "https://[::1]:443/v1/traces"
        );
    }

    #[test]
    fn query_is_part_of_the_full_url_only() {
        assert_eq!(url("h", 80, "/a?token=s3cr3t", false).without_query(), "http://h/a");
        assert_eq!(url("h", 80, "/a?b", false).full_url(), "http://h/a?b");
    }
}
