//! Attributes of a request that was recorded earlier, such as in a line of an access log.
//!
//! A record has only some of what the request had. What it lacks is absent, as if the request had not had it.

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, Method};

use super::client_ip::{self, ClientAddress};
use super::geo::GeoLookup;
use super::host::RequestHost;
use super::{Attributes, ConnectionAttributes, IdentifySettings, MalformedPath, jwt, path};
use weir_limiter::timestamp::Timestamp;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordedAddress {
    /// The record has none.
    #[default]
    Unknown,
    /// The address of the client itself, as some proxy determined it.
    Client(IpAddr),
    /// The address of the peer, which may be a trusted proxy.
    Peer(IpAddr),
}

/// The recorded parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRequest<'a> {
    pub method: Option<&'a Method>,
    /// The host; empty if it is not recorded. One that is not text counts as none.
    pub host: &'a [u8],
    /// The path, without the query.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub address: RecordedAddress,
}

impl<'a> RecordedRequest<'a> {
    /// Returns the attributes of the request, which arrived at `now`.
    ///
    /// # Errors
    /// [`MalformedPath`], as for a request that arrives now.
    pub fn attributes(
        &self,
        settings: &'a IdentifySettings,
        now: Timestamp,
    ) -> Result<Attributes<'a>, MalformedPath> {
        let direct =
            |ip: IpAddr| ClientAddress { ip: ip.to_canonical(), peer_is_trusted: false, is_internal: false };
        let client = match self.address {
            // Who the peer was is not recorded, so its headers are taken as they are.
            RecordedAddress::Unknown => {
                ClientAddress { peer_is_trusted: true, ..direct(Ipv4Addr::UNSPECIFIED.into()) }
            }
            RecordedAddress::Client(ip) => ClientAddress { peer_is_trusted: true, ..direct(ip) },
            RecordedAddress::Peer(peer) => settings.client_behind(peer, self.headers),
        };
        Ok(Attributes {
            method: self.method,
            host: RequestHost::recorded(self.host),
            path: path::normalise(self.path)?,
            query: self.query,
            headers: self.headers,
            client_network: client_ip::network(client.ip, 32, settings.ipv6_prefix),
            client,
            now,
            plan: OnceCell::new(),
            connection: ConnectionAttributes::default(),
            body: Cell::default(),
            body_size: Cell::default(),
            descriptor: None,
            client_is_known: self.address != RecordedAddress::Unknown,
            geo_lookup: GeoLookup::new(&settings.geo),
            token: jwt::RequestToken::new(settings.jwt.as_ref()),
        })
    }
}

#[cfg(test)]
mod tests {
    use http::Uri;

    use super::*;
    use crate::identify::forwarded::X_FORWARDED_FOR;
    use crate::identify::identify;

    fn settings() -> IdentifySettings {
        let trusted = ["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap()].into_iter().collect();
        IdentifySettings { trusted_proxies: trusted, ..IdentifySettings::default() }
    }

    #[test]
    fn recorded_request_has_the_attributes_of_the_live_request() {
        let (settings, peer) = (settings(), "10.0.0.1".parse().unwrap());
        let headers = HeaderMap::from_iter([(X_FORWARDED_FOR, "6.6.6.6, 192.0.2.7".parse().unwrap())]);
        let uri = Uri::from_static("/a/../login?next=%2F");
        let live = identify(&Method::POST, &uri, &headers, peer, &settings, Timestamp::EPOCH).unwrap();
        let record = RecordedRequest {
            method: Some(&Method::POST),
            host: b"",
            path: uri.path(),
            query: uri.query(),
            headers: &headers,
            address: RecordedAddress::Peer(peer),
        };
        let recorded = record.attributes(&settings, Timestamp::EPOCH).unwrap();
        assert_eq!((recorded.client, recorded.client_ip()), (live.client, live.client_ip()));
        assert_eq!((&recorded.path, recorded.query), (&live.path, live.query));
        assert_eq!((recorded.method, recorded.host.as_str()), (live.method, live.host.as_str()));
    }

    #[test]
    fn recorded_client_is_not_resolved_again() {
        let (settings, headers) =
            (settings(), HeaderMap::from_iter([(X_FORWARDED_FOR, "192.0.2.7".parse().unwrap())]));
        let client = |address| {
            let record = RecordedRequest {
                method: None,
                host: b"",
                path: "/",
                query: None,
                headers: &headers,
                address,
            };
            record.attributes(&settings, Timestamp::EPOCH).unwrap().client_ip()
        };
        let proxy: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(client(RecordedAddress::Client(proxy)), Some(proxy));
        assert_eq!(client(RecordedAddress::Peer(proxy)), Some([192, 0, 2, 7].into()));
        assert_eq!(client(RecordedAddress::Unknown), None);
    }
}
