//! A limit that another rate limit service keeps: what it is asked, and what holds if it does not answer.
//!
//! A service of Envoy's protocol is asked about a descriptor, a list of named values. A rule makes one of the parts of
//! its key, under the names that Envoy's own actions have unless it gives others, and of fixed values.

use schemars::JsonSchema;
use serde::Deserialize;
use smallvec::SmallVec;

use super::RuleIndex;
use super::key::{Incomplete, KeyPart, KeyTemplate};
use super::matcher::Route;
use super::selection::Selected;
use crate::identify::lookup::Ambiguity;
use crate::identify::{Attributes, client_ip};

/// Where a rule's limit is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Position of the service among those of the configuration.
    pub service: usize,
    /// Where that is, for people.
    pub place: Box<str>,
    /// The domain under which it is asked.
    pub domain: Box<str>,
    /// The descriptor; at least one entry.
    pub entries: Box<[Entry]>,
    /// Leading bits of an IPv6 address that make one client, where the key does not say.
    pub ipv6_prefix: u8,
    /// What holds where it gives no answer.
    pub on_error: OnError,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The same for all requests.
    Fixed {
        /// Its key.
        key: Box<str>,
        /// Its value.
        value: Box<str>,
    },
    /// A part of the rule's key.
    Part {
        /// Its key.
        key: Box<str>,
        /// Position of the part.
        part: usize,
    },
}

/// What becomes of a request without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// It passes.
    #[default]
    Allow,
    /// It is refused.
    Deny,
    /// The rule's own limits decide.
    Local,
}

/// A question for the service of a rule about one request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Whose it is.
    pub rule: RuleIndex,
    /// Else the rule only looks on.
    pub is_enforced: bool,
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// What the request costs.
    pub hits: u32,
    /// What decides if there is no answer, with [`OnError::Local`].
    pub otherwise: SmallVec<[Selected; 2]>,
}

impl OnError {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
        }
    }
}

impl Remote {
    /// The descriptor of a request that matched by `route`; a part of `key` that is missing has an empty value.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several of a part.
    pub(super) fn descriptor(
        &self,
        key: &KeyTemplate,
        request: &Attributes<'_>,
        route: Route<'_>,
    ) -> Result<Vec<(String, String)>, Ambiguity> {
        let entry = |entry: &Entry| match entry {
            Entry::Fixed { key, value } => Ok((key.to_string(), value.to_string())),
            Entry::Part { key: name, part } => {
                let value = match key.0.get(*part).map(|part| part.text(request, route, self.ipv6_prefix)) {
                    None | Some(Err(Incomplete::Missing)) => String::new(),
                    Some(Err(Incomplete::Ambiguous(ambiguity))) => return Err(ambiguity),
                    Some(Ok(value)) => value,
                };
                Ok((name.to_string(), value))
            }
        };
        self.entries.iter().map(entry).collect()
    }
}

impl KeyPart {
    /// What an entry is called that has this part's value: as Envoy's action for it is, if it has one, or else by what
    /// people call the part.
    pub fn entry_key(&self) -> String {
        match self {
            Self::ClientIp | Self::ClientNetwork { .. } => "remote_address".to_owned(),
            Self::Header(name) => name.as_str().to_owned(),
            Self::Cookie(name) | Self::Query(name) | Self::Descriptor(name) => name.to_string(),
            Self::Jwt(claim) => claim.to_string(),
            Self::Certificate(name) => name.to_string(),
            Self::Plan(_)
            | Self::Country
            | Self::Continent
            | Self::System
            | Self::Route
            | Self::Path
            | Self::Method
            | Self::Host => self.to_string(),
        }
    }

    /// The value for people and other programs: an address or network in writing, anything else as it came.
    fn text(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        ipv6_prefix: u8,
    ) -> Result<String, Incomplete> {
        match self {
            Self::ClientIp => network_of(request, None, ipv6_prefix),
            Self::ClientNetwork { ipv4, ipv6 } => network_of(request, *ipv4, ipv6.unwrap_or(ipv6_prefix)),
            Self::System => Ok(request.system().ok_or(Incomplete::Missing)?.0.to_string()),
            // What is no text gets the same stand-in everywhere: such clients share a counter, and none gains by it.
            other => Ok(String::from_utf8_lossy(&other.octets(request, route)?).into_owned()),
        }
    }
}

/// The client's network as `10.0.0.0/8`, or its address where that is all of it.
fn network_of(request: &Attributes<'_>, ipv4: Option<u8>, ipv6: u8) -> Result<String, Incomplete> {
    let ip = request.client_ip().ok_or(Incomplete::Missing)?;
    let (bits, all) = if ip.is_ipv4() { (ipv4.unwrap_or(32), 32) } else { (ipv6, 128) };
    let network = client_ip::network(ip, bits, bits);
    Ok(if bits < all { format!("{network}/{bits}") } else { network.to_string() })
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

    use super::*;
    use crate::identify::{Settings, identify};
    use crate::limiter::timestamp::Timestamp;

    /// The value of `part` for a client at `peer` whose `x-key` has these octets.
    fn text(part: &KeyPart, peer: &str, key: &[u8]) -> Result<String, Incomplete> {
        let (uri, settings) = (Uri::from_static("/a%20b?q=1"), Settings::default());
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static("x-key"), HeaderValue::from_bytes(key).unwrap())]);
        let now = Timestamp::from_secs(0);
        let peer = peer.parse().unwrap();
        let request = identify(&Method::GET, &uri, &headers, peer, &settings, now).unwrap();
        part.text(&request, Route("/{x}"), settings.ipv6_prefix)
    }

    #[test]
    fn a_client_is_written_as_the_network_that_it_is_counted_by() {
        let network = |ipv4, ipv6| KeyPart::ClientNetwork { ipv4, ipv6 };
        for (part, peer, written) in [
            (KeyPart::ClientIp, "192.0.2.7", "192.0.2.7"),
            (KeyPart::ClientIp, "2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
            (network(Some(24), None), "192.0.2.7", "192.0.2.0/24"),
            (network(Some(24), None), "2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
            (network(None, Some(48)), "2001:db8:1:2:3::7", "2001:db8:1::/48"),
            (network(None, Some(128)), "2001:db8::7", "2001:db8::7"),
        ] {
            assert_eq!(text(&part, peer, b""), Ok(written.to_owned()), "{part} of {peer}");
        }
    }

    #[test]
    fn other_parts_are_written_as_they_came() {
        let header = KeyPart::Header(HeaderName::from_static("x-key"));
        for (part, key, written) in [
            (&header, &b"acme"[..], "acme"),
            (&header, b"\xff", "\u{fffd}"),
            (&KeyPart::Path, b"", "/a b"),
            (&KeyPart::Route, b"", "/{x}"),
            (&KeyPart::Method, b"", "GET"),
            (&KeyPart::Query("q".into()), b"", "1"),
        ] {
            assert_eq!(text(part, "192.0.2.1", key), Ok(written.to_owned()), "{part}");
        }
        assert_eq!(text(&KeyPart::Cookie("none".into()), "192.0.2.1", b""), Err(Incomplete::Missing));
    }
}
