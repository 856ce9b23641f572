//! The PROXY protocol, versions 1 and 2: what a proxy in front of us says of the connection that it passes on.
//!
//! Pure, and total: any bytes at all are one of four things. What a family other than TCP says is skipped, as are
//! all additional fields of version 2. By HAProxy's description of the protocol, `proxy-protocol.txt`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest line of version 1, with its end.
const LONGEST_LINE: usize = 107;
/// The longest header of version 2 that is read, additional fields included. The certificate that some proxies send
/// in them takes a few thousand bytes.
pub const LONGEST: usize = 8 * 1024;
/// What begins version 1.
const WORD: &[u8] = b"PROXY ";
/// What begins version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Before what the length of version 2 counts.
const FIXED: usize = 16;

/// What bytes at the beginning of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// A header of so many bytes.
    Header {
        /// What it says.
        header: Header,
        /// Where it ends.
        length: usize,
    },
    /// Perhaps one: it takes more of them to know.
    Partial,
    /// Something else.
    Absent,
    /// A header that is none.
    Malformed,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1 or 2.
    pub version: Version,
    /// Who connected to the proxy; `None` where the proxy speaks for itself or does not say.
    pub source: Option<SocketAddr>,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text.
    One,
    /// Octets.
    Two,
}

/// Looks at the first bytes of a connection.
pub fn parse(bytes: &[u8]) -> Beginning {
    match (starts(bytes, SIGNATURE), starts(bytes, WORD)) {
        (Some(true), _) => octets(bytes),
        (_, Some(true)) => line(bytes),
        (Some(false), Some(false)) => Beginning::Absent,
        _ => Beginning::Partial,
    }
}

/// Whether `bytes` begin so; `None` where there are too few to know.
fn starts(bytes: &[u8], with: &[u8]) -> Option<bool> {
    let common = bytes.len().min(with.len());
    match bytes[..common] == with[..common] {
        false => Some(false),
        true if common == with.len() => Some(true),
        true => None,
    }
}

fn line(bytes: &[u8]) -> Beginning {
    let seen = &bytes[..bytes.len().min(LONGEST_LINE)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        return if seen.len() == LONGEST_LINE { Beginning::Malformed } else { Beginning::Partial };
    };
    let source = std::str::from_utf8(&seen[WORD.len()..end]).ok().and_then(source_of_line);
    match source {
        Some(source) => {
            Beginning::Header { header: Header { version: Version::One, source }, length: end + 2 }
        }
        None => Beginning::Malformed,
    }
}

/// The outer is `None` where the line is malformed, the inner where it names nobody.
fn source_of_line(text: &str) -> Option<Option<SocketAddr>> {
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

fn octets(bytes: &[u8]) -> Beginning {
    let Some([command, family, high, low]) = bytes.get(SIGNATURE.len()..FIXED) else {
        return Beginning::Partial;
    };
    let length = FIXED + usize::from(u16::from_be_bytes([*high, *low]));
    let is_known = matches!(*command, 0x20 | 0x21) && family >> 4 <= 3 && family & 15 <= 2;
    if !is_known || length > LONGEST {
        return Beginning::Malformed;
    }
    let Some(rest) = bytes.get(FIXED..length) else { return Beginning::Partial };
    // The proxy itself, as when it checks our health: what it says of addresses means nothing.
    let is_local = *command == 0x20;
    let source = match family {
        _ if is_local => Some(None),
        0x11 => source_v4(rest).map(Some),
        0x21 => source_v6(rest).map(Some),
        // Datagrams, sockets in a file system, and what is not said.
        _ => Some(None),
    };
    match source {
        Some(source) => Beginning::Header { header: Header { version: Version::Two, source }, length },
        None => Beginning::Malformed,
    }
}

/// Source, destination, and their ports.
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
