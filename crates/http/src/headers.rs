//! Response headers in raw or parsed form, and which header names have a meaning to a proxy.
//!
//! A `HeaderMap` hashes every name, which only pays if headers are looked up. Most headers of a forwarded HTTP/1.1
//! response are sent as they were received, so they stay raw until they are changed. [`Headers`] hides the form:
//! lookups give the same results in both. A change that the raw form does not support parses it into a map.

mod names;
mod raw;

use http::header::{AsHeaderName, CONNECTION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, request};
use smallvec::SmallVec;

pub use self::names::{is_hop_by_hop, may_be_trailer};
pub use self::raw::{FieldLines, RawHeaders, write_field};

/// Headers of a response.
///
/// HTTP/1.1 responses of an upstream usually have raw headers; those of HTTP/2 and most local replies have a map.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// Empty while the headers are in `raw`; its memory is reused if they are parsed.
    map: HeaderMap,
    /// Empty while the headers are in `map`.
    raw: RawHeaders,
}

/// Response, or the head of one together with something else in place of its body.
#[derive(Debug)]
pub struct Response<B> {
    pub status: StatusCode,
    pub headers: Headers,
    pub body: B,
}

/// Headers in the form in which an encoder writes them.
#[derive(Debug)]
pub enum WritableHeaders<'a> {
    /// May be written unchanged: no header is hop-by-hop, announces trailers or frames the body.
    Raw(&'a RawHeaders),
    /// As they were received; the encoder has to look at each of them.
    Lines(&'a FieldLines),
    /// Any headers; the encoder has to look at each of them.
    Map(&'a HeaderMap),
}

impl Headers {
    /// Wraps raw headers. The memory of `spare` is used if they are parsed.
    pub fn from_raw(raw: RawHeaders, mut spare: HeaderMap) -> Self {
        spare.clear();
        Self { map: spare, raw }
    }

    fn is_raw(&self) -> bool {
        self.map.is_empty()
    }

    /// Returns the first value of a header.
    #[inline]
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        if self.is_raw() { self.raw.get(name) } else { self.map.get(name).map(HeaderValue::as_bytes) }
    }

    /// Returns all values of a header, in order.
    pub fn get_all<'a>(&'a self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let mapped = self.map.get_all(name).into_iter().map(HeaderValue::as_bytes);
        self.raw.get_all(name).chain(mapped)
    }

    /// Whether the header is present.
    pub fn contains(&self, name: &HeaderName) -> bool {
        self.get(name).is_some()
    }

    /// Returns the headers as a map to be changed; raw headers are parsed first.
    pub fn map_mut(&mut self) -> &mut HeaderMap {
        if !self.raw.is_empty() {
            std::mem::take(&mut self.raw).parse_into(&mut self.map);
        }
        &mut self.map
    }

    /// Returns the headers as a map; raw headers are parsed first.
    pub fn into_map(mut self) -> HeaderMap {
        std::mem::take(self.map_mut())
    }

    /// Sets a header and replaces all values of that name.
    #[inline]
    pub fn set(&mut self, name: &HeaderName, value: &HeaderValue) {
        match self.raw_without(name) {
            Some(raw) => raw.push(name.as_str().as_bytes(), value.as_bytes()),
            None => self.insert(name, value.clone()),
        }
    }

    #[inline]
    pub fn set_number(&mut self, name: &HeaderName, number: u64) {
        match self.raw_without(name) {
            Some(raw) => raw.push_number(name, number),
            None => self.insert(name, HeaderValue::from(number)),
        }
    }

    /// Sets a header to `text`, which must be a valid header value.
    pub fn set_text(&mut self, name: &HeaderName, text: Vec<u8>) {
        match self.raw_without(name) {
            Some(raw) => raw.push(name.as_str().as_bytes(), &text),
            None => {
                if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
                    self.insert(name, value);
                }
            }
        }
    }

    /// Sets a header in the map. Not inlined, to keep the usual raw path short.
    #[inline(never)]
    fn insert(&mut self, name: &HeaderName, value: HeaderValue) {
        self.map_mut().insert(name, value);
    }

    /// Appends a value to a header and keeps those already present.
    pub fn append(&mut self, name: HeaderName, value: &HeaderValue) {
        if self.is_raw() {
            self.raw.push(name.as_str().as_bytes(), value.as_bytes());
        } else {
            self.map.append(name, value.clone());
        }
    }

    pub fn remove(&mut self, name: impl AsHeaderName) {
        self.map_mut().remove(name);
    }

    /// Returns the raw form, without headers of this name, if the headers are raw.
    #[inline]
    fn raw_without(&mut self, name: &HeaderName) -> Option<&mut RawHeaders> {
        if !self.is_raw() {
            return None;
        }
        if self.raw.get(name).is_some() {
            self.raw.retain(|own| !own.eq_ignore_ascii_case(name.as_str().as_bytes()));
        }
        Some(&mut self.raw)
    }

    /// Removes hop-by-hop headers and those that `Connection` names, except those for which `is_kept` returns true (RFC
    /// 9110 section 7.6.1).
    pub fn remove_hop_by_hop(&mut self, is_kept: impl Fn(&str) -> bool) {
        if self.is_raw() {
            if self.raw.needs_filtering() {
                let named: SmallVec<[HeaderName; 2]> = nominated_fields(self.raw.get_all(&CONNECTION));
                let is_named = |name: &[u8]| {
                    let mut named =
                        named.iter().filter(|own| name.eq_ignore_ascii_case(own.as_str().as_bytes()));
                    named.any(|own| !matches!(*own, HOST | CONTENT_LENGTH) && !is_kept(own.as_str()))
                };
                self.raw.retain(|name| !is_hop_by_hop(name) && !is_named(name));
            }
        } else if self.map.keys().any(|name| is_hop_by_hop(name.as_str().as_bytes())) {
            remove_hop_by_hop(&mut self.map, is_kept);
        }
    }

    /// Whether there is a `Date` header. In the raw form this needs no search.
    pub fn has_date(&self) -> bool {
        if self.is_raw() { self.raw.has_date() } else { self.map.contains_key(http::header::DATE) }
    }

    /// Returns the headers in the form in which an encoder writes them.
    pub fn writable(&mut self) -> WritableHeaders<'_> {
        match (self.is_raw(), self.raw.needs_filtering()) {
            (true, false) => WritableHeaders::Raw(&self.raw),
            (true, true) => WritableHeaders::Lines(self.raw.lines()),
            (false, _) => WritableHeaders::Map(&self.map),
        }
    }

    /// Takes the memory of the map, emptied.
    pub fn take_spare(&mut self) -> HeaderMap {
        self.map.clear();
        std::mem::take(&mut self.map)
    }
}

