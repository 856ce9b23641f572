//! What a rule counts apart, and how that becomes one counter.
//!
//! The parts of a key are encoded with their lengths before they are hashed, so no two different keys have
//! the same encoding: `("a_b", "c")` and `("a", "b_c")` never meet. An IPv4 address alone needs no encoding.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderName;
use smallvec::SmallVec;

use super::matcher::Route;
use super::membership::Plans;
use crate::identify::certificate::CertificateName;
use crate::identify::descriptor::Entries;
use crate::identify::jwt::claim::Claim;
use crate::identify::lookup::{self, Ambiguity};
use crate::identify::{Attributes, client_ip, cookie};
use crate::limiter::key::{KeyHash, KeyHasher};

/// One thing that is counted apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// The client's address, an IPv6 client by its network.
    ClientIp,
    /// The client's network of this many leading bits; where that is not said, as [`Self::ClientIp`] has it.
    ClientNetwork {
        /// Of an IPv4 client.
        ipv4: Option<u8>,
        /// Of an IPv6 client.
        ipv6: Option<u8>,
    },
    /// The country of the client's address.
    Country,
    /// The continent of the client's address.
    Continent,
    /// The autonomous system that announces the client's address.
    System,
    /// The name of the client's plan.
    Plan(Arc<Plans>),
    /// The pattern of the rule's `match.path` that matched.
    Route,
    /// The normalised path.
    Path,
    /// The method.
    Method,
    /// The host.
    Host,
    /// The value of a header; lines of a list are joined.
    Header(HeaderName),
    /// The value of the cookie of this name, in one spelling.
    Cookie(Box<str>),
    /// The value of the query parameter of this name, decoded.
    Query(Box<str>),
    /// A claim of the client's token.
    Jwt(Claim),
    /// A name in the client's certificate, the first of its kind.
    Certificate(CertificateName),
    /// The values of this key in a descriptor of Envoy's, all of them in their order.
    Descriptor(Box<str>),
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientIp => f.write_str("client_ip"),
            Self::ClientNetwork { ipv4, ipv6 } => write_network(f, *ipv4, *ipv6),
            Self::Country => f.write_str("country"),
            Self::Continent => f.write_str("continent"),
            Self::System => f.write_str("asn"),
            Self::Plan(_) => f.write_str("plan"),
            Self::Route => f.write_str("route"),
            Self::Path => f.write_str("path"),
            Self::Method => f.write_str("method"),
            Self::Host => f.write_str("host"),
            Self::Header(name) => write!(f, "{{header: {name}}}"),
            Self::Cookie(name) => write!(f, "{{cookie: {name}}}"),
            Self::Query(name) => write!(f, "{{query: {name}}}"),
            Self::Jwt(claim) => write!(f, "{{jwt: {claim}}}"),
            Self::Certificate(name) => write!(f, "{{tls: {name}}}"),
            Self::Descriptor(key) => write!(f, "{{descriptor: {key}}}"),
        }
    }
}

fn write_network(f: &mut fmt::Formatter<'_>, ipv4: Option<u8>, ipv6: Option<u8>) -> fmt::Result {
    let given = [("prefix", ipv6), ("ipv4_prefix", ipv4)];
    let given = given.into_iter().filter_map(|(name, bits)| Some(format!("{name}: {}", bits?)));
    write!(f, "{{client_ip: {{{}}}}}", given.collect::<Vec<_>>().join(", "))
}

/// The parts of a rule's key, in order; none means one counter for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTemplate(pub Box<[KeyPart]>);

/// Why a request has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// A part is absent.
    Missing,
    /// A part can be read in more than one way. Any choice would let whoever writes both pass as somebody else.
    Ambiguous(Ambiguity),
}

impl From<Ambiguity> for Incomplete {
    fn from(ambiguity: Ambiguity) -> Self {
        Self::Ambiguous(ambiguity)
    }
}

/// The encoding of all incomplete keys; no complete key has it.
pub(super) const SHARED: &[u8] = &[u8::MAX];

/// The counter that all requests with an incomplete key share.
pub fn shared(hasher: KeyHasher) -> KeyHash {
    hasher.hash(SHARED)
}

pub(super) type Encoded = SmallVec<[u8; 128]>;

/// Octets of a length before what it is the length of.
const LENGTH: usize = size_of::<u32>();

impl KeyTemplate {
    /// The counter of a request that matched by `route`.
    ///
    /// # Errors
    /// [`Incomplete`] if the request lacks a part, or has several of one.
    pub fn hash(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        hasher: KeyHasher,
    ) -> Result<KeyHash, Incomplete> {
        // Most rules, and most addresses.
        if let [part] = &*self.0
            && let Some(IpAddr::V4(v4)) = part.address(request)
        {
            return Ok(hasher.hash_u32(v4.to_bits()));
        }
        Ok(hasher.hash(&self.encoded(request, route)?))
    }

