//! Requests to a forward proxy: an absolute target or CONNECT names the destination, or the request is for Weir itself.

use std::rc::Rc;

use http::{Method, Version, request};

use super::connection::DownstreamConnection;
use super::headers::{Hop, HopName};
use super::view::GenerationView;
use weir_policy::identify::Attributes;
use weir_policy::identify::client_ip::{self, ClientAddress};
use weir_upstream::Upstream;
use weir_upstream::forward_proxy::access::Refusal;
use weir_upstream::forward_proxy::destination::Destination;
use weir_upstream::forward_proxy::pool::DestinationPool;

/// Where a request is sent.
#[derive(Debug)]
pub(super) enum NextHop<'v> {
    /// The upstream of its route, as on a reverse proxy.
    Route,
    /// The upstream that is configured for the host that the target names.
    Configured(&'v DestinationPool, &'v Rc<Upstream>),
    /// The destination that the target names.
    Destination(&'v DestinationPool, Destination),
    /// Nowhere: another proxy forwards it.
    Elsewhere,
    /// Nowhere: the forward proxy does not serve it.
    Refused(Refusal),
}

impl<'v> NextHop<'v> {
    /// Returns where a request that arrived on `connection` is sent.
    pub(super) fn of_request(
        connection: &DownstreamConnection,
        view: &'v GenerationView,
        head: &request::Parts,
        attributes: &Attributes<'_>,
    ) -> Self {
        match view.forward_proxy(connection.listener) {
            None if view.decision_protocol(connection.listener).is_some() && connection.stored.is_none() => {
                Self::Elsewhere
            }
            None => Self::Route,
            Some(pool) => {
                Self::of_proxy_request(pool, connection, view, head, attributes).unwrap_or_else(Self::Refused)
            }
        }
    }

    fn of_proxy_request(
        pool: &'v DestinationPool,
        connection: &DownstreamConnection,
        view: &'v GenerationView,
        head: &request::Parts,
        attributes: &Attributes<'_>,
    ) -> Result<Self, Refusal> {
        let proxy = pool.proxy();
        // The client of a stored call was admitted when it sent the request.
        if connection.stored.is_none() && !proxy.admits_client(connection.peer) {
            return Err(Refusal::Client);
        }
        if proxy.identity().is_in(&head.headers) {
            return Err(Refusal::Loop);
        }
        let Some(authority) = head.uri.authority() else { return Ok(Self::Route) };
        if head.method == Method::CONNECT {
            let destination = Destination::of_connect(authority.as_str()).ok_or(Refusal::Malformed)?;
            proxy.check(&destination, true)?;
            return Ok(Self::Destination(pool, destination));
        }
        if let Some(upstream) = view.upstream_for_destination(attributes) {
            return Ok(Self::Configured(pool, upstream));
        }
        let is_secure = head.uri.scheme_str() == Some("https");
        let destination = Destination::of_url(authority.as_str(), is_secure).ok_or(Refusal::Malformed)?;
        match proxy.check(&destination, false) {
            // Over HTTP/2, every request names its authority, also one that is meant for Weir itself.
            Err(Refusal::Loop) if view.upstream(attributes).is_some() => Ok(Self::Route),
            checked => checked.map(|()| Self::Destination(pool, destination)),
        }
    }

    /// Returns the upstream, or the connections to the destination.
    pub(super) fn upstream(self, view: &GenerationView, attributes: &Attributes<'_>) -> Option<Rc<Upstream>> {
        match self {
            Self::Route => Some(view.upstream(attributes)?.for_host(|| attributes.host.as_str())),
            Self::Configured(_, upstream) => Some(upstream.for_host(|| attributes.host.as_str())),
            Self::Destination(pool, destination) => {
                let client = client_ip::network(attributes.client.ip, 32, view.policy.identify.ipv6_prefix);
                Some(pool.upstream(destination, client))
            }
            Self::Elsewhere | Self::Refused(_) => None,
        }
    }

    /// Returns the properties of the connection from which headers of a request are set, which arrived in this version on
    /// behalf of `client`. `random`: for an identifier of the request.
    pub(super) fn hop<'a>(
        &self,
        connection: &'a DownstreamConnection,
        view: &'v GenerationView,
        version: Version,
        client: ClientAddress,
        random: u128,
    ) -> Hop<'a>
    where
        'v: 'a,
    {
        connection.hop(client, random, self.name(view, version))
    }

    /// Returns the name of this hop for a request that arrived in this version. As a forward proxy, it has one by which
    /// it detects loops.
    fn name(&self, view: &'v GenerationView, version: Version) -> HopName<'v> {
        match self {
            Self::Route | Self::Elsewhere | Self::Refused(_) => {
                let via = view.policy.identify.via.as_ref().map(|via| via.value(version));
                HopName { via, is_proxy: false }
            }
            Self::Configured(pool, _) | Self::Destination(pool, _) => {
                HopName { via: Some(pool.proxy().identity().via(version)), is_proxy: true }
            }
        }
    }
}
