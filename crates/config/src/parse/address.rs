//! Addresses of listeners, upstreams and other servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_net::listener;
use weir_upstream::UpstreamAddress;

/// The default port of `https`.
const HTTPS_PORT: u16 = 443;
/// Maximum length of a socket's path on Linux, without the final NUL.
const MAX_SOCKET_PATH_LENGTH: usize = 107;

/// Parses the address of a listener: host and port, or `unix:/path`.
///
/// # Errors
/// Returns the errors of [`listen_address`], or a [`ValueError`] if the path is not valid for a socket.
pub fn listener_address(text: &str) -> Result<listener::ListenAddress, ValueError> {
    match text.strip_prefix("unix:") {
        Some(path) => socket_path(path).map(listener::ListenAddress::Unix),
        None => listen_address(text).map(listener::ListenAddress::Tcp),
    }
}

/// Parses an address to listen on, e.g. `0.0.0.0:8080`, `[::]:8080` or `localhost:8080`.
///
/// # Errors
/// Returns a [`ValueError`] if the host is not an IP address or `localhost`, or the port is missing.
pub fn listen_address(text: &str) -> Result<SocketAddr, ValueError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.starts_with("unix:") {
        return Err(ValueError::new(format!("expected an IP address and a port, got {}", quoted(text)))
            .with_hint("a Unix socket is not supported here"));
    }
    if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:"))
        && !port.contains(':')
    {
        return Err(invalid_address(text).with_hint(format!("write `0.0.0.0:{port}` for all addresses")));
    }
    let (host, port) = split_port(text)?;
    if host == "localhost" {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    let error = ValueError::new(format!(
        "expected an IP address or `localhost` before the port, got {}",
        quoted(text)
    ));
    let is_bare = host.parse::<Ipv6Addr>().is_ok();
    Err(if is_bare { error.with_hint(format!("write `[{host}]:{port}`")) } else { error })
}

/// The address of an upstream, and whether connections to it use TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl {
    pub address: UpstreamAddress,
    /// Whether connections use TLS.
    pub is_secure: bool,
}

/// Parses an upstream's address: `host:port`, `http://host:port`, `https://host[:port]`, `unix:/path` or
/// `echo`.
///
/// # Errors
/// Returns a [`ValueError`] if the port is missing, the host is invalid, or the scheme is not supported.
pub fn upstream_address(text: &str) -> Result<UpstreamUrl, ValueError> {
    let plain = |address| UpstreamUrl { address, is_secure: false };
    if text == "echo" {
        return Ok(plain(UpstreamAddress::Echo));
    }
    if let Some(path) = text.strip_prefix("unix:") {
        return socket_path(path).map(UpstreamAddress::Unix).map(plain);
    }
    let secured = text.strip_prefix("https://");
    let authority = match secured.or_else(|| text.strip_prefix("http://")) {
        Some(rest) => rest.strip_suffix('/').unwrap_or(rest),
        None => text,
    };
    if let Some((scheme, _)) = authority.split_once("://") {
        return Err(ValueError::new(format!(
            "unknown scheme {}, expected `http` or `https`",
            quoted(scheme)
        )));
    }
    if authority.contains(['/', '?', '#', '@']) {
        return Err(
            invalid_address(text).with_hint("write only host and port, the path comes from the request")
        );
    }
    let (host, port) = match secured {
        Some(_) if has_no_port(authority) => (authority, HTTPS_PORT),
        _ => split_port(authority)?,
    };
    if port == 0 {
        return Err(ValueError::new(format!("port must be at least 1, got {}", quoted(text))));
    }
    let tcp = |host: Box<str>| UpstreamUrl {
        address: UpstreamAddress::Tcp { host, port },
        is_secure: secured.is_some(),
    };
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => Ok(tcp(inner.into())),
        None if is_host(host) => Ok(tcp(host.to_ascii_lowercase().into())),
        _ => Err(ValueError::new(format!("expected a host before the port, got {}", quoted(text)))),
    }
}

/// Whether the port is left out, which needs a default such as that of `https` (RFC 9110 section 4.2.2).
pub(super) fn has_no_port(authority: &str) -> bool {
    !authority.is_empty() && (!authority.contains(':') || authority.ends_with(']'))
}

/// Parses a socket's path. It must be absolute, because a relative one would depend on the working directory,
/// and fit into a socket address (unix(7)).
pub(super) fn socket_path(path: &str) -> Result<Box<Path>, ValueError> {
    if !path.starts_with('/') {
        let error = ValueError::new(format!("expected an absolute path after `unix:`, got {}", quoted(path)));
        return Err(error.with_hint("as in `unix:/run/app.sock`"));
    }
    if path.len() > MAX_SOCKET_PATH_LENGTH || path.contains('\0') {
        return Err(ValueError::new(format!(
            "socket path longer than {MAX_SOCKET_PATH_LENGTH} bytes or with a NUL, got {}",
            quoted(path)
        )));
    }
    Ok(Path::new(path).into())
}

