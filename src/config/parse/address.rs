//! Addresses to listen on and to forward to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use crate::config::problem::{Fault, quoted};
use crate::listener;
use crate::upstream::Address;

/// The system has no room for longer names of sockets (`sun_path`), in bytes.
const LONGEST_SOCKET: usize = 107;

/// Reads where clients connect: an address to listen on, or `unix:PATH`.
///
/// # Errors
/// As [`listen_address`]; or a path is missing or too long.
pub fn listener_address(text: &str) -> Result<listener::Address, Fault> {
    match text.strip_prefix("unix:") {
        Some(path) => socket_path(path).map(listener::Address::Unix),
        None => listen_address(text).map(listener::Address::Tcp),
    }
}

/// The path of a socket in the file system.
fn socket_path(path: &str) -> Result<PathBuf, Fault> {
    match path {
        "" => Err(Fault::new("missing path after `unix:`").hint("as in `unix:/run/weir.sock`")),
        path if path.starts_with('@') => {
            Err(Fault::new(format!("expected the path of a file, got {}", quoted(path))))
        }
        path if path.len() > LONGEST_SOCKET => {
            let message = format!("longer than {LONGEST_SOCKET} bytes, got {}", quoted(path));
            Err(Fault::new(message).hint("the system has no room for more"))
        }
        path => Ok(PathBuf::from(path)),
    }
}

/// Reads an address to listen on, e.g. `0.0.0.0:8080`, `[::]:8080` or `localhost:8080`.
///
/// # Errors
/// A [`Fault`] where the host is no address, or the port is missing.
pub fn listen_address(text: &str) -> Result<SocketAddr, Fault> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if text.starts_with("unix:") {
        return Err(Fault::new(format!("expected a port, got {}", quoted(text)))
            .hint("only listeners may be sockets in the file system"));
    }
    if let Some(port) = text.strip_prefix(':').or_else(|| text.strip_prefix("*:"))
        && !port.contains(':')
    {
        return Err(not_an_address(text).hint(format!("write `0.0.0.0:{port}` for all addresses")));
    }
    let (host, port) = split_port(text)?;
    match host {
        "localhost" => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        _ => Err(Fault::new(format!(
            "expected an IP address or `localhost` before the port, got {}",
            quoted(text)
        ))),
    }
}

/// Reads an upstream's address: `host:port`, `http://host:port` or `echo`.
///
/// # Errors
/// A [`Fault`] where the port is missing, the host is none, or the scheme is not spoken.
pub fn upstream_address(text: &str) -> Result<Address, Fault> {
    if text == "echo" {
        return Ok(Address::Echo);
    }
    for scheme in ["https://", "unix:"] {
        if text.starts_with(scheme) {
            return Err(not_yet(scheme, text));
        }
    }
    let authority = match text.strip_prefix("http://") {
        Some(rest) => rest.strip_suffix('/').unwrap_or(rest),
        None => text,
    };
    if let Some((scheme, _)) = authority.split_once("://") {
        return Err(Fault::new(format!("unknown scheme {}, expected `http`", quoted(scheme))));
    }
    if authority.contains(['/', '?', '#', '@']) {
        return Err(not_an_address(text).hint("only host and port: the path is the client's"));
    }
    let (host, port) = split_port(authority)?;
    if port == 0 {
        return Err(Fault::new(format!("port must be at least 1, got {}", quoted(text))));
    }
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) if inner.parse::<Ipv6Addr>().is_ok() => Ok(Address::Tcp { host: inner.into(), port }),
        None if is_host(host) => Ok(Address::Tcp { host: host.to_ascii_lowercase().into(), port }),
        _ => Err(Fault::new(format!("expected a host before the port, got {}", quoted(text)))),
    }
}

fn split_port(text: &str) -> Result<(&str, u16), Fault> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(not_an_address(text).hint(format!("write `[{text}]:PORT`")));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(Fault::new(format!("missing port in {}", quoted(text))).hint("as in `127.0.0.1:8080`"));
    };
    if host.is_empty() {
        return Err(not_an_address(text).hint(format!("write `127.0.0.1:{port}`")));
    }
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits => Ok((host, port)),
        _ => Err(Fault::new(format!("expected a port from 0 to 65535, got {}", quoted(port)))),
    }
}

fn not_yet(scheme: &str, text: &str) -> Fault {
    Fault::new(format!("`{scheme}` is not supported in this release, got {}", quoted(text)))
}

fn not_an_address(text: &str) -> Fault {
    Fault::new(format!("expected an address such as `127.0.0.1:8080`, got {}", quoted(text)))
}

/// Letters, digits, `-`, `_` and `.`; an address of digits and dots alone has to be one.
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
    fn hosts_to_listen_on_are_addresses() {
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
    fn a_listener_may_be_a_file() {
        let unix = |path: &str| Ok(listener::Address::Unix(path.into()));
        assert_eq!(listener_address("unix:/run/weir.sock"), unix("/run/weir.sock"));
        assert_eq!(listener_address("unix:weir.sock"), unix("weir.sock"));
        assert_eq!(listener_address("[::]:80"), Ok(listener::Address::Tcp("[::]:80".parse().unwrap())));
        for bad in ["unix:".to_owned(), "unix:@weir".to_owned(), format!("unix:/{}", "a".repeat(107))] {
            assert!(listener_address(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        let tcp = |host: &str, port| Address::Tcp { host: host.into(), port };
        assert_eq!(upstream_address("echo"), Ok(Address::Echo));
        assert_eq!(upstream_address("127.0.0.1:3000"), Ok(tcp("127.0.0.1", 3000)));
        assert_eq!(upstream_address("http://App_1.svc:80/"), Ok(tcp("app_1.svc", 80)));
        assert_eq!(upstream_address("[::1]:80"), Ok(tcp("::1", 80)));
        let bad = [
            "",
            "app",
            "app:0",
            "app:x",
            "https://app:443",
            "unix:/run/app.sock",
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
