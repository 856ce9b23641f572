//! Decisions for another proxy, which forwards the requests itself: how it asks, and how it gets the answer.
//!
//! A request for a decision describes the request that the other proxy has received. [`restore`] changes it into that
//! one if headers describe it; [`check`] reads Envoy's message.

pub mod check;

mod wire;

use http::header::HOST;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version, request};

use crate::identify::IdentifySettings;

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

/// Form in which a proxy asks for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InquiryForm {
    /// Traefik or Caddy: the reply is for the client, unless it is successful.
    ForwardAuth,
    /// nginx, which knows success, 401 and 403.
    AuthRequest,
    /// Envoy's HTTP service: 200 admits, and errors of the server are failures.
    HttpCheck,
    /// Envoy's call over gRPC.
    GrpcCheck,
}

impl InquiryForm {
    /// Returns the form of a request by this protocol.
    pub fn new(protocol: DecisionProtocol, head: &request::Parts) -> Self {
        match protocol {
            DecisionProtocol::ForwardAuth => Self::ForwardAuth,
            DecisionProtocol::AuthRequest => Self::AuthRequest,
            DecisionProtocol::ExtAuthz if check::is_check(head) => Self::GrpcCheck,
            DecisionProtocol::ExtAuthz => Self::HttpCheck,
        }
    }
}

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// Error: it is unknown about which request a decision is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidInquiry {
    /// Another peer would learn and charge the limits of clients that it names.
    #[error("this peer is not in client_ip.trusted_proxies")]
    UntrustedPeer,
    /// A header is missing.
    #[error("missing header {0}: the proxy that asks must set it")]
    Missing(HeaderName),
    /// A header must have one value. A second one may be the client's.
    #[error("more than one header {0}: the proxy that asks must replace that of the client")]
    Repeated(HeaderName),
    /// A header has a value without a meaning.
    #[error("invalid value of header {0}")]
    Malformed(HeaderName),
    /// Over HTTP/2, only gRPC is served. A client could have its own request read as a message otherwise.
    #[error(
        "over HTTP/2 only envoy.service.auth.v3.Authorization/Check is served; the HTTP service needs HTTP/1.1"
    )]
    NotCheck,
    /// A message of Envoy cannot be read.
    #[error("invalid CheckRequest: {0}")]
    Message(&'static str),
}

/// Changes the head of a request for a decision into that of the request that its headers describe.
///
/// # Errors
/// What is missing or has no meaning. The head is then changed in part.
pub fn restore(
    protocol: DecisionProtocol,
    head: &mut request::Parts,
    settings: &IdentifySettings,
) -> Result<(), InvalidInquiry> {
    match protocol {
        DecisionProtocol::ForwardAuth => {
            head.method = method(&mut head.headers, X_FORWARDED_METHOD)?;
            head.uri = target(&mut head.headers, X_FORWARDED_URI)?.0;
            let host = single(&head.headers, X_FORWARDED_HOST)?;
            head.headers.insert(HOST, host);
        }
        DecisionProtocol::AuthRequest => {
            head.method = method(&mut head.headers, X_ORIGINAL_METHOD)?;
            let (target, host) = target(&mut head.headers, X_ORIGINAL_URI)?;
            if let Some(authority) = host.or_else(|| authority(&head.uri)) {
                head.headers.insert(HOST, authority);
            }
            head.uri = target;
        }
        DecisionProtocol::ExtAuthz if head.version == Version::HTTP_2 => {
            return Err(InvalidInquiry::NotCheck);
        }
        DecisionProtocol::ExtAuthz => {}
    }
    head.extensions.clear();
    require_client(&head.headers, settings)
}

/// Requires a header that names the client. Otherwise the proxy that asks would be the client of all requests.
fn require_client(headers: &HeaderMap, settings: &IdentifySettings) -> Result<(), InvalidInquiry> {
    let mut names = settings.address_headers.iter().map(|named| named.name());
    if names.any(|name| headers.contains_key(name)) {
        return Ok(());
    }
    let first = settings.address_headers.first().cloned().unwrap_or_default();
    Err(InvalidInquiry::Missing(first.name().clone()))
}

fn method(headers: &mut HeaderMap, name: HeaderName) -> Result<Method, InvalidInquiry> {
    let value = single(headers, name.clone())?;
    headers.remove(&name);
    Method::from_bytes(value.as_bytes()).map_err(|_| InvalidInquiry::Malformed(name))
}

/// Returns the target in origin-form, and the host that it names if it is a URL.
fn target(headers: &mut HeaderMap, name: HeaderName) -> Result<(Uri, Option<HeaderValue>), InvalidInquiry> {
    let value = single(headers, name.clone())?;
    headers.remove(&name);
    parse_target(value.as_bytes()).ok_or(InvalidInquiry::Malformed(name))
}

/// Returns a target in origin-form, and the host that it names; `None` if it is neither a path nor a URL.
fn parse_target(text: &[u8]) -> Option<(Uri, Option<HeaderValue>)> {
    let uri = Uri::try_from(text).ok()?;
    let host = authority(&uri);
    let is_path = text.starts_with(b"/") || text == b"*";
    if is_path == host.is_some() || (host.is_some() && uri.scheme().is_none()) {
        return None;
    }
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = match uri.path_and_query().map(PathAndQuery::as_str) {
        Some(query) if query.starts_with('?') => PathAndQuery::try_from(format!("/{query}")).ok(),
        _ => uri.path_and_query().cloned(),
    };
    Some((Uri::from_parts(parts).ok()?, host))
}

fn authority(uri: &Uri) -> Option<HeaderValue> {
    HeaderValue::from_str(uri.authority()?.as_str()).ok()
}

fn single(headers: &HeaderMap, name: HeaderName) -> Result<HeaderValue, InvalidInquiry> {
    let mut values = headers.get_all(&name).iter();
    match (values.next(), values.next()) {
        (None, _) => Err(InvalidInquiry::Missing(name)),
        (Some(value), None) => Ok(value.clone()),
        (Some(_), Some(_)) => Err(InvalidInquiry::Repeated(name)),
    }
}

#[cfg(test)]
mod tests;
