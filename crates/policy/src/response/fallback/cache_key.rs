//! Cache key of a request: all parts that the upstream may have used for its response.
//!
//! A service may use any request header, whether or not its `Vary` names it. A cache whose key is the target alone then
//! serves one client's input to all others (J. Kettle, "Practical Web Cache Poisoning", 2018). So every header is part
//! of the key, unless the upstream never sees the client's value or the value cannot affect a response.
//! `Class` defines which. An unknown header may identify the client, so it prevents sharing.

mod class;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use self::class::Class;

/// The parts of a request on which its response may depend.
#[derive(Clone, Copy, Debug)]
pub struct CacheRequest<'a> {
    /// Name of the upstream that serves the request. Routes may choose one by the client's address or plan.
    pub upstream: &'a str,
    /// Host and port as the upstream receives them. Services write both into links.
    pub authority: &'a [u8],
    /// Path and query as received.
    pub target: &'a str,
    /// Whether the client's connection uses TLS.
    pub is_tls: bool,
    /// Headers as received.
    pub headers: &'a HeaderMap,
    /// Address of the client.
    pub client: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub peer_is_trusted: bool,
    /// Whether `X-Forwarded-For` contains only the client and trusted proxies, and nothing that the client wrote.
    pub chain_is_trusted: bool,
    /// What the upstream receives about the client's certificate, if the client presented a valid one.
    pub certificate: Option<&'a [u8]>,
}

/// Headers with a special meaning in the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheHeaderRules {
    /// Headers by which rules, plans and tokens identify clients.
    pub personal: Arc<[HeaderName]>,
    /// Headers that do not affect responses, according to the configuration.
    pub ignored: Arc<[HeaderName]>,
}

/// Cache keys of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    shared: Box<[u8]>,
    /// Key that also contains the headers that may identify the client; `None` if there are none.
    personal: Option<Box<[u8]>>,
    is_conditional: bool,
}

/// Key under which to store a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKey<'a> {
    /// Encoded key.
    pub bytes: &'a [u8],
    /// Whether the key contains headers that may identify the client.
    pub is_personal: bool,
}

impl CacheKey {
    /// Computes the keys of `request`.
    pub fn new(request: &CacheRequest<'_>, headers: &CacheHeaderRules) -> Self {
        let mut keyed: SmallVec<[(&HeaderName, &HeaderValue); 32]> = SmallVec::new();
        let mut personal: SmallVec<[(&HeaderName, &HeaderValue); 8]> = SmallVec::new();
        let mut is_conditional = false;
        for (name, value) in request.headers {
            match headers.class(name, value, request) {
                Class::Ignored => {}
                Class::Keyed => keyed.push((name, value)),
                Class::Personal => personal.push((name, value)),
                Class::Conditional => is_conditional = true,
            }
        }
        let mut shared = Vec::with_capacity(512);
        push(&mut shared, request.upstream.as_bytes());
        push(&mut shared, request.authority);
        push(&mut shared, request.target.as_bytes());
        shared.push(u8::from(request.is_tls));
        push_fields(&mut shared, &mut keyed);
        let is_personal = !personal.is_empty() || request.certificate.is_some();
        let personal = is_personal.then(|| {
            let mut key = shared.clone();
            push_fields(&mut key, &mut personal);
            push(&mut key, request.certificate.unwrap_or_default());
            key.into()
        });
        Self { shared: shared.into(), personal, is_conditional }
    }

    /// Returns the key under which to store the response; `None` if the response must not be stored.
    pub fn to_store(&self) -> Option<StoreKey<'_>> {
        let bytes = self.personal.as_deref().unwrap_or(&self.shared);
        (!self.is_conditional).then_some(StoreKey { bytes, is_personal: self.personal.is_some() })
    }

    /// Yields the keys to look up, in order. A response to a request without identifying headers suits every client.
    pub fn to_look_up(&self) -> impl Iterator<Item = &[u8]> {
        self.personal.as_deref().into_iter().chain([&*self.shared])
    }
}

impl CacheHeaderRules {
    /// Returns whether this header is part of the key for all clients, so that responses may vary by it.
    pub fn is_in_every_key(&self, name: &str) -> bool {
        let is_special = self.personal.iter().chain(&*self.ignored).any(|special| *special == name);
        class::is_keyed(name) && !is_special
    }

    fn class(&self, name: &HeaderName, value: &HeaderValue, request: &CacheRequest<'_>) -> Class {
        if self.personal.contains(name) {
            Class::Personal
        } else if self.ignored.contains(name) {
            Class::Ignored
        } else {
            Class::classify(name.as_str(), value.as_bytes(), request)
        }
    }
}

/// Appends the headers sorted by name; lines of the same name keep their order.
fn push_fields(out: &mut Vec<u8>, fields: &mut [(&HeaderName, &HeaderValue)]) {
    fields.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    out.extend_from_slice(&length(fields.len()));
    for (name, value) in fields {
        push(out, name.as_str().as_bytes());
        push(out, value.as_bytes());
    }
}

/// Appends a part with its length before it, so that different keys have different encodings.
fn push(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&length(part.len()));
    out.extend_from_slice(part);
}

/// Encodes a length; a header section is always shorter than 4 GiB.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests;
