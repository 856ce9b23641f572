//! Destination of a request: scheme, host and port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::settings::UpstreamAddress;

/// Maximum length of a name in DNS (RFC 1035 section 2.3.4).
const MAX_NAME_LENGTH: usize = 253;
const MAX_LABEL_LENGTH: usize = 63;

/// Destination of a request to a forward proxy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Whether the connection uses TLS, which Weir originates.
    pub is_secure: bool,
    pub host: DestinationHost,
    /// The port; not 0.
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DestinationHost {
    /// An address.
    Ip(IpAddr),
    /// A name in lower case, without a trailing dot.
    Name(Box<str>),
}

impl Destination {
    /// Parses the authority of an absolute target; without a port it has the default port of the scheme. `None` if it is
    /// not a valid destination.
    pub fn of_url(authority: &str, is_secure: bool) -> Option<Self> {
        let default_port = if is_secure { 443 } else { 80 };
        Self::parse(authority, Some(default_port), is_secure)
    }

    /// Parses the target of a CONNECT request, which has a port (RFC 9110 section 9.3.6). `None` if it is not a valid
    /// destination.
    pub fn of_connect(authority: &str) -> Option<Self> {
        Self::parse(authority, None, false)
    }

    fn parse(authority: &str, default_port: Option<u16>, is_secure: bool) -> Option<Self> {
        let (host, port) = match authority.strip_prefix('[') {
            Some(literal) => {
                let (inside, rest) = literal.split_once(']')?;
                let ip = IpAddr::V6(inside.parse::<Ipv6Addr>().ok()?).to_canonical();
                (DestinationHost::Ip(ip), rest)
            }
            None => {
                let end = authority.find(':').unwrap_or(authority.len());
                let (host, rest) = authority.split_at(end);
                (parse_host(host)?, rest)
            }
        };
        let port = match port {
            // RFC 3986 section 3.2.3: the port may be empty.
            "" | ":" => default_port?,
            port => {
                let digits = port.strip_prefix(':')?;
                digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??
            }
        };
        (port != 0).then_some(Self { is_secure, host, port })
    }

    /// Returns the address to connect to.
    pub(super) fn address(&self) -> UpstreamAddress {
        let host = match &self.host {
            DestinationHost::Ip(ip) => ip.to_string().into(),
            DestinationHost::Name(name) => name.clone(),
        };
        UpstreamAddress::Tcp { host, port: self.port }
    }
}

/// Parses a name or an IPv4 address. Resolvers also accept numbers such as `0x7f.1` as addresses. They are rejected,
/// because an allow list would see a name (WHATWG URL, "ends in a number").
fn parse_host(host: &str) -> Option<DestinationHost> {
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Some(DestinationHost::Ip(ip.into()));
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.len() <= MAX_LABEL_LENGTH && label.bytes().all(is_name_byte)
    };
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last
            .strip_prefix("0x")
            .or_else(|| last.strip_prefix("0X"))
            .is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let is_name = name.len() <= MAX_NAME_LENGTH && name.split('.').all(is_label) && !is_number;
    is_name.then(|| DestinationHost::Name(name.to_ascii_lowercase().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(destination: Option<Destination>) -> Option<String> {
        destination.map(|destination| destination.address().to_string())
    }

    #[test]
    fn authority_is_a_host_with_an_optional_port() {
        for (authority, address) in [
            ("api.example.com", "api.example.com:443"),
            ("API.Example.COM.:8443", "api.example.com:8443"),
            ("a_b.test:", "a_b.test:443"),
            ("192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:DB8::1]:80", "[2001:db8::1]:80"),
            ("[::ffff:127.0.0.1]", "127.0.0.1:443"),
            ("[::1]", "[::1]:443"),
        ] {
            assert_eq!(
                written(Destination::of_url(authority, true)).as_deref(),
                Some(address),
                "{authority}"
            );
        }
    }

    #[test]
    fn hostile_authorities_are_not_destinations() {
        let long = "a".repeat(64);
        for authority in [
            "",
            ":",
            ":80",
            "a.test:0",
            "a.test:65536",
            "a.test:+80",
            "a.test:80:80",
            "a.test:x",
            "user@a.test",
            "a b",
            "a..test",
            ".",
            ".test",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.1",
            "1.2.3.4.5",
            "1.2.3.0x",
            "a%2ftest",
            "a~test",
            "[::1",
            "[]",
            "[::1]x",
            "[::1]80",
            "[fe80::1%25eth0]",
            "[127.0.0.1]",
            "*",
            "[v1.x]",
            &long,
        ] {
            assert_eq!(Destination::of_url(authority, false), None, "{authority}");
            assert_eq!(Destination::of_connect(authority), None, "{authority}");
        }
    }

    #[test]
    fn connect_requires_a_port() {
        assert_eq!(written(Destination::of_connect("a.test:443")).as_deref(), Some("a.test:443"));
        assert_eq!(Destination::of_connect("a.test"), None);
        assert_eq!(Destination::of_connect("a.test:"), None);
        assert_eq!(Destination::of_connect("[::1]"), None);
    }
}
