//! Envoy descriptors: attributes of a request that Envoy sends to a rate limit service, as a list of entries.
//!
//! Entries with customary keys supply the request's attributes: `remote_address`, `path`, `method` and `host`, or the
//! HTTP/2 names `:path`, `:method` and `:authority`. So a rule on these attributes applies to descriptors and to
//! proxied requests alike. Attributes without an entry are absent. Entries are chosen by Envoy's configuration, not by
//! clients, so a repeated key is not an ambiguity.

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use http::{HeaderMap, Method};
use smallvec::SmallVec;

use super::client_ip::{self, ClientAddress};
use super::geo::GeoLookup;
use super::host::RequestHost;
use super::{Attributes, ConnectionAttributes, IdentifySettings, jwt, path};
use weir_limiter::timestamp::Timestamp;

const CLIENT: [&str; 1] = ["remote_address"];
const PATH: [&str; 2] = [":path", "path"];
const METHOD: [&str; 2] = [":method", "method"];
const HOST: [&str; 2] = [":authority", "host"];

/// Envoy sends no headers. A header that rules need must be configured as an entry.
static NO_HEADERS: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

/// The entries of one descriptor, with the method and the client's address parsed.
#[derive(Clone, Debug)]
pub struct ParsedDescriptor<'a> {
    entries: SmallVec<[(&'a str, &'a str); 4]>,
    method: Option<Method>,
    client: Option<IpAddr>,
}

/// Keys and values of a descriptor, in order.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'a>(pub &'a [(&'a str, &'a str)]);

impl<'a> Entries<'a> {
    /// Returns the values of a key, in order.
    pub fn values(self, key: &str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(given, _)| *given == key).map(|(_, value)| *value)
    }
}

impl<'a> ParsedDescriptor<'a> {
    /// Creates a descriptor of these keys and values.
    pub fn new(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let entries: SmallVec<[_; 4]> = entries.into_iter().collect();
        let mut descriptor = Self { entries, method: None, client: None };
        descriptor.method =
            descriptor.first(&METHOD).and_then(|name| Method::from_bytes(name.as_bytes()).ok());
        let client = descriptor.first(&CLIENT).and_then(|address| address.parse().ok());
        descriptor.client = client.map(|address: IpAddr| address.to_canonical());
        descriptor
    }

    /// Returns the attributes of the request described here, at `now`.
    pub fn attributes<'d>(&'d self, settings: &'d IdentifySettings, now: Timestamp) -> Attributes<'d> {
        let (path, query) = self.target();
        let ip = self.client.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Attributes {
            method: self.method.as_ref(),
            host: RequestHost::named(self.first(&HOST).unwrap_or_default()),
            // A malformed path counts as absent.
            path: path::normalise(path).unwrap_or_default(),
            query,
            headers: &NO_HEADERS,
            client: ClientAddress { ip, peer_is_trusted: false, is_internal: false },
            client_network: client_ip::network(ip, 32, settings.ipv6_prefix),
            now,
            plan: OnceCell::new(),
            connection: ConnectionAttributes::default(),
            body: Cell::default(),
            body_size: Cell::default(),
            descriptor: Some(Entries(&self.entries)),
            client_is_known: self.client.is_some(),
            geo_lookup: GeoLookup::new(&settings.geo),
            token: jwt::RequestToken::new(None),
        }
    }

    /// Returns the first value of any of these keys.
    fn first(&self, keys: &[&str]) -> Option<&'a str> {
        self.entries.iter().find(|(key, _)| keys.contains(key)).map(|(_, value)| *value)
    }

    /// Returns path and query; the path is empty if there is none.
    fn target(&self) -> (&'a str, Option<&'a str>) {
        let target = self.first(&PATH).filter(|target| target.starts_with('/')).unwrap_or_default();
        match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_attributes<T>(entries: &[(&str, &str)], inspect: impl FnOnce(&Attributes<'_>) -> T) -> T {
        let settings = IdentifySettings::default();
        let descriptor = ParsedDescriptor::new(entries.iter().copied());
        inspect(&descriptor.attributes(&settings, Timestamp::EPOCH))
    }

    #[test]
    fn descriptor_entries_set_the_request_attributes() {
        let entries = [
            ("remote_address", "::ffff:192.0.2.7"),
            (":path", "/a/../login?next=%2F"),
            (":method", "POST"),
            (":authority", "API.example.com:8443"),
        ];
        with_attributes(&entries, |request| {
            assert_eq!(request.client_ip(), Some([192, 0, 2, 7].into()));
            assert_eq!((&*request.path, request.query), ("/login", Some("next=%2F")));
            assert_eq!(request.method, Some(&Method::POST));
            assert_eq!(request.host.as_str(), "api.example.com");
        });
        with_attributes(&[("path", "/x"), ("method", "GET"), ("host", "h")], |request| {
            assert_eq!((&*request.path, request.host.as_str()), ("/x", "h"));
            assert_eq!(request.method, Some(&Method::GET));
        });
    }

    #[test]
    fn attributes_without_a_descriptor_entry_are_absent() {
        for entries in [
            &[][..],
            &[("remote_address", "unix"), ("path", "login"), ("method", "a b")],
            &[("masked_remote_address", "192.0.2.0/24"), ("path", "/%00"), ("generic_key", "/x")],
        ] {
            with_attributes(entries, |request| {
                assert_eq!((request.client_ip(), request.method), (None, None), "{entries:?}");
                assert_eq!((&*request.path, request.host.as_str()), ("", ""), "{entries:?}");
            });
        }
    }

    #[test]
    fn repeated_descriptor_key_has_all_its_values() {
        let entries = Entries(&[("a", "1"), ("b", "2"), ("a", "3")]);
        assert_eq!(entries.values("a").collect::<Vec<_>>(), ["1", "3"]);
        assert_eq!(entries.values("c").count(), 0);
    }
}
