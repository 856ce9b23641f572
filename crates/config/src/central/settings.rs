//! The source of the configuration, and how it is fetched.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_net::http_client::HttpTarget;

/// How the configuration is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CentralSettings {
    /// The server, with the URL of the document.
    pub server: HttpTarget,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_cache_file_is_next_to_the_configuration() {
        assert_eq!(
            default_cache_file(Path::new("/etc/weir/weir.yaml")),
            Path::new("/etc/weir/weir.yaml.cache")
        );
        assert_eq!(default_cache_file(Path::new("w.yaml")), Path::new("w.yaml.cache"));
    }
}
