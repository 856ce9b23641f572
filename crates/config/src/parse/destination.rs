//! Destinations of forward proxies.

use ipnet::IpNet;

use super::network;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use weir_policy::rules::pattern::{HostPattern, PatternError};

#[derive(Clone, Debug, PartialEq)]
pub enum DestinationEntry {
    /// Names that match a pattern, at this port or at all.
    Name(HostPattern, Option<u16>),
    /// Addresses in a network, at this port or at all.
    Network(IpNet, Option<u16>),
}

/// Parses a destination: a host pattern, an address or a network, with an optional port.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn destination(text: &str) -> Result<DestinationEntry, ValueError> {
    if let Some((_, host)) = text.split_once("://") {
        let error = ValueError::new(format!("expected a host, got the URL {}", quoted(text)));
        let host = host.split('/').next().unwrap_or_default();
        return Err(error.with_hint(format!("write `{host}`")));
    }
    if text.starts_with('~') {
        return name(text, text).map(|pattern| DestinationEntry::Name(pattern, None));
    }
    if let Ok(network) = network(text) {
        return Ok(DestinationEntry::Network(network, None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(parse_port(port)?)),
        Some(_) | None => (text, None),
    };
    if let Some(inside) = host.strip_prefix('[').and_then(|inside| inside.strip_suffix(']')) {
        return network(inside).map(|network| DestinationEntry::Network(network, port));
    }
    let is_address = host.contains('/') || host.contains(':') || host.bytes().all(is_address_byte);
    match is_address {
        true => network(host).map(|network| DestinationEntry::Network(network, port)),
        false => name(host, text).map(|pattern| DestinationEntry::Name(pattern, port)),
    }
}

const fn is_address_byte(byte: u8) -> bool {
    byte.is_ascii_digit() || byte == b'.'
}

fn parse_port(port: &str) -> Result<u16, ValueError> {
    let number = port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.parse().ok()).flatten();
    number
        .filter(|port| *port != 0)
        .ok_or_else(|| ValueError::new(format!("expected a port from 1 to 65535, got {}", quoted(port))))
}

fn name(host: &str, text: &str) -> Result<HostPattern, ValueError> {
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'*');
    if !host.starts_with('~') && !host.bytes().all(is_name_byte) {
        return Err(ValueError::new(format!(
            "expected a host, an address or a network, got {}",
            quoted(text)
        )));
    }
    HostPattern::parse(host).map_err(|error| match error {
        PatternError::Star => {
            let error =
                format!("`*` may only be the first label, as in `*.example.com`, got {}", quoted(text));
            ValueError::new(error)
                .with_hint("leave `destinations` out for every destination, on loopback only")
        }
        error => ValueError::new(format!("not a host: {error}, got {}", quoted(text))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destination_is_a_name_or_a_network_with_an_optional_port() {
        let name = |text: &str, port| DestinationEntry::Name(HostPattern::parse(text).unwrap(), port);
        let network = |text: &str, port| DestinationEntry::Network(network(text).unwrap(), port);
        for (text, entry) in [
            ("api.example.com", name("api.example.com", None)),
            ("*.example.com:443", name("*.example.com", Some(443))),
            ("~^api[0-9]+\\.test$", name("~^api[0-9]+\\.test$", None)),
            ("10.2.0.0/16", network("10.2.0.0/16", None)),
            ("10.2.0.0/16:8080", network("10.2.0.0/16", Some(8080))),
            ("192.0.2.7:80", network("192.0.2.7", Some(80))),
            ("2001:db8::/32", network("2001:db8::/32", None)),
            ("[2001:db8::1]:443", network("2001:db8::1", Some(443))),
            ("[2001:db8::/32]", network("2001:db8::/32", None)),
        ] {
            assert_eq!(destination(text), Ok(entry), "{text}");
        }
    }

    #[test]
    fn invalid_destinations_are_rejected() {
        for bad in [
            "",
            ":443",
            "a.test:0",
            "a.test:https",
            "a.test:70000",
            "*",
            "a.*.test",
            "10.1.2.3/8",
            "10.0.0.0/33",
            "a b",
            "user@a.test",
            "a.test/x",
            "https://a.test/x",
            "[::1",
            "1.2.3",
        ] {
            assert!(destination(bad).is_err(), "{bad}");
        }
        assert_eq!(destination("https://a.test:1/x").unwrap_err().hint.unwrap(), "write `a.test:1`");
    }
}
