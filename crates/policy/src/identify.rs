//! Request attributes: extracts what rules can use from a request's header section and its peer.
//!
//! Everything that a client can spell in several ways is normalised here, once, so that no spelling of a path or host
//! bypasses a rule. The module is pure. It borrows from the request whenever a value is already in normal form.

pub mod body;
pub mod certificate;
pub mod cidr;
pub mod client_headers;
pub mod client_ip;
pub mod cookie;
pub mod descriptor;
pub mod forwarded;
pub mod geo;
pub mod host;
pub mod jwt;
pub mod lookup;
pub mod path;
pub mod recorded;
pub mod via;
pub mod words;

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use self::body::RequestFields;
use self::certificate::ClientCertificate;
use self::cidr::CidrSet;
use self::client_headers::AddressHeader;
use self::client_ip::ClientAddress;
use self::descriptor::Entries;
use self::geo::{Asn, GeoDatabases, GeoLocation, GeoLookup};
use self::host::RequestHost;
use self::jwt::Verifier;
use self::jwt::claim::ClaimName;
use self::lookup::Ambiguity;
use self::via::Via;
use weir_limiter::timestamp::Timestamp;

/// Settings of attribute extraction: trusted proxies, prefix lengths, databases and tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct IdentifySettings {
    /// Peers that are believed what they state about clients.
    pub trusted_proxies: CidrSet,
    /// Headers in which they name the client; the first that is present is read.
    pub address_headers: Box<[AddressHeader]>,
    /// Whether one of them is none of the known headers that name a client.
    pub reads_other_headers: bool,
    /// Whether headers of other peers that name a client or a target are forwarded.
    pub keeps_client_headers: bool,
    /// Peers whose X-Forwarded-Client-Cert header is trusted.
    pub client_certificate_proxies: CidrSet,
    /// Prefix length of the network that counts as one IPv6 client, in bits, from 1 to 128.
    pub ipv6_prefix: u8,
    /// Geolocation databases.
    pub geo: GeoDatabases,
    /// Verifier of tokens, if rules use claims.
    pub jwt: Option<Arc<Verifier>>,
    /// How this hop names itself to upstreams; `None` if it does not.
    pub via: Option<Via>,
}

impl Default for IdentifySettings {
    fn default() -> Self {
        Self {
            trusted_proxies: CidrSet::default(),
            address_headers: Box::new([AddressHeader::default()]),
            reads_other_headers: false,
            keeps_client_headers: false,
            client_certificate_proxies: CidrSet::default(),
            ipv6_prefix: 64,
            geo: GeoDatabases::default(),
            jwt: None,
            via: Via::new(Via::DEFAULT_NAME),
        }
    }
}

impl IdentifySettings {
    /// Returns the client on whose behalf `peer` has sent a request with these headers.
    pub fn client_behind(&self, peer: IpAddr, headers: &HeaderMap) -> ClientAddress {
        client_ip::resolve(peer, headers, &self.trusted_proxies, &self.address_headers)
    }
}

/// The attributes of a request that rules can use.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    /// Method, compared case-sensitively (RFC 9110, section 9.1). Only a descriptor can lack it.
    pub method: Option<&'a Method>,
    pub host: RequestHost<'a>,
    /// Normalised path; empty for a descriptor without one.
    pub path: Cow<'a, str>,
    /// Query as received, without `?`.
    pub query: Option<&'a str>,
    /// The headers as received.
    pub headers: &'a HeaderMap,
    /// Address of the client. Rules use [`Self::client_ip`], which is `None` for a descriptor without an address.
    pub client: ClientAddress,
    /// Address of the client; for IPv6, its network.
    pub client_network: IpAddr,
    /// Arrival time of the request.
    pub now: Timestamp,
    /// Number of the client's plan, cached on first use. The numbers are defined by `rules::membership`.
    pub plan: OnceCell<Result<Option<u16>, Ambiguity>>,
    pub connection: ConnectionAttributes<'a>,
    /// Fields of the body.
    pub body: Cell<RequestFields<'a>>,
    /// Size of the body, if it has arrived completely.
    pub body_size: Cell<Option<u64>>,
    /// Entries of the Envoy descriptor, if the request was not proxied here.
    pub descriptor: Option<Entries<'a>>,
    client_is_known: bool,
    geo_lookup: GeoLookup<'a>,
    token: jwt::RequestToken<'a>,
}

/// What is known of the connection on which a request arrived; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionAttributes<'a> {
    /// Names in the client's certificate, if it presented a valid one.
    pub certificate: Option<&'a ClientCertificate>,
    /// Name of the listener that received the request; `None` if it is unknown.
    pub listener: Option<&'a str>,
}

impl Attributes<'_> {
    /// Returns the client's address. Only a descriptor can lack it.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_is_known.then_some(self.client.ip)
    }

    /// Returns the client's location, if a database contains it. Looked up on first use.
    pub fn location(&self) -> GeoLocation {
        self.client_ip().map_or_else(GeoLocation::default, |ip| self.geo_lookup.location(ip))
    }

    /// Sets the client's location, which is then not looked up.
    pub fn set_location(&self, location: GeoLocation) {
        self.geo_lookup.set_location(location);
    }

    /// Returns the autonomous system of the client's address, if a database contains it. Looked up on first use.
    pub fn autonomous_system(&self) -> Option<Asn> {
        self.geo_lookup.autonomous_system(self.client_ip()?)
    }

    /// Returns the value of a claim in the client's token as text, if the token is valid. Verified on first use.
    ///
    /// # Errors
    /// [`Ambiguity`] if the upstream might find another token in the request.
    pub fn claim(&self, claim: &ClaimName) -> Result<Option<&str>, Ambiguity> {
        self.token.claim(claim, self.headers, self.now)
    }
}

/// Error: the request cannot be matched against rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed path")]
pub struct MalformedPath;

/// Maximum length of a method. The longest registered one has 17 letters; longer ones would only fill logs.
const MAX_METHOD_LENGTH: usize = 64;

/// Whether a reverse proxy forwards requests with this method.
pub fn is_forwarded_method(method: &Method) -> bool {
    !matches!(*method, Method::CONNECT | Method::TRACE) && method.as_str().len() <= MAX_METHOD_LENGTH
}

/// Returns the attributes of a request that arrived from `peer` at `now`.
///
/// # Errors
/// [`MalformedPath`] if the path contains a NUL or an invalid percent-encoding.
pub fn identify<'a>(
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    peer: IpAddr,
    settings: &'a IdentifySettings,
    now: Timestamp,
) -> Result<Attributes<'a>, MalformedPath> {
    let client = settings.client_behind(peer, headers);
    Ok(Attributes {
        method: Some(method),
        host: RequestHost::from_request(uri, headers),
        path: path::normalise(uri.path())?,
        query: uri.query(),
        headers,
        client_network: client_ip::network(client.ip, 32, settings.ipv6_prefix),
        client,
        now,
        plan: OnceCell::new(),
        connection: ConnectionAttributes::default(),
        body: Cell::default(),
        body_size: Cell::default(),
        descriptor: None,
        client_is_known: true,
        geo_lookup: GeoLookup::new(&settings.geo),
        token: jwt::RequestToken::new(settings.jwt.as_ref()),
    })
}
