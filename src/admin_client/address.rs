//! Addresses of admin ports, as given on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::uri::Authority;

use super::AdminClientError;

/// Address of an admin port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// A host and a port.
    Tcp(Box<str>),
    /// A Unix socket.
    Unix(PathBuf),
}

impl AdminAddress {
    /// Returns the value of the `Host` header.
    pub(super) fn host(&self) -> &str {
        match self {
            Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }
}

impl FromStr for AdminAddress {
    type Err = AdminClientError;

    /// Reads `HOST:PORT`, `http://HOST:PORT` or `unix:PATH`.
    fn from_str(text: &str) -> Result<Self, AdminClientError> {
        let invalid = || AdminClientError::Address(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(invalid()) } else { Ok(Self::Unix(path.into())) };
        }
        let address = text.strip_prefix("http://").unwrap_or(text);
        let address = address.strip_suffix('/').unwrap_or(address);
        let authority: Authority = address.parse().map_err(|_| invalid())?;
        let is_valid = authority.port_u16().is_some_and(|port| port > 0)
            && !authority.host().is_empty()
            && !address.contains('@');
        if is_valid { Ok(Self::Tcp(address.into())) } else { Err(invalid()) }
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
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
            let address: AdminAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn addresses_without_host_or_port_are_invalid() {
        for text in
            ["", "127.0.0.1", "localhost", ":9901", "127.0.0.1:0", "unix:", "a@b:1", "https://a:1", "a:1/x"]
        {
            assert!(text.parse::<AdminAddress>().is_err(), "{text}");
        }
    }
}
