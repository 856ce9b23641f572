//! Attributes of a request that rules use: as a part of a key, or compared in `match`.
//!
//! The name, the source and the reading of every attribute are defined in this file and nowhere else. Each `match`
//! below is exhaustive, so a new attribute does not compile until all of them are defined.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::HOST;
use http::{HeaderName, HeaderValue};
use weir_bodies::fields::FieldMask;

use super::membership::Plans;
use super::pattern::{HeaderPattern, Route};
use crate::identify::body::BodyField;
use crate::identify::certificate::CertificateName;
use crate::identify::jwt::claim::ClaimName;
use crate::identify::lookup::{self, Ambiguity};
use crate::identify::{Attributes, client_ip, cookie, forwarded};

/// One attribute of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// The client's address; for IPv6, the client's network.
    ClientIp,
    /// The client's network with these prefix lengths, in bits; `None` means the same as [`Self::ClientIp`].
    ClientNetwork {
        /// Prefix length of an IPv4 client.
        ipv4: Option<u8>,
        /// Prefix length of an IPv6 client.
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
    Method,
    Host,
    /// The name of the listener that received the request.
    Listener,
    /// The value of a header; several lines of a list-valued header are joined.
    Header(HeaderName),
    /// The value of the cookie of this name, in canonical spelling.
    Cookie(Box<str>),
    /// The value of the query parameter of this name, decoded.
    Query(Box<str>),
    /// A claim of the client's token.
    Jwt(ClaimName),
    /// The first name of this kind in the client's certificate.
    Certificate(CertificateName),
    /// A field of the body.
    Body(BodyField),
    /// A field of JSON documents, or one of forms: that of the kind that the body is.
    EitherBody(Box<[BodyField; 2]>),
    /// All values of this key in an Envoy descriptor, in order.
    Descriptor(Box<str>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttributeSource<'a> {
    /// The client's address, with these prefix lengths if the attribute sets them.
    Client {
        /// Prefix length of an IPv4 client.
        ipv4: Option<u8>,
        /// Prefix length of an IPv6 client.
        ipv6: Option<u8>,
    },
    /// The geolocation database of countries and continents.
    Location,
    /// The database of autonomous systems.
    AutonomousSystem,
    /// The client's plan.
    Plans(&'a Plans),
    /// The request line, the host, or cookies.
    Head,
    Header(&'a HeaderName),
    /// The client's token.
    Token,
    /// The listener that received the request.
    Listener,
    /// Names of this kind in the client's certificate.
    Certificate(CertificateName),
    /// These fields of the body.
    Body(FieldMask),
    /// Entries with this key in an Envoy descriptor.
    Descriptor(&'a str),
}

/// Why a request has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncompleteKey {
    /// An attribute is absent.
    Missing,
    /// An attribute can be read in more than one way. Choosing one would let a client that sends both impersonate
    /// another.
    Ambiguous(Ambiguity),
}

impl From<Ambiguity> for IncompleteKey {
    fn from(ambiguity: Ambiguity) -> Self {
        Self::Ambiguous(ambiguity)
    }
}

impl Attribute {
    /// Returns the attribute's keyword in the configuration, and its parameter if it has one.
    fn words(&self) -> (&'static str, Option<String>) {
        match self {
            Self::ClientIp => ("client_ip", None),
            Self::ClientNetwork { ipv4, ipv6 } => ("client_ip", Some(prefixes(*ipv4, *ipv6))),
            Self::Country => ("country", None),
            Self::Continent => ("continent", None),
            Self::System => ("asn", None),
            Self::Plan(_) => ("plan", None),
            Self::Route => ("route", None),
            Self::Path => ("path", None),
            Self::Method => ("method", None),
            Self::Host => ("host", None),
            Self::Listener => ("listener", None),
            Self::Header(name) => ("header", Some(name.to_string())),
            Self::Cookie(name) => ("cookie", Some(name.to_string())),
            Self::Query(name) => ("query", Some(name.to_string())),
            Self::Jwt(claim) => ("jwt", Some(claim.to_string())),
            Self::Certificate(name) => ("tls", Some(name.to_string())),
            Self::Body(body) => (body.word(), Some(body.field.to_string())),
            Self::EitherBody(fields) => ("body", Some(fields[0].field.to_string())),
            Self::Descriptor(key) => ("descriptor", Some(key.to_string())),
        }
    }

    /// Returns the attribute's keyword in the configuration.
    pub fn word(&self) -> &'static str {
        self.words().0
    }

    /// Returns the attribute's parameter in the configuration, such as the name of a header.
    pub fn parameter(&self) -> Option<String> {
        self.words().1
    }

    /// Returns where the attribute comes from.
    pub fn source(&self) -> AttributeSource<'_> {
        match self {
            Self::ClientIp => AttributeSource::Client { ipv4: None, ipv6: None },
            Self::ClientNetwork { ipv4, ipv6 } => AttributeSource::Client { ipv4: *ipv4, ipv6: *ipv6 },
            Self::Country | Self::Continent => AttributeSource::Location,
            Self::System => AttributeSource::AutonomousSystem,
            Self::Plan(plans) => AttributeSource::Plans(plans),
            Self::Route | Self::Path | Self::Method | Self::Host | Self::Cookie(_) | Self::Query(_) => {
                AttributeSource::Head
            }
            Self::Listener => AttributeSource::Listener,
            Self::Header(name) => AttributeSource::Header(name),
            Self::Jwt(_) => AttributeSource::Token,
            Self::Certificate(name) => AttributeSource::Certificate(*name),
            Self::Body(body) => AttributeSource::Body(FieldMask::of(body.index)),
            Self::EitherBody(fields) => {
                AttributeSource::Body(fields.iter().map(|field| field.index).collect())
            }
            Self::Descriptor(key) => AttributeSource::Descriptor(key),
        }
    }

    /// Whether clients choose to send the attribute or not.
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            // Required by RFC 9112 section 3.2.
            Self::Header(name) => *name != HOST,
            Self::Cookie(_)
            | Self::Query(_)
            | Self::Jwt(_)
            | Self::Certificate(_)
            | Self::Body(_)
            | Self::EitherBody(_) => true,
            Self::ClientIp
            | Self::ClientNetwork { .. }
            | Self::Country
            | Self::Continent
            | Self::System
            | Self::Plan(_)
            | Self::Route
            | Self::Path
            | Self::Method
            | Self::Host
            | Self::Listener
            | Self::Descriptor(_) => false,
        }
    }

    /// Passes the attribute's value in a request that matched by `route` to `then`, and returns its result.
    ///
    /// # Errors
    /// [`IncompleteKey`] if the request lacks it, or has several values of it.
    pub fn read<T>(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        then: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, IncompleteKey> {
        use IncompleteKey::Missing;
        Ok(match self {
            // Encodings of IPv4 and IPv6 addresses differ in length, so they cannot collide.
            Self::ClientIp | Self::ClientNetwork { .. } => match self.address(request).ok_or(Missing)? {
                IpAddr::V4(v4) => then(&v4.octets()),
                IpAddr::V6(v6) => then(&v6.octets()),
            },
            Self::Country => then(&request.location().country.ok_or(Missing)?.code()),
            Self::Continent => then(request.location().continent.ok_or(Missing)?.code().as_bytes()),
            Self::System => then(&request.autonomous_system().ok_or(Missing)?.0.to_be_bytes()),
            Self::Plan(plans) => then(plans.plan_of(request)?.ok_or(Missing)?.as_bytes()),
            Self::Route => then(route.0.as_bytes()),
            Self::Path if request.path.is_empty() => return Err(Missing),
            Self::Path => then(request.path.as_bytes()),
            Self::Method => then(request.method.ok_or(Missing)?.as_str().as_bytes()),
            Self::Host if request.host.as_str().is_empty() => return Err(Missing),
            Self::Host => then(request.host.as_str().as_bytes()),
            Self::Listener => then(request.connection.listener.ok_or(Missing)?.as_bytes()),
            Self::Header(name) => then(&lookup::header(request.headers, name)?.ok_or(Missing)?),
            Self::Cookie(name) => then(&cookie::canonical_value(request.headers, name)?.ok_or(Missing)?),
            Self::Query(name) => {
                then(&lookup::parameter(request.query.ok_or(Missing)?, name)?.ok_or(Missing)?)
            }
            Self::Jwt(claim) => then(request.claim(claim)?.ok_or(Missing)?.as_bytes()),
            Self::Certificate(name) => then(names(request, *name).first().ok_or(Missing)?.as_bytes()),
            Self::Body(body) => then(request.body.get().field(body.index)?.ok_or(Missing)?.as_bytes()),
            Self::EitherBody(fields) => {
                let [json, form] = &**fields;
                let body = request.body.get();
                then(body.field(json.index)?.or(body.field(form.index)?).ok_or(Missing)?.as_bytes())
            }
            Self::Descriptor(key) => {
                then(request.descriptor.and_then(|said| said.values(key).next()).ok_or(Missing)?.as_bytes())
            }
        })
    }

    /// Whether requests with the same value of this attribute in different rules have the same value of `other`.
    /// A client is an IPv6 network with a prefix of `ipv6_prefix` bits.
    pub fn determines(&self, other: &Self, ipv6_prefix: u8) -> bool {
        if self.depends_on_rule() {
            return false;
        }
        let (AttributeSource::Client { ipv4, ipv6 }, AttributeSource::Client { ipv4: wide4, ipv6: wide6 }) =
            (self.source(), other.source())
        else {
            return self == other;
        };
        wide4.unwrap_or(32) <= ipv4.unwrap_or(32)
            && wide6.unwrap_or(ipv6_prefix) <= ipv6.unwrap_or(ipv6_prefix)
    }

    /// Whether the attribute is the client's address or network.
    pub(super) fn is_address(&self) -> bool {
        matches!(self.source(), AttributeSource::Client { .. })
    }

    /// Returns the counted part of the client's address; `None` if it is unknown or the attribute is not an address.
    pub(super) fn address(&self, request: &Attributes<'_>) -> Option<IpAddr> {
        let AttributeSource::Client { ipv4, ipv6 } = self.source() else { return None };
        let ip = request.client_ip()?;
        let bits = if ip.is_ipv4() { ipv4 } else { ipv6 };
        Some(bits.map_or(request.client_network, |bits| client_ip::network(ip, bits, bits)))
    }

    /// Whether its value depends on the rule that reads it, in addition to the request.
    pub(super) fn depends_on_rule(&self) -> bool {
        match self {
            // The pattern of the rule that matched.
            Self::Route => true,
            Self::ClientIp
            | Self::ClientNetwork { .. }
            | Self::Country
            | Self::Continent
            | Self::System
            | Self::Plan(_)
            | Self::Path
            | Self::Method
            | Self::Host
            | Self::Listener
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Jwt(_)
            | Self::Certificate(_)
            | Self::Body(_)
            | Self::EitherBody(_)
            | Self::Descriptor(_) => false,
        }
    }

    /// Whether any of `patterns` matches the attribute. If it has several values, one match is enough.
    ///
    /// # Errors
    /// [`Ambiguity`] if the result depends on how the request is read.
    pub(super) fn matches(
        &self,
        request: &Attributes<'_>,
        patterns: &[HeaderPattern],
    ) -> Result<bool, Ambiguity> {
        match self.source() {
            AttributeSource::Header(name) => {
                let lines = request.headers.get_all(name);
                Ok(any(patterns, || lines.iter().map(HeaderValue::as_bytes)))
            }
            AttributeSource::Certificate(name) => {
                Ok(any(patterns, || names(request, name).iter().map(|name| name.as_bytes())))
            }
            AttributeSource::Descriptor(key) => Ok(request
                .descriptor
                .is_some_and(|said| any(patterns, || said.values(key).map(str::as_bytes)))),
            AttributeSource::Client { .. }
            | AttributeSource::Location
            | AttributeSource::AutonomousSystem
            | AttributeSource::Plans(_)
            | AttributeSource::Head
            | AttributeSource::Listener
            | AttributeSource::Body(_)
            | AttributeSource::Token => {
                match self.read(request, Route(""), |value| any(patterns, || std::iter::once(value))) {
                    Ok(matches) => Ok(matches),
                    Err(IncompleteKey::Missing) => Ok(any(patterns, std::iter::empty)),
                    Err(IncompleteKey::Ambiguous(ambiguity)) => Err(ambiguity),
                }
            }
        }
    }

    /// Returns the key of the Envoy descriptor entry for this attribute: the key that Envoy's own action uses, or the
    /// attribute's name.
    pub fn entry_key(&self) -> String {
        if let AttributeSource::Client { .. } = self.source() {
            return "remote_address".to_owned();
        }
        let (word, name) = self.words();
        name.unwrap_or_else(|| word.to_owned())
    }

    /// Returns the value as text for humans and other programs: addresses and networks in their notation, all else
    /// verbatim.
    ///
    /// # Errors
    /// [`IncompleteKey`] as of [`Self::read`].
    pub fn text(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        ipv6_prefix: u8,
    ) -> Result<String, IncompleteKey> {
        match self.source() {
            AttributeSource::Client { ipv4, ipv6 } => network_of(request, ipv4, ipv6.unwrap_or(ipv6_prefix)),
            AttributeSource::AutonomousSystem => {
                Ok(request.autonomous_system().ok_or(IncompleteKey::Missing)?.0.to_string())
            }
            // Invalid UTF-8 is replaced, so such clients share a counter; a client cannot gain by sending it.
            AttributeSource::Location
            | AttributeSource::Plans(_)
            | AttributeSource::Head
            | AttributeSource::Header(_)
            | AttributeSource::Token
            | AttributeSource::Listener
            | AttributeSource::Certificate(_)
            | AttributeSource::Body(_)
            | AttributeSource::Descriptor(_) => {
                self.read(request, route, |value| String::from_utf8_lossy(value).into_owned())
            }
        }
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::EitherBody(fields) = self {
            return write!(f, "{{json: {}, form: {}}}", fields[0].field, fields[1].field);
        }
        match self.words() {
            (word, None) => f.write_str(word),
            (word, Some(name)) => write!(f, "{{{word}: {name}}}"),
        }
    }
}

