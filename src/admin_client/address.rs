//! Addresses of admin ports, as given on the command line.

use std::path::Path;

use http::uri::Authority;

use super::AdminClientError;
use weir_net::connect::ServerAddress;

/// Reads `HOST:PORT`, `http://HOST:PORT` or `unix:PATH`.
///
/// # Errors
/// [`AdminClientError::Address`].
pub(super) fn parse_address(text: &str) -> Result<ServerAddress, AdminClientError> {
    let invalid = || AdminClientError::Address(text.to_owned());
    if let Some(path) = text.strip_prefix("unix:") {
        return if path.is_empty() {
            Err(invalid())
        } else {
            Ok(ServerAddress::Unix(Path::new(path).into()))
        };
    }
    let address = text.strip_prefix("http://").unwrap_or(text);
    let authority: Authority = address.strip_suffix('/').unwrap_or(address).parse().map_err(|_| invalid())?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().filter(|port| *port > 0 && !host.is_empty() && !text.contains('@'));
    Ok(ServerAddress::Tcp(host.into(), port.ok_or_else(invalid)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_ports_and_unix_sockets_are_addresses() {
        for (text, shown) in [
            ("127.0.0.1:9901", "127.0.0.1:9901"),
            ("localhost:9901", "localhost:9901"),
            ("[::1]:9901", "[::1]:9901"),
            ("http://127.0.0.1:9901/", "127.0.0.1:9901"),
            ("unix:/run/weir.sock", "unix:/run/weir.sock"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn addresses_without_host_or_port_are_invalid() {
        for text in
            ["", "127.0.0.1", "localhost", ":9901", "127.0.0.1:0", "unix:", "a@b:1", "https://a:1", "a:1/x"]
        {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
