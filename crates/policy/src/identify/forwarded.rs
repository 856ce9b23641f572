//! Parser and writer of X-Forwarded-For. No other module parses the header.
//!
//! The header has no standard. This parser accepts the forms that proxies use: addresses separated by commas, over any
//! number of header lines. IPv4 may have a port; IPv6 may be bare, in brackets, or in brackets with a port. Each may be
//! quoted. Anything else is an unknown hop.

use std::net::{IpAddr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue};

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Returns the hops in all header lines, nearest first; `None` for a hop that is not an address.
pub fn hops_from_nearest(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    elements_from_nearest(headers, &X_FORWARDED_FOR).map(parse_hop)
}

/// Returns the elements of all lines of a header, last first. Empty elements are ignored (RFC 9110 section 5.6.1.2).
pub(super) fn elements_from_nearest<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    headers
        .get_all(name)
        .iter()
        .rev()
        .flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','))
        .filter(|element| !element.trim_ascii().is_empty())
}

/// Returns the header for the next hop: the existing value with `peer` appended.
pub fn appended(headers: &HeaderMap, peer: IpAddr) -> HeaderValue {
    let mut value = Vec::with_capacity(48);
    for line in headers.get_all(X_FORWARDED_FOR).iter().filter(|line| !line.is_empty()) {
        value.extend_from_slice(line.as_bytes());
        value.push(b',');
    }
    write_ip(&mut value, peer);
    // Built from valid values, commas and digits, so this cannot fail.
    HeaderValue::from_maybe_shared(bytes::Bytes::from(value)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Writes `ip` in its text form.
pub fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    use std::io::Write as _;
    match ip {
        IpAddr::V4(v4) => {
            for (index, octet) in v4.octets().into_iter().enumerate() {
                if index > 0 {
                    out.push(b'.');
                }
                push_octet(out, octet);
            }
        }
        // Writing to a vector cannot fail.
        IpAddr::V6(v6) => drop(write!(out, "{v6}")),
    }
}

/// Appends the digits of an octet.
fn push_octet(out: &mut Vec<u8>, octet: u8) {
    if octet >= 100 {
        out.push(b'0' + octet / 100);
    }
    if octet >= 10 {
        out.push(b'0' + octet / 10 % 10);
    }
    out.push(b'0' + octet % 10);
}

/// Parses one element of the header; `None` if it is not an address.
pub fn parse_hop(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?.trim_matches([' ', '\t']);
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
            return None;
        }
        return address.parse::<Ipv6Addr>().ok().map(|v6| IpAddr::V6(v6).to_canonical());
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical());
    }
    match text.split_once(':') {
        Some((address, port)) if is_port(port) => address.parse().ok().map(IpAddr::V4),
        _ => None,
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(lines: &[&str]) -> Vec<Option<String>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, line.parse().unwrap());
        }
        hops_from_nearest(&headers).map(|hop| hop.map(|ip| ip.to_string())).collect()
    }

    fn some(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn forwarded_hops_are_read_from_last_to_first() {
        assert_eq!(hops(&["1.1.1.1, 2.2.2.2", "3.3.3.3"]), some(&["3.3.3.3", "2.2.2.2", "1.1.1.1"]));
    }

    #[test]
    fn forwarded_hops_accept_ports_brackets_quotes_and_mapped_addresses() {
        assert_eq!(
            hops(&[
                "192.0.2.1:4711,[2001:db8::1]:80,[2001:db8::2], 2001:db8::3 ,\"192.0.2.2\",::ffff:192.0.2.3"
            ]),
            some(&["192.0.2.3", "192.0.2.2", "2001:db8::3", "2001:db8::2", "2001:db8::1", "192.0.2.1"])
        );
    }

    #[test]
    fn malformed_forwarded_hop_is_unknown() {
        for bad in [
            "",
            "unknown",
            "_hidden",
            "1.2.3",
            "1.2.3.4:",
            "1.2.3.4:port",
            "[::1",
            "[::1]x",
            "fe80::1%eth0",
            "1.2.3.4 5.6.7.8",
            "\u{fc}",
        ] {
            assert_eq!(parse_hop(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(hops(&["unknown, 2.2.2.2"]).len(), 2);
    }

    #[test]
    fn empty_elements_are_no_hops() {
        assert_eq!(
            hops(&["1.1.1.1,, ,\t2.2.2.2 ,", "", ",3.3.3.3"]),
            some(&["3.3.3.3", "2.2.2.2", "1.1.1.1"])
        );
        let mut headers = HeaderMap::new();
        headers.append(X_FORWARDED_FOR, "".parse().unwrap());
        assert_eq!(appended(&headers, "192.0.2.1".parse().unwrap()), "192.0.2.1");
    }

    #[test]
    fn appended_forwarded_header_keeps_every_line() {
        let mut headers = HeaderMap::new();
        headers.append(X_FORWARDED_FOR, "1.1.1.1, bogus".parse().unwrap());
        headers.append(X_FORWARDED_FOR, "2.2.2.2".parse().unwrap());
        let peer = "192.0.2.1".parse().unwrap();
        assert_eq!(appended(&headers, peer), "1.1.1.1, bogus,2.2.2.2,192.0.2.1");
        assert_eq!(appended(&HeaderMap::new(), "2001:db8::1".parse().unwrap()), "2001:db8::1");
    }
}
