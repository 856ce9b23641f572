//! Headers in which proxies name the client, its host or the original target.
//!
//! The address of a client is read from those that the configuration chooses ([`AddressHeader`]). A service may believe
//! any of them, so those of untrusted peers are not forwarded ([`names_client_or_target`]).

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::forwarded::{self, X_FORWARDED_FOR};

/// A header from which the address of a client is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressHeader(HeaderName);

impl AddressHeader {
    /// Creates it. `Forwarded` is read as RFC 7239 defines it, every other header as `X-Forwarded-For`: most have one
    /// address.
    pub const fn new(name: HeaderName) -> Self {
        Self(name)
    }

    /// Returns the name of the header.
    pub const fn name(&self) -> &HeaderName {
        &self.0
    }

    /// Returns the hops in all lines, nearest first; `None` for a hop that is not an address.
    pub(super) fn hops_from_nearest(&self, headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
        let parse = if self.0 == FORWARDED { forwarded_for } else { forwarded::parse_hop };
        forwarded::elements_from_nearest(headers, &self.0).map(parse)
    }
}

impl Default for AddressHeader {
    fn default() -> Self {
        Self::new(X_FORWARDED_FOR)
    }
}

/// Reads the parameter `for` of an element of `Forwarded` (RFC 7239 section 4); `None` if it has no address.
///
/// Elements are separated at every comma, also in quotes, where no address has one.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let pairs = element.split(|byte| *byte == b';');
    let values = pairs.filter_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=')?;
        pair[..at].trim_ascii().eq_ignore_ascii_case(b"for").then(|| &pair[at + 1..])
    });
    let mut values = values.map(forwarded::parse_hop);
    // A parameter occurs once in an element (section 4). A second one could be read instead by the service.
    values.next().flatten().filter(|_| values.next().is_none())
}

/// Whether proxies name the client, its host, or the original target in the header `name`, which is in lower case.
///
/// Not those that every forwarded request has (`x-forwarded-for`, `x-forwarded-proto`), and not
/// `x-forwarded-client-cert`, which has a setting of its own.
pub fn names_client_or_target(name: &str) -> bool {
    match name.as_bytes() {
        [b'x', b'-', ..] => names_in_extension(name),
        [b'f', ..] => matches!(name, "forwarded" | "fastly-client-ip" | "fly-client-ip"),
        [b'c', ..] => {
            matches!(name, "cf-connecting-ip" | "cf-connecting-ipv6" | "cf-pseudo-ipv4" | "cf-ipcountry")
        }
        [b't', ..] => name == "true-client-ip",
        [b'd', ..] => name == "do-connecting-ip",
        _ => false,
    }
}

fn names_in_extension(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("x-forwarded-") {
        return !matches!(rest, "for" | "proto" | "client-cert");
    }
    matches!(
        name,
        "x-real-ip"
            | "x-client-ip"
            | "x-cluster-client-ip"
            | "x-forwarded"
            | "x-original-forwarded-for"
            | "x-original-host"
            | "x-original-url"
            | "x-original-uri"
            | "x-rewrite-url"
            | "x-vercel-forwarded-for"
            | "x-azure-clientip"
            | "x-azure-socketip"
            | "x-appengine-user-ip"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(name: &'static str, lines: &[&str]) -> Vec<Option<String>> {
        let header = AddressHeader::new(HeaderName::from_static(name));
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header.name(), line.parse().unwrap());
        }
        header.hops_from_nearest(&headers).map(|hop| hop.map(|ip| ip.to_string())).collect()
    }

    fn some(texts: &[&str]) -> Vec<Option<String>> {
        texts.iter().map(|text| Some((*text).to_owned())).collect()
    }

    #[test]
    fn forwarded_is_read_as_rfc_7239_defines_it() {
        let line = r#"for=192.0.2.43;proto=http, For="[2001:db8:cafe::17]:4711" ; by=203.0.113.43"#;
        assert_eq!(hops("forwarded", &[line]), some(&["2001:db8:cafe::17", "192.0.2.43"]));
        for obscure in
            ["for=unknown", "for=_hidden", "by=192.0.2.1", "192.0.2.1", "for=", "for=1.1.1.1;for=2.2.2.2"]
        {
            assert_eq!(hops("forwarded", &[obscure]), [None], "{obscure}");
        }
    }

    #[test]
    fn other_headers_have_addresses() {
        assert_eq!(hops("cf-connecting-ip", &["2001:db8::1"]), some(&["2001:db8::1"]));
        assert_eq!(hops("x-real-ip", &["192.0.2.1, 192.0.2.2"]), some(&["192.0.2.2", "192.0.2.1"]));
        assert_eq!(hops("x-real-ip", &["for=192.0.2.1"]), [None]);
    }

    #[test]
    fn headers_of_every_request_are_not_among_those_that_name_the_client() {
        for kept in [
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-client-cert",
            "x-request-id",
            "host",
            "from",
        ] {
            assert!(!names_client_or_target(kept), "{kept}");
        }
        for named in ["x-forwarded-host", "x-forwarded-user", "forwarded", "true-client-ip", "x-real-ip"] {
            assert!(names_client_or_target(named), "{named}");
        }
    }
}
