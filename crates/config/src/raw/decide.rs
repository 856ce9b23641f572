//! Decisions for another proxy, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

/// Protocol by which another proxy asks for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, schemars(inline))]
pub enum Decide {
    /// `ForwardAuth` of Traefik, `forward_auth` of Caddy.
    ForwardAuth,
    /// `auth_request` of nginx.
    AuthRequest,
    /// External authorization of Envoy, over gRPC and HTTP.
    ExtAuthz,
}
