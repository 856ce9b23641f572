//! Where the configuration comes from, and how it is fetched.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderMap;

use crate::tls::client;

/// How the configuration is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The document.
    pub url: Url,
    /// TLS towards the server, where the URL says so.
    pub tls: Option<client::Settings>,
    /// Fields sent along with every request: most often credentials.
    pub headers: HeaderMap,
    /// The file that keeps the last good document; `None` for none.
    pub cache: Option<PathBuf>,
    /// How long the server may hold a request until the document changes; zero where it is only polled.
    pub wait: Duration,
    /// Between two requests where the server does not hold them.
    pub interval: Duration,
    /// For a response, apart from the time for which the server holds the request.
    pub timeout: Duration,
}

/// Where the cache is unless the configuration in `file` names another place: beside it.
pub fn cache_beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".cache");
    file.with_file_name(name)
}

/// An address of a document: `http` or `https`, without credentials and fragment.
#[derive(Clone, PartialEq, Eq)]
pub struct Url {
    /// A name or an address, the latter without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path, and the query if there is one.
    pub target: Box<str>,
    /// Whether it begins with `https`.
    pub is_secure: bool,
}

impl Url {
    /// Host and port, as the Host field has them.
    pub fn authority(&self) -> String {
        let Self { host, port, is_secure, .. } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_string() };
        let usual = if *is_secure { 443 } else { 80 };
        if *port == usual { host } else { format!("{host}:{port}") }
    }

    /// All of it; a query may hold a secret.
    pub fn whole(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Without the query, which may hold a secret.
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