fn split_port(text: &str) -> Result<(&str, u16), ValueError> {
    if text.parse::<Ipv6Addr>().is_ok() {
        // `::1:8080` is an address by itself, but its end is more likely a port.
        let with_port = text.rsplit_once(':').filter(|(host, port)| {
            host.parse::<Ipv6Addr>().is_ok()
                && port.len() > 1
                && port.bytes().all(|byte| byte.is_ascii_digit())
        });
        return Err(invalid_address(text).with_hint(match with_port {
            Some((host, port)) => format!("write `[{host}]:{port}`"),
            None => format!("write `[{text}]:PORT`"),
        }));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(
            ValueError::new(format!("missing port in {}", quoted(text))).with_hint("as in `127.0.0.1:8080`")
        );
    };
    if host.is_empty() {
        return Err(invalid_address(text).with_hint(format!("write `127.0.0.1:{port}`")));
    }
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits => Ok((host, port)),
        _ => Err(ValueError::new(format!("expected a port from 0 to 65535, got {}", quoted(port)))),
    }
}

fn invalid_address(text: &str) -> ValueError {
    ValueError::new(format!("expected an address such as `127.0.0.1:8080`, got {}", quoted(text)))
}

/// Parses a host name; rejects IP addresses.
///
/// # Errors
/// Returns a [`ValueError`] if it is not a host name.
pub fn host_name(text: &str) -> Result<Box<str>, ValueError> {
    if is_host(text) && text.parse::<IpAddr>().is_err() {
        return Ok(text.to_ascii_lowercase().into());
    }
    let error = ValueError::new(format!("expected a host name, got {}", quoted(text)));
    Err(if text.contains(':') { error.with_hint("omit the port") } else { error })
}

/// Whether `host` consists of letters, digits, `-`, `_` and `.`. Digits and dots alone must form an IPv4
/// address.
fn is_host(host: &str) -> bool {
    let is_name = host.len() <= 253
        && host.split('.').all(|label| !label.is_empty() && label.len() <= 63)
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    let is_numeric = host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_name && (!is_numeric || host.parse::<Ipv4Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_address_requires_ip_or_localhost() {
        for (text, address) in [
            ("0.0.0.0:8080", "0.0.0.0:8080"),
            ("[::]:8080", "[::]:8080"),
            ("localhost:0", "127.0.0.1:0"),
            ("127.0.0.1:65535", "127.0.0.1:65535"),
        ] {
            assert_eq!(listen_address(text).unwrap().to_string(), address);
        }
        let bad = [
            "",
            ":",
            "8080",
            ":8080",
            "*:8080",
            "example.com:80",
            "::1",
            "::1:8080:",
            "1.2.3.4:65536",
            "1.2.3.4:",
        ];
        for bad in bad {
            assert!(listen_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ipv6_address_without_brackets_is_suggested_with_brackets() {
        let hint = |text: &str| listen_address(text).unwrap_err().hint.unwrap_or_default();
        assert_eq!(hint("::1:8080"), "write `[::1]:8080`");
        assert_eq!(hint(":::8080"), "write `[::]:8080`");
        assert_eq!(hint("::1"), "write `[::1]:PORT`");
        let upstream = upstream_address("::1:8080").unwrap_err();
        assert_eq!(upstream.hint.as_deref(), Some("write `[::1]:8080`"));
    }

    #[test]
    fn listener_address_accepts_unix_socket() {
        let unix = |path: &str| Ok(listener::ListenAddress::Unix(Path::new(path).into()));
        assert_eq!(listener_address("unix:/run/weir.sock"), unix("/run/weir.sock"));
        assert_eq!(listener_address("[::]:80"), Ok(listener::ListenAddress::Tcp("[::]:80".parse().unwrap())));
        for bad in ["unix:".to_owned(), "unix:weir.sock".to_owned(), format!("unix:/{}", "a".repeat(107))] {
            assert!(listener_address(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn upstream_address_forms_are_parsed() {
        let upstream = |address, is_secure| Ok(UpstreamUrl { address, is_secure });
        let tcp = |host: &str, port| upstream(UpstreamAddress::Tcp { host: host.into(), port }, false);
        assert_eq!(upstream_address("echo"), upstream(UpstreamAddress::Echo, false));
        assert_eq!(upstream_address("127.0.0.1:3000"), tcp("127.0.0.1", 3000));
        assert_eq!(upstream_address("http://App_1.svc:80/"), tcp("app_1.svc", 80));
        assert_eq!(upstream_address("[::1]:80"), tcp("::1", 80));
        assert_eq!(
            upstream_address("unix:/run/app.sock"),
            upstream(UpstreamAddress::Unix(Path::new("/run/app.sock").into()), false)
        );
        let tls = |host: &str, port| upstream(UpstreamAddress::Tcp { host: host.into(), port }, true);
        assert_eq!(upstream_address("https://App.example"), tls("app.example", 443));
        assert_eq!(upstream_address("https://app:8443/"), tls("app", 8443));
        assert_eq!(upstream_address("https://[::1]"), tls("::1", 443));
        assert_eq!(upstream_address("https://[::1]:8443"), tls("::1", 8443));
        let bad = [
            "",
            "app",
            "app:0",
            "app:x",
            "https://",
            "https://app:0",
            "https://app:",
            "https://app/v1",
            "https://::1",
            "https://[::1",
            "unix:run/app.sock",
            "unix:",
            "ftp://app:21",
            "http://app:80/v1",
            "user@app:80",
            "a..b:80",
            "1.2.3:80",
            "[::1:80",
            "a b:80",
            ":80",
            "::1",
        ];
        for bad in bad {
            assert!(upstream_address(bad).is_err(), "{bad}");
        }
    }
}
