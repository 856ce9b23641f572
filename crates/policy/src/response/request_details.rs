//! What a local reply may repeat of the request that it responds to.

use std::net::IpAddr;

use http::header::{ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Uri};

/// Values of a request for the placeholders and the CORS headers of its local reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestDetails {
    pub request_id: Box<str>,
    /// Address of the client.
    pub client_ip: IpAddr,
    pub method: Method,
    /// Path as received, without the query.
    pub path: Box<str>,
    /// Origin of the page that sends the request, if a browser names exactly one.
    pub origin: Option<HeaderValue>,
    /// The request that a browser asks about, if this is a CORS preflight.
    pub preflight: Option<Preflight>,
}

/// A CORS preflight: the request that a browser will send if the response allows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preflight {
    pub method: HeaderValue,
    /// Names of its headers, if any need permission.
    pub headers: Option<HeaderValue>,
}

impl RequestDetails {
    /// Copies what a local reply may repeat.
    pub fn new(method: &Method, uri: &Uri, headers: &HeaderMap, client_ip: IpAddr, request_id: &str) -> Self {
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next().filter(|_| origins.next().is_none()).cloned();
        let preflight =
            (*method == Method::OPTIONS && origin.is_some()).then(|| preflight(headers)).flatten();
        Self {
            request_id: request_id.into(),
            client_ip,
            method: method.clone(),
            path: uri.path().into(),
            origin,
            preflight,
        }
    }
}

fn preflight(headers: &HeaderMap) -> Option<Preflight> {
    let method = headers.get(ACCESS_CONTROL_REQUEST_METHOD)?;
    Method::from_bytes(method.as_bytes()).ok()?;
    let names = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|names| {
        names.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(byte))
    });
    Some(Preflight { method: method.clone(), headers: names.cloned() })
}
