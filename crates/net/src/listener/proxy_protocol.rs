//! Parser of the PROXY protocol, versions 1 and 2, with which a proxy in front passes on the client's address.
//!
//! A pure function that accepts any bytes. Addresses of families other than TCP and all additional fields (TLVs) of
//! version 2 are skipped. Specification: HAProxy's `proxy-protocol.txt`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Maximum length of a version 1 header, including its line ending.
const MAX_LINE_LENGTH: usize = 107;
/// Maximum length of a version 2 header, including its additional fields. Some proxies send a client certificate in
/// them, which takes a few thousand bytes.
pub const MAX_HEADER_LENGTH: usize = 8 * 1024;
/// Prefix of a version 1 header.
const V1_PREFIX: &[u8] = b"PROXY ";
/// Signature of a version 2 header.
const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the fixed part of a version 2 header; its length field counts what follows.
const V2_FIXED_LENGTH: usize = 16;

/// Result of parsing the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseOutcome {
    /// A complete header.
    Complete {
        header: ProxyHeader,
        /// Length of the header in bytes.
        length: usize,
    },
    /// Possibly a header; more bytes are needed.
    Partial,
    /// No header.
    Absent,
    /// An invalid header.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    pub version: Version,
    /// Address of the client that connected to the proxy; `None` if the proxy opened the connection for itself or sent
    /// no TCP address.
    pub source: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Parses the first bytes of a connection.
pub fn parse(bytes: &[u8]) -> ParseOutcome {
    match (starts(bytes, V2_SIGNATURE), starts(bytes, V1_PREFIX)) {
        (Some(true), _) => parse_v2(bytes),
        (_, Some(true)) => parse_v1(bytes),
        (Some(false), Some(false)) => ParseOutcome::Absent,
        _ => ParseOutcome::Partial,
    }
}

/// Whether `bytes` start with `with`; `None` if more bytes are needed.
fn starts(bytes: &[u8], with: &[u8]) -> Option<bool> {
    let common = bytes.len().min(with.len());
    match bytes[..common] == with[..common] {
        false => Some(false),
        true if common == with.len() => Some(true),
        true => None,
    }
}

fn parse_v1(bytes: &[u8]) -> ParseOutcome {
    let seen = &bytes[..bytes.len().min(MAX_LINE_LENGTH)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        return if seen.len() == MAX_LINE_LENGTH { ParseOutcome::Malformed } else { ParseOutcome::Partial };
    };
    let source = std::str::from_utf8(&seen[V1_PREFIX.len()..end]).ok().and_then(parse_v1_source);
    match source {
        Some(source) => {
            ParseOutcome::Complete { header: ProxyHeader { version: Version::V1, source }, length: end + 2 }
        }
        None => ParseOutcome::Malformed,
    }
}

/// Returns the source address of a version 1 line. The outer `None` means malformed, the inner one `UNKNOWN`.
fn parse_v1_source(text: &str) -> Option<Option<SocketAddr>> {
    let mut words = text.split(' ');
    let family = words.next()?;
    if family == "UNKNOWN" {
        return Some(None);
    }
    let (source, destination) = (words.next()?, words.next()?);
    let (source_port, destination_port) = (port(words.next()?)?, port(words.next()?)?);
    let (source, _): (IpAddr, IpAddr) = match family {
        "TCP4" => (source.parse::<Ipv4Addr>().ok()?.into(), destination.parse::<Ipv4Addr>().ok()?.into()),
        "TCP6" => (source.parse::<Ipv6Addr>().ok()?.into(), destination.parse::<Ipv6Addr>().ok()?.into()),
        _ => return None,
    };
    let _ = destination_port;
    words.next().is_none().then_some(Some(SocketAddr::new(source, source_port)))
}

fn port(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn parse_v2(bytes: &[u8]) -> ParseOutcome {
    let Some([command, family, high, low]) = bytes.get(V2_SIGNATURE.len()..V2_FIXED_LENGTH) else {
        return ParseOutcome::Partial;
    };
    let length = V2_FIXED_LENGTH + usize::from(u16::from_be_bytes([*high, *low]));
    let is_known = matches!(*command, 0x20 | 0x21) && family >> 4 <= 3 && family & 15 <= 2;
    if !is_known || length > MAX_HEADER_LENGTH {
        return ParseOutcome::Malformed;
    }
    let Some(rest) = bytes.get(V2_FIXED_LENGTH..length) else { return ParseOutcome::Partial };
    // The LOCAL command: the proxy opened the connection itself, such as for a health check. Its addresses must be
    // ignored.
    let is_local = *command == 0x20;
    let source = match family {
        _ if is_local => Some(None),
        0x11 => source_v4(rest).map(Some),
        0x21 => source_v6(rest).map(Some),
        // Datagrams, Unix sockets and unspecified families.
        _ => Some(None),
    };
    match source {
        Some(source) => {
            ParseOutcome::Complete { header: ProxyHeader { version: Version::V2, source }, length }
        }
        None => ParseOutcome::Malformed,
    }
}

/// Reads the source from an IPv4 address block: source, destination, and both ports.
fn source_v4(rest: &[u8]) -> Option<SocketAddr> {
    let addresses: &[u8; 12] = rest.first_chunk()?;
    let [a, b, c, d, .., high, low, _, _] = *addresses;
    Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])))
}

fn source_v6(rest: &[u8]) -> Option<SocketAddr> {
    let addresses: &[u8; 36] = rest.first_chunk()?;
    let source: [u8; 16] = *addresses.first_chunk()?;
    Some(SocketAddr::new(Ipv6Addr::from(source).into(), u16::from_be_bytes([addresses[32], addresses[33]])))
}

#[cfg(test)]
mod tests;
