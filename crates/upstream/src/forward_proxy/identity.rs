//! Names of this process by which a forwarding loop is detected: its addresses, and its pseudonym in `Via`.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::header::VIA;
use http::{HeaderMap, HeaderValue, Version};

/// Names of this process as a forward proxy.
#[derive(Debug)]
pub struct ProxyIdentity {
    /// Addresses of the listeners.
    addresses: ArcSwap<Vec<SocketAddr>>,
    /// Pseudonym, different in each process.
    pseudonym: Box<str>,
    via: [HeaderValue; 3],
}

impl ProxyIdentity {
    /// Creates the identity of a process that listens on `addresses`; `random` distinguishes it from others.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>, random: u64) -> Self {
        let pseudonym = format!("weir-{random:016x}");
        let via = ["1.0", "1.1", "2"].map(|version| {
            // Consists of valid bytes only, so this cannot fail.
            HeaderValue::try_from(format!("{version} {pseudonym}")).unwrap_or(HeaderValue::from_static(""))
        });
        let addresses = ArcSwap::from_pointee(addresses.into_iter().collect());
        Self { addresses, pseudonym: pseudonym.into(), via }
    }

    /// Replaces the addresses on which the process listens.
    pub fn set_addresses(&self, addresses: impl IntoIterator<Item = SocketAddr>) {
        self.addresses.store(Arc::new(addresses.into_iter().collect()));
    }

    /// Returns the value of `Via` for a message that was received in this version (RFC 9110 section 7.6.3).
    pub fn via(&self, version: Version) -> &HeaderValue {
        let [http10, http11, http2] = &self.via;
        match version {
            Version::HTTP_10 => http10,
            Version::HTTP_2 => http2,
            _ => http11,
        }
    }

    /// Whether a request with these headers has passed through this process already.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        let names_this = |value: &HeaderValue| {
            let entries = value.as_bytes().split(|byte| *byte == b',');
            entries.into_iter().any(|entry| {
                entry.split(|byte| byte.is_ascii_whitespace()).any(|word| word == self.pseudonym.as_bytes())
            })
        };
        headers.get_all(VIA).iter().any(names_this)
    }

    /// Whether a connection to this address would be accepted by this process.
    pub fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let ip = ip.to_canonical();
        self.addresses.load().iter().any(|own| {
            own.port() == port
                && (own.ip().to_canonical() == ip
                    || ip.is_unspecified()
                    || own.ip().is_unspecified() && is_address_of_this_host(ip))
        })
    }
}

/// Whether the address belongs to this host: only then can a socket be bound to it.
fn is_address_of_this_host(ip: IpAddr) -> bool {
    ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_recognised_in_every_spelling() {
        let addresses = ["127.0.0.1:81", "0.0.0.0:82"].map(|address| address.parse().unwrap());
        let identity = ProxyIdentity::new(addresses, 7);
        for (ip, port, is_own) in [
            ("127.0.0.1", 81, true),
            ("::ffff:127.0.0.1", 81, true),
            ("0.0.0.0", 81, true),
            ("127.0.0.2", 81, false),
            ("127.0.0.1", 80, false),
            ("127.0.0.9", 82, true),
            ("192.0.2.1", 82, false),
        ] {
            assert_eq!(identity.is_own(ip.parse().unwrap(), port), is_own, "{ip}:{port}");
        }
    }

    #[test]
    fn pseudonym_in_via_is_recognised() {
        let identity = ProxyIdentity::new([], 7);
        let mut headers = HeaderMap::new();
        headers.append(VIA, HeaderValue::from_static("1.1 other, 1.1 weir-0000000000000008"));
        assert!(!identity.is_in(&headers));
        headers.append(VIA, HeaderValue::from_static("2 a"));
        headers.append(VIA, identity.via(Version::HTTP_11).clone());
        assert!(identity.is_in(&headers));
    }
}
