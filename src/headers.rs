//! The header fields of a response, raw or in a map, and what field names mean to a proxy.
//!
//! A map hashes every name, which pays only where fields are looked up. Most fields of a forwarded HTTP/1.1 response
//! leave as they came, so they stay raw until something changes them. [`Headers`] hides which form it is: a reading is
//! the same in both, and a change that the raw form cannot take parses it into a map.

mod names;
mod raw;

use http::header::{AsHeaderName, CONNECTION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::SmallVec;

pub use self::names::{is_hop_by_hop, may_trail};
pub use self::raw::{FieldLines, RawHeaders, write_field};

/// The header fields of a response.
///
/// The upstream's HTTP/1.1 response headers usually are raw, those of HTTP/2 and of most local replies a map.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// Empty where the fields are in `raw`; its memory is for whoever parses them.
    map: HeaderMap,
    /// Empty where the fields are in `map`.
    raw: RawHeaders,
}

/// A response, or its head beside something else than a body.
#[derive(Debug)]
pub struct Response<B> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: Headers,
    /// The body.
    pub body: B,
}

/// Header fields as a writer of HTTP/1.1 needs them.
#[derive(Debug)]
pub enum Form<'a> {
    /// They may be written as they are: none is hop-by-hop, announces trailers, or says where the body ends.
    Raw(&'a RawHeaders),
    /// Any fields.
    Map(&'a HeaderMap),
}

impl Headers {
    /// Raw fields, and an empty map whose memory is used should they be parsed.
    pub fn raw_with_spare(raw: RawHeaders, mut spare: HeaderMap) -> Self {
        spare.clear();
        Self { map: spare, raw }
    }

    fn is_raw(&self) -> bool {
        self.map.is_empty()
    }

    /// The first value of a field.
    #[inline]
    pub fn get(&self, name: &HeaderName) -> Option<&[u8]> {
        if self.is_raw() { self.raw.get(name) } else { self.map.get(name).map(HeaderValue::as_bytes) }
    }

    /// All values of a field, in order.
    pub fn get_all<'a>(&'a self, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
        let mapped = self.map.get_all(name).into_iter().map(HeaderValue::as_bytes);
        self.raw.get_all(name).chain(mapped)
    }

    /// Whether there is such a field.
    pub fn contains(&self, name: &HeaderName) -> bool {
        self.get(name).is_some()
    }

    /// All fields in a map, to be changed.
    pub fn map_mut(&mut self) -> &mut HeaderMap {
        if !self.raw.is_empty() {
            std::mem::take(&mut self.raw).parse_into(&mut self.map);
        }
        &mut self.map
    }

    /// All fields in a map.
    pub fn into_map(mut self) -> HeaderMap {
        std::mem::take(self.map_mut())
    }

    /// Sets a field, in place of those of that name.
    #[inline]
    pub fn set(&mut self, name: &HeaderName, value: &HeaderValue) {
        match self.raw_without(name) {
            Some(raw) => raw.push(name.as_str().as_bytes(), value.as_bytes()),
            None => self.insert(name, value.clone()),
        }
    }

    /// Sets a field to a number.
    #[inline]
    pub fn set_number(&mut self, name: &HeaderName, number: u64) {
        match self.raw_without(name) {
            Some(raw) => raw.push_number(name, number),
            None => self.insert(name, HeaderValue::from(number)),
        }
    }

    /// Sets a field to a text, which must be a value.
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

    /// Sets a field in the map. It is apart from where the raw form is written, which is the usual one.
    #[inline(never)]
    fn insert(&mut self, name: &HeaderName, value: HeaderValue) {
        self.map_mut().insert(name, value);
    }

    /// Adds a field beside those of that name.
    pub fn append(&mut self, name: HeaderName, value: &HeaderValue) {
        if self.is_raw() {
            self.raw.push(name.as_str().as_bytes(), value.as_bytes());
        } else {
            self.map.append(name, value.clone());
        }
    }

    /// Removes a field.
    pub fn remove(&mut self, name: impl AsHeaderName) {
        self.map_mut().remove(name);
    }

    /// The raw form, where this field can be added to it in place of others.
    #[inline]
    fn raw_without(&mut self, name: &HeaderName) -> Option<&mut RawHeaders> {
        (self.is_raw() && self.raw.get(name).is_none()).then_some(&mut self.raw)
    }

    /// Removes the fields of the hop that the message came by (RFC 9110 section 7.6.1), and those that they name but for
    /// what `is_kept`.
    pub fn remove_hop_by_hop(&mut self, is_kept: impl Fn(&str) -> bool) {
        let has_any = if self.is_raw() {
            self.raw.is_special()
        } else {
            self.map.keys().any(|name| is_hop_by_hop(name.as_str().as_bytes()))
        };
        if has_any {
            remove_hop_by_hop(self.map_mut(), is_kept);
        }
    }

    /// Whether there is a Date, which the raw form knows without a look.
    pub fn is_dated(&self) -> bool {
        if self.is_raw() { self.raw.is_dated() } else { self.map.contains_key(http::header::DATE) }
    }

    /// The fields as a writer of HTTP/1.1 needs them.
    pub fn form(&mut self) -> Form<'_> {
        if self.is_raw() && !self.raw.is_special() { Form::Raw(&self.raw) } else { Form::Map(self.map_mut()) }
    }

    /// The memory of the map, which is empty.
    pub fn into_spare(mut self) -> HeaderMap {
        self.map.clear();
        self.map
    }
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

/// Two are the same if every reading is.
impl PartialEq for Headers {
    fn eq(&self, other: &Self) -> bool {
        self.clone().into_map() == other.clone().into_map()
    }
}

/// Removes the fields of the hop that a message came by, and those that its Connection field names. RFC 9110 section
/// 7.6.1: a sender may not have us drop what the message needs to be understood, nor what `is_kept`.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, is_kept: impl Fn(&str) -> bool) {
    let mut removed: SmallVec<[HeaderName; 4]> =
        headers.keys().filter(|name| is_hop_by_hop(name.as_str().as_bytes())).cloned().collect();
    for value in headers.get_all(CONNECTION) {
        // What nearly every Connection field says names no other field.
        let is_usual = |usual: &str| value.as_bytes().eq_ignore_ascii_case(usual.as_bytes());
        if !["keep-alive", "close"].into_iter().any(is_usual) {
            // As bytes: one member beyond ASCII must not hide the others.
            let members = value.as_bytes().split(|byte| *byte == b',');
            let named = members.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
            removed.extend(
                named.filter(|name| !matches!(*name, HOST | CONTENT_LENGTH) && !is_kept(name.as_str())),
            );
        }
    }
    for name in removed {
        headers.remove(name);
    }
}

/// Adds fields beside those that are there, as long as there is room.
pub fn append_all(headers: &mut HeaderMap, more: &HeaderMap) {
    for (name, value) in more {
        let _ = headers.try_append(name, value.clone());
    }
}

impl<B> Response<B> {
    /// A response without header fields.
    pub fn new(status: StatusCode, body: B) -> Self {
        Self { status, headers: Headers::default(), body }
    }

    /// The response as libraries know it.
    pub fn into_http(self) -> http::Response<B> {
        let mut response = http::Response::new(self.body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.into_map();
        response
    }
}

#[cfg(test)]
mod tests;