/// Returns the head of a GET of `/` without headers.
pub fn empty_head() -> request::Parts {
    let (head, ()) = Request::new(()).into_parts();
    head
}

/// Takes the head of a request, and leaves an empty one.
pub fn take_head(head: &mut request::Parts) -> request::Parts {
    std::mem::replace(head, empty_head())
}

impl From<HeaderMap> for Headers {
    fn from(map: HeaderMap) -> Self {
        Self { map, raw: RawHeaders::default() }
    }
}

impl From<RawHeaders> for Headers {
    fn from(raw: RawHeaders) -> Self {
        Self { map: HeaderMap::new(), raw }
    }
}

/// Equal if all lookups give the same results, regardless of the form.
impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.clone().into_map() == other.clone().into_map()
    }
}

/// Removes hop-by-hop headers and those that `Connection` names (RFC 9110 section 7.6.1). `Host`, `Content-Length` and
/// headers for which `is_kept` returns true cannot be removed by naming them in `Connection`.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, is_kept: impl Fn(&str) -> bool) {
    let mut removed: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| is_hop_by_hop(name.as_str().as_bytes())).cloned().collect();
    let named = nominated_names(headers.get_all(CONNECTION).into_iter().map(HeaderValue::as_bytes));
    removed.extend(named.filter(|name| !matches!(*name, HOST | CONTENT_LENGTH) && !is_kept(name.as_str())));
    for name in removed {
        headers.remove(name);
    }
}

/// Returns the names of fields that these values of `Connection` name, for trailers.
pub fn nominated_fields<'a, C: FromIterator<HeaderName>>(values: impl Iterator<Item = &'a [u8]>) -> C {
    nominated_names(values).collect()
}

/// Iterates over the names in values of `Connection`.
fn nominated_names<'a>(values: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = HeaderName> {
    // The usual values name no field.
    let is_usual = |value: &[u8]| {
        ["keep-alive", "close"].iter().any(|usual| value.eq_ignore_ascii_case(usual.as_bytes()))
    };
    // Split as bytes: a member that is not ASCII must not hide the others.
    values
        .filter(move |value| !is_usual(value))
        .flat_map(|value| value.split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// Appends all of `more`, as far as the map has room.
pub fn append_all(headers: &mut HeaderMap, more: &HeaderMap) {
    for (name, value) in more {
        let _ = headers.try_append(name, value.clone());
    }
}

impl<B> Response<B> {
    /// Creates a response without headers.
    pub fn new(status: StatusCode, body: B) -> Self {
        Self { status, headers: Headers::default(), body }
    }

    /// Converts into the type of the `http` crate.
    pub fn into_http(self) -> http::Response<B> {
        let mut response = http::Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.into_map();
        response
    }
}

#[cfg(test)]
mod tests;