impl<'a> AttributeSource<'a> {
    /// Whether Envoy descriptors can contain it.
    pub const fn is_in_descriptors(self) -> bool {
        match self {
            Self::Client { .. }
            | Self::Location
            | Self::AutonomousSystem
            | Self::Plans(_)
            | Self::Head
            | Self::Descriptor(_) => true,
            Self::Header(_) | Self::Token | Self::Listener | Self::Certificate(_) | Self::Body(_) => false,
        }
    }

    /// Returns the header name, if the source is a header.
    pub const fn header(self) -> Option<&'a HeaderName> {
        if let Self::Header(name) = self { Some(name) } else { None }
    }

    /// Returns the plans, if the source is a plan.
    pub const fn plans(self) -> Option<&'a Plans> {
        if let Self::Plans(plans) = self { Some(plans) } else { None }
    }

    /// Returns the fields, if the source is a body.
    pub const fn body(self) -> Option<FieldMask> {
        if let Self::Body(fields) = self { Some(fields) } else { None }
    }

    /// Returns the key of the descriptor entries, if the source is a descriptor.
    pub const fn descriptor(self) -> Option<&'a str> {
        if let Self::Descriptor(key) = self { Some(key) } else { None }
    }
}

fn any<'v, V: Iterator<Item = &'v [u8]>>(patterns: &[HeaderPattern], values: impl Fn() -> V) -> bool {
    patterns.iter().any(|pattern| pattern.matches_any(values()))
}

