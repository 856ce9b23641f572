//! The cache key: everything of a request that the upstream may have used for its response.
//!
//! A service may use any request header, whether or not its `vary` says so. A cache that stores by the target alone then
//! gives one client's input to all others (J. Kettle, "Practical Web Cache Poisoning", 2018). So every header is part of the
//! key unless the upstream never sees the client's value, or the value cannot steer a response: [`Class`] says which. A header
//! that is not known may say who the client is, so it prevents storing.

mod class;

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use self::class::Class;

/// A request as far as its response may depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The upstream that serves it. Routes may choose one by the client's address or plan.
    pub upstream: &'a str,
    /// The host and port as the upstream sees them. Services write both into links.
    pub authority: &'a [u8],
    /// The path and query as received.
    pub target: &'a str,
    /// Whether the client speaks TLS.
    pub is_secured: bool,
    /// The headers as received.
    pub headers: &'a HeaderMap,
    /// The client's address.
    pub client: IpAddr,
    /// Whether the peer may speak for others.
    pub peer_is_trusted: bool,
    /// Whether X-Forwarded-For names the client and trusted proxies, and nothing that the client wrote.
    pub chain_is_trusted: bool,
    /// What the upstream learns of the client's certificate, if it has shown one that holds.
    pub certificate: Option<&'a [u8]>,
}

/// Which headers the configuration treats in its own way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// Those by which rules, plans and tokens tell clients apart.
    pub personal: Arc<[HeaderName]>,
    /// Those of which the operator says that no response depends on them.
    pub ignored: Arc<[HeaderName]>,
}

/// The keys of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    shared: Box<[u8]>,
    /// With what may say who the client is, if there is any of it.
    personal: Option<Box<[u8]>>,
    is_conditional: bool,
}

/// A key to store a response under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreKey<'a> {
    /// The key.
    pub bytes: &'a [u8],
    /// It may say who the client is.
    pub is_personal: bool,
}

impl CacheKey {
    /// The keys of `request`.
    pub fn new(request: &Request<'_>, headers: &Headers) -> Self {
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
        shared.push(u8::from(request.is_secured));
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

    /// The key to store the response under; `None` for a request whose response must not be stored.
    pub fn to_store(&self) -> Option<StoreKey<'_>> {
        let bytes = self.personal.as_deref().unwrap_or(&self.shared);
        (!self.is_conditional).then_some(StoreKey { bytes, is_personal: self.personal.is_some() })
    }

    /// The keys to look a response up by, in their order. What was made for a request that said nothing about its client
    /// is for every client.
    pub fn to_look_up(&self) -> impl Iterator<Item = &[u8]> {
        self.personal.as_deref().into_iter().chain([&*self.shared])
    }
}

impl Headers {
    /// Whether responses that vary by this header are told apart by their keys, for every client.
    pub fn tell_apart_by(&self, name: &str) -> bool {
        let is_special = self.personal.iter().chain(&*self.ignored).any(|special| *special == name);
        class::is_keyed(name) && !is_special
    }

    fn class(&self, name: &HeaderName, value: &HeaderValue, request: &Request<'_>) -> Class {
        if self.personal.contains(name) {
            Class::Personal
        } else if self.ignored.contains(name) {
            Class::Ignored
        } else {
            Class::of(name.as_str(), value.as_bytes(), request)
        }
    }
}

/// The fields in the order of their names; lines of one name stay in theirs.
fn push_fields(out: &mut Vec<u8>, fields: &mut [(&HeaderName, &HeaderValue)]) {
    fields.sort_by(|(one, _), (other, _)| one.as_str().cmp(other.as_str()));
    out.extend_from_slice(&length(fields.len()));
    for (name, value) in fields {
        push(out, name.as_str().as_bytes());
        push(out, value.as_bytes());
    }
}

/// A part's length, then the part: so no two different keys have the same encoding.
fn push(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&length(part.len()));
    out.extend_from_slice(part);
}

/// Nothing in a request head reaches four gigabytes.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests;
