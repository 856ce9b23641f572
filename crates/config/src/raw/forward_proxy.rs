//! Forward proxy of a listener, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{Destination, Duration, Networks, OneOrMany, ZeroOrMany};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// Whether a listener is a forward proxy: `true` for one with default settings, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum ForwardProxy {
    /// `true` for a forward proxy with default settings.
    Switch(bool),
    /// Map with `destinations` and other keys.
    Map(Box<ForwardProxyMap>),
}

impl ForwardProxy {
    /// Whether the listener is a forward proxy.
    pub const fn is_on(&self) -> bool {
        match self {
            Self::Switch(is_on) => *is_on,
            Self::Map(_) => true,
        }
    }
}

/// Forward proxy: requests are sent to the destination that they name.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForwardProxyMap {
    /// Addresses and networks of the clients that may use the proxy, one or a list; an item may also be a file of
    /// networks. The address of the connection counts, not `X-Forwarded-For`. Required unless the listener is on
    /// loopback. Default: clients on loopback.
    pub clients: Option<OneOrMany<Networks>>,
    /// Destinations that the proxy may reach, one or a list: host patterns such as `api.example.com` or
    /// `*.example.com`, addresses and networks, each with an optional port (`db.example.com:5432`). Required unless the
    /// listener is on loopback. Default: every destination.
    pub destinations: Option<OneOrMany<Destination>>,
    /// Ports that `CONNECT` may reach, one or a list, in addition to the ports that `destinations` names. `[]` for
    /// none.
    #[cfg_attr(test, schemars(extend("default" = [443])))]
    pub connect_ports: Option<ZeroOrMany<u16>>,
    /// Maximum time to establish a connection to an address of the destination, including the TLS handshake.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::CONNECT_TIMEOUT))))]
    pub connect_timeout: Option<Duration>,
    /// Request timeout: maximum time from the last byte of the request to the header section of the response, or until
    /// a tunnel is established.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::UPSTREAM_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Maximum time for which a body or a tunnel may make no progress, and for which an unused connection is kept.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::UPSTREAM_IDLE_TIMEOUT))))]
    pub idle_timeout: Option<Duration>,
    /// Whether calls that a destination would reject anyway are rejected here, with a probability that follows from its
    /// responses of the last two minutes. See [Calls that would be rejected](upstream.md#calls-that-would-be-rejected).
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub adaptive_throttle: Option<bool>,
    /// Interval between two DNS lookups of a destination that is in use, randomised by a tenth up or down.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::DESTINATION_DNS_REFRESH))))]
    pub dns_refresh: Option<Duration>,
    /// TLS settings for requests with an `https` URL, as a map.
    pub tls: Option<ForwardProxyTls>,
}

/// TLS settings for requests with an `https` URL. Certificates are always verified.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ForwardProxyTls {
    /// File with the certificate authorities that may issue the certificates of destinations, in PEM. Default: the
    /// system's certificate authorities.
    pub ca: Option<String>,
}