    /// The encoding of the key of a request that matched by `route`; the same in every process.
    ///
    /// # Errors
    /// [`Incomplete`] as of [`Self::hash`].
    pub(super) fn encoded(&self, request: &Attributes<'_>, route: Route<'_>) -> Result<Encoded, Incomplete> {
        let mut encoded = Encoded::new();
        for part in &self.0 {
            part.encode(request, route, &mut encoded)?;
        }
        Ok(encoded)
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, part) in self.0.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{part}")?;
        }
        f.write_str("]")
    }
}

impl KeyPart {
    /// The part alone, of a rule without a route; `None` if the request lacks it.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several of it.
    pub(super) fn encoded(&self, request: &Attributes<'_>) -> Result<Option<Encoded>, Ambiguity> {
        let mut encoded = Encoded::new();
        match self.encode(request, Route(""), &mut encoded) {
            Ok(()) => Ok(Some(encoded)),
            Err(Incomplete::Missing) => Ok(None),
            Err(Incomplete::Ambiguous(ambiguity)) => Err(ambiguity),
        }
    }

    /// The value alone, of a part that has one.
    ///
    /// # Errors
    /// [`Incomplete`] if the request lacks it, or has several of it.
    pub(super) fn octets(&self, request: &Attributes<'_>, route: Route<'_>) -> Result<Encoded, Incomplete> {
        let mut encoded = Encoded::new();
        self.encode(request, route, &mut encoded)?;
        Ok(encoded.get(LENGTH..).unwrap_or_default().into())
    }

    /// What of the client's address counts; `None` where that is unknown or not what this part is.
    fn address(&self, request: &Attributes<'_>) -> Option<IpAddr> {
        let ip = request.client_ip()?;
        let bits = match self {
            Self::ClientIp => None,
            Self::ClientNetwork { ipv4, ipv6 } => *if ip.is_ipv4() { ipv4 } else { ipv6 },
            _ => return None,
        };
        Some(bits.map_or(request.client_network, |bits| client_ip::network(ip, bits, bits)))
    }

    fn encode(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        out: &mut Encoded,
    ) -> Result<(), Incomplete> {
        use Incomplete::Missing;
        match self {
            Self::ClientIp | Self::ClientNetwork { .. } => {
                push_address(out, self.address(request).ok_or(Missing)?);
            }
            Self::Country => push(out, &request.place().country.ok_or(Missing)?.code()),
            Self::Continent => push(out, request.place().continent.ok_or(Missing)?.code().as_bytes()),
            Self::System => push(out, &request.system().ok_or(Missing)?.0.to_be_bytes()),
            Self::Plan(plans) => push(out, plans.of(request)?.ok_or(Missing)?.as_bytes()),
            Self::Route => push(out, route.0.as_bytes()),
            Self::Path if request.path.is_empty() => return Err(Missing),
            Self::Path => push(out, request.path.as_bytes()),
            Self::Method => push(out, request.method.ok_or(Missing)?.as_str().as_bytes()),
            Self::Host if request.host.as_str().is_empty() => return Err(Missing),
            Self::Host => push(out, request.host.as_str().as_bytes()),
            Self::Header(name) => push(out, &lookup::header(request.headers, name)?.ok_or(Missing)?),
            Self::Cookie(name) => push(out, &cookie::key(request.headers, name)?.ok_or(Missing)?),
            Self::Jwt(claim) => push(out, request.claim(claim)?.ok_or(Missing)?.as_bytes()),
            Self::Query(name) => {
                push(out, &lookup::parameter(request.query.ok_or(Missing)?, name)?.ok_or(Missing)?);
            }
            Self::Certificate(name) => {
                let names = request.certificate.map_or(&[][..], |certificate| certificate.names(*name));
                push(out, names.first().ok_or(Missing)?.as_bytes());
            }
            Self::Descriptor(key) => push_values(out, request.descriptor.ok_or(Missing)?, key)?,
        }
        Ok(())
    }
}

/// What the encoding of a part is whose value is this.
pub(super) fn encoded_octets(value: &[u8]) -> Encoded {
    let mut encoded = Encoded::new();
    push(&mut encoded, value);
    encoded
}

/// A part's length, then the part.
fn push(out: &mut Encoded, part: &[u8]) {
    // Nothing in a request head reaches four gigabytes.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX - 1);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(part);
}

/// As many values as there are, so that no list of them looks like another or like other parts.
fn push_values(out: &mut Encoded, descriptor: Entries<'_>, key: &str) -> Result<(), Incomplete> {
    let count = descriptor.values(key).count();
    if count == 0 {
        return Err(Incomplete::Missing);
    }
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    descriptor.values(key).for_each(|value| push(out, value.as_bytes()));
    Ok(())
}

/// The two kinds of addresses differ in length, and so never meet.
fn push_address(out: &mut Encoded, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => push(out, &v4.octets()),
        IpAddr::V6(v6) => push(out, &v6.octets()),
    }
}

#[cfg(test)]
mod tests;
