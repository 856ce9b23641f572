//! The source of the configuration, and how it is fetched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderMap;

use weir_net::tls::client;

/// How the configuration is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CentralSettings {
    /// URL of the document.
    pub url: DocumentUrl,
    /// TLS to the server; `None` for an `http` URL.
    pub tls: Option<client::TlsClientSettings>,
    /// Headers of every request, usually credentials.
    pub headers: HeaderMap,
    /// The file that stores the last good document; `None` for no cache.
    pub cache_file: Option<PathBuf>,
    /// Maximum time that the server may hold a request until the document changes; zero for plain polling.
    pub wait: Duration,
    /// Interval between requests that the server does not hold.
    pub poll_interval: Duration,
    /// Timeout of a response, without the time that the server holds the request.
    pub timeout: Duration,
}

/// Returns the default path of the cache: next to the configuration in `file`.
pub fn default_cache_file(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".cache");
    file.with_file_name(name)
}

/// URL of a document: `http` or `https`, without credentials and fragment.
#[derive(Clone, PartialEq, Eq)]
pub struct DocumentUrl {
    /// A host name or an IP address, without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path, with the query if there is one.
    pub target: Box<str>,
    /// Whether the scheme is `https`.
    pub is_https: bool,
}

impl DocumentUrl {
    /// Returns host and port, as in the `Host` header.
    pub fn authority(&self) -> String {
        let Self { host, port, is_https, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let default_port = if *is_https { 443 } else { 80 };
        if *port == default_port { host } else { format!("{host}:{port}") }
    }

    /// Returns the complete URL; its query may contain a secret.
    pub fn full_url(&self) -> String {
        let scheme = if self.is_https { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Formats the URL without its query, which may contain a secret.
impl fmt::Display for DocumentUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = self.full_url();
        f.write_str(full.split('?').next().unwrap_or_default())
    }
}

impl fmt::Debug for DocumentUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_url_has_no_query_and_no_default_port() {
        let url = |host: &str, port, target: &str, is_https| DocumentUrl {
            host: host.into(),
            port,
            target: target.into(),
            is_https,
        };
        assert_eq!(url("h", 80, "/a?token=s3cr3t", false).to_string(), "http://h/a");
        assert_eq!(url("h", 80, "/a?b", false).full_url(), "http://h/a?b");
        assert_eq!(url("::1", 443, "/", true).to_string(), "https://[::1]/");
        assert_eq!(url("h", 8443, "/", true).authority(), "h:8443");
        assert_eq!(format!("{:?}", url("h", 443, "/?s3cr3t", false)), "http://h:443/");
    }

    #[test]
    fn default_cache_file_is_next_to_the_configuration() {
        assert_eq!(
            default_cache_file(Path::new("/etc/weir/weir.yaml")),
            Path::new("/etc/weir/weir.yaml.cache")
        );
        assert_eq!(default_cache_file(Path::new("w.yaml")), Path::new("w.yaml.cache"));
    }
}