fn names<'a>(request: &Attributes<'a>, name: CertificateName) -> &'a [Box<str>] {
    request.connection.certificate.map_or(&[][..], |certificate| certificate.names(name))
}

fn prefixes(ipv4: Option<u8>, ipv6: Option<u8>) -> String {
    let given = [("prefix", ipv6), ("ipv4_prefix", ipv4)];
    let given = given.into_iter().filter_map(|(name, bits)| Some(format!("{name}: {}", bits?)));
    format!("{{{}}}", given.collect::<Vec<_>>().join(", "))
}

/// Returns the client's network such as `10.0.0.0/8`, or the bare address if the prefix is the whole address.
fn network_of(request: &Attributes<'_>, ipv4: Option<u8>, ipv6: u8) -> Result<String, IncompleteKey> {
    let ip = request.client_ip().ok_or(IncompleteKey::Missing)?;
    let (bits, all) = if ip.is_ipv4() { (ipv4.unwrap_or(32), 32) } else { (ipv6, 128) };
    Ok(write_network(client_ip::network(ip, bits, bits), bits, all))
}

/// Length of the longest network as text.
const MAX_NETWORK_LENGTH: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128".len();

/// Returns a network such as `10.0.0.0/8`, or the bare address if the prefix is the whole address of `all` bits.
pub(super) fn write_network(network: IpAddr, bits: u8, all: u8) -> String {
    let mut text = Vec::with_capacity(MAX_NETWORK_LENGTH);
    forwarded::write_ip(&mut text, network);
    if bits < all {
        text.push(b'/');
        text.extend_from_slice(itoa::Buffer::new().format(bits).as_bytes());
    }
    String::from_utf8(text).unwrap_or_default()
}

#[cfg(test)]
mod tests;
