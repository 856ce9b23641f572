//! Who asks, and for what: turns a request's head and its peer into the attributes that rules look at.
//!
//! Everything a client may choose to write is normalised here, once, so that no spelling of a path or a
//! host gets around a rule. Pure; borrows from the request wherever it is already in its normal form.

pub mod certificate;
pub mod cidr;
pub mod client_ip;
pub mod cookie;
pub mod descriptor;
pub mod forwarded;
pub mod geo;
pub mod host;
pub mod jwt;
pub mod lookup;
pub mod path;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, Method, Uri};

use self::certificate::Certificate;
use self::cidr::CidrSet;
use self::client_ip::ClientAddress;
use self::descriptor::Entries;
use self::geo::{Asn, Geo, Place, Whereabouts};
use self::host::Host;
use self::jwt::Verifier;
use self::jwt::claim::Claim;
use self::lookup::Ambiguity;
use crate::limiter::timestamp::Timestamp;

/// Whom to believe, how widely an address counts, and what is known about addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Peers whose X-Forwarded-For is believed.
    pub trusted_proxies: CidrSet,
    /// Peers whose X-Forwarded-Client-Cert is believed.
    pub client_certificate_proxies: CidrSet,
    /// Leading bits of an IPv6 address that make one client, 1 to 128.
    pub ipv6_prefix: u8,
    /// Where addresses are.
    pub geo: Geo,
    /// Who reads tokens, if rules ask for claims.
    pub jwt: Option<Arc<Verifier>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            trusted_proxies: CidrSet::default(),
            client_certificate_proxies: CidrSet::default(),
            ipv6_prefix: 64,
            geo: Geo::default(),
            jwt: None,
        }
    }
}

/// What rules can see of a request.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    /// The method, compared case-sensitively (RFC 9110 section 9.1). Only a descriptor can be without.
    pub method: Option<&'a Method>,
    /// The host.
    pub host: Host<'a>,
    /// The normalised path; empty for a descriptor that says none.
    pub path: Cow<'a, str>,
    /// The query as received, without `?`.
    pub query: Option<&'a str>,
    /// The headers as received.
    pub headers: &'a HeaderMap,
    /// Where the request comes from; rules ask [`Self::client_ip`], which knows whether that is said.
    pub client: ClientAddress,
    /// The client's address, or its network where an IPv6 client is counted by prefix.
    pub client_network: IpAddr,
    /// When the request came.
    pub now: Timestamp,
    /// The number of the client's plan, once a rule has asked; numbers belong to `rules::membership`.
    pub plan: OnceCell<Result<Option<u16>, Ambiguity>>,
    /// What the client's certificate says, if it has shown one that holds.
    pub certificate: Option<&'a Certificate>,
    /// What Envoy said of the request, if it was not proxied here.
    pub descriptor: Option<Entries<'a>>,
    client_is_known: bool,
    whereabouts: Whereabouts<'a>,
    token: jwt::Token<'a>,
}

impl Attributes<'_> {
    /// The client's address. Only a descriptor can be without.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_is_known.then_some(self.client.ip)
    }

    /// Where the client is, as far as there is a database that knows. Looks it up when first asked.
    pub fn place(&self) -> Place {
        self.client_ip().map_or_else(Place::default, |ip| self.whereabouts.place(ip))
    }

    /// The autonomous system of the client's address, if there is a database that knows. Looks it up when
    /// first asked.
    pub fn system(&self) -> Option<Asn> {
        self.whereabouts.system(self.client_ip()?)
    }

    /// What the client's token says, if that holds: the value of `claim` as text. Verifies it when first asked.
    ///
    /// # Errors
    /// [`Ambiguity`] if the service behind us might find another token than we do.
    pub fn claim(&self, claim: &Claim) -> Result<Option<&str>, Ambiguity> {
        self.token.claim(claim, self.headers, self.now)
    }
}

/// A request that no rule can be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed path")]
pub struct Malformed;

/// The attributes of a request that came from `peer` at `now`.
///
/// # Errors
/// [`Malformed`] if the path holds a NUL or a broken percent-encoding.
pub fn identify<'a>(
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    peer: IpAddr,
    settings: &'a Settings,
    now: Timestamp,
) -> Result<Attributes<'a>, Malformed> {
    let client = client_ip::resolve(peer, headers, &settings.trusted_proxies);
    Ok(Attributes {
        method: Some(method),
        host: Host::of(uri, headers),
        path: path::normalise(uri.path())?,
        query: uri.query(),
        headers,
        client_network: client_ip::network(client.ip, 32, settings.ipv6_prefix),
        client,
        now,
        plan: OnceCell::new(),
        certificate: None,
        descriptor: None,
        client_is_known: true,
        whereabouts: Whereabouts::unknown(&settings.geo),
        token: jwt::Token::unread(settings.jwt.as_ref()),
    })
}
