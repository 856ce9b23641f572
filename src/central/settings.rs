//! The source of the configuration, and how it is fetched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderMap;

use crate::tls::client;

/// How the configuration is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// URL of the document.
    pub url: Url,
    /// TLS to the server; `None` for an `http` URL.
    pub tls: Option<client::TlsClientSettings>,
    /// Headers of every request, usually credentials.
    pub headers: HeaderMap,
    /// The file that stores the last good document; `None` for no cache.
    pub cache: Option<PathBuf>,
    /// Maximum time that the server may hold a request until the document changes; zero for plain polling.
    pub wait: Duration,
    /// Interval between requests that the server does not hold.
    pub interval: Duration,
    /// Timeout of a response, without the time that the server holds the request.
    pub timeout: Duration,
}

/// Returns the default path of the cache: next to the configuration in `file`.
pub fn cache_beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".cache");
    file.with_file_name(name)
}

/// URL of a document: `http` or `https`, without credentials and fragment.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// A host name or an IP address, without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path, with the query if there is one.
    pub target: Box<str>,
    /// Whether the scheme is `https`.
    pub is_secure: bool,
}

impl Url {
    /// Returns host and port, as in the `Host` header.
    pub fn authority(&self) -> String {
        let Self { host, port, is_secure, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let usual = if *is_secure { 443 } else { 80 };
        if *port == usual { host } else { format!("{host}:{port}") }
    }

    /// Returns the complete URL; its query may contain a secret.
    pub fn whole(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Formats the URL without its query, which may contain a secret.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.whole();
        f.write_str(whole.split('?').next().unwrap_or_default())
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_shows_no_query_and_no_usual_port() {
        let url = |host: &str, port, target: &str, is_secure| Url {
            host: host.into(),
            port,
            target: target.into(),
            is_secure,
        };
        assert_eq!(url("h", 80, "/a?token=s3cr3t", false).to_string(), "http://h/a");
        assert_eq!(url("h", 80, "/a?b", false).whole(), "http://h/a?b");
        assert_eq!(url("::1", 443, "/", true).to_string(), "https://[::1]/");
        assert_eq!(url("h", 8443, "/", true).authority(), "h:8443");
        assert_eq!(format!("{:?}", url("h", 443, "/?s3cr3t", false)), "http://h:443/");
    }

    #[test]
    fn the_cache_is_beside_the_configuration() {
        assert_eq!(cache_beside(Path::new("/etc/weir/weir.yaml")), Path::new("/etc/weir/weir.yaml.cache"));
        assert_eq!(cache_beside(Path::new("w.yaml")), Path::new("w.yaml.cache"));
    }
}
