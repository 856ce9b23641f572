//! Protocols by which other proxies ask for decisions about requests that they forward themselves.

/// Protocol of a listener that decides about requests and does not forward them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionProtocol {
    /// `ForwardAuth` of Traefik and `forward_auth` of Caddy: `X-Forwarded-Method`, `-Host` and `-Uri` name the request.
    ForwardAuth,
    /// `auth_request` of nginx: `X-Original-Method` and `X-Original-URI` name the request.
    AuthRequest,
    /// External authorization of Envoy: gRPC over HTTP/2, and its HTTP service over HTTP/1.1.
    ExtAuthz,
}
