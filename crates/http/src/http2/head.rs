//! Header sections: what RFC 9113 section 8 demands of them, and their conversion to requests and responses.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};

use super::hpack::{FieldSink, HeaderField, HpackEncoder, Protocol};
use super::malformation::Malformation;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Number of fields for which a header map has room at first.
const EXPECTED_FIELDS: usize = 8;

/// Why a header section is not usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    /// Malformed (RFC 9113 section 8.1.1).
    Malformed(Malformation),
    /// Larger than the maximum size.
    TooLarge,
}

const PSEUDO_HEADERS: HeadError = HeadError::Malformed(Malformation::PseudoHeaders);
const CONTENT_LENGTH_ERROR: HeadError = HeadError::Malformed(Malformation::ContentLength);

impl HeadError {
    /// Returns what is wrong.
    pub(super) const fn malformation(self) -> Malformation {
        match self {
            Self::Malformed(what) => what,
            Self::TooLarge => Malformation::HeaderSize,
        }
    }
}

/// A header section while its fields are decoded.
#[derive(Debug)]
pub(super) struct HeadBuilder {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<PathAndQuery>,
    protocol: Option<Protocol>,
    status: Option<StatusCode>,
    headers: HeaderMap,
    /// Bytes that are left of the maximum size.
    left: usize,
    has_headers: bool,
    has_length: bool,
    /// `:scheme` is present, and is no scheme of RFC 3986.
    has_other_scheme: bool,
    /// `:authority` is present, and is no authority of RFC 3986.
    has_other_authority: bool,
    error: Option<HeadError>,
}

/// Schemes and authorities that a server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptedOrigins {
    /// Those of RFC 3986. A request needs a scheme.
    Uri,
    /// Any, or none, as gRPC servers do: an Envoy sends the name of a cluster, and a client over a Unix socket a path. The
    /// URI of a request then has no authority. For servers that use neither.
    Any,
}

impl HeadBuilder {
    /// Creates an empty section. `max_size` is in bytes, with 32 for each field.
    pub(super) fn new(max_size: u32) -> Self {
        Self {
            method: None,
            scheme: None,
            authority: None,
            path: None,
            protocol: None,
            status: None,
            headers: HeaderMap::new(),
            left: max_size as usize,
            has_headers: false,
            has_length: false,
            has_other_scheme: false,
            has_other_authority: false,
            error: None,
        }
    }

    /// Returns the length of the body as the section states it; `None` if it does not.
    ///
    /// # Errors
    /// If the first `content-length` is not a number.
    pub(super) fn content_length(&self) -> Result<Option<u64>, HeadError> {
        if self.has_length { content_length(&self.headers) } else { Ok(None) }
    }

    /// Returns a request.
    ///
    /// # Errors
    /// [`HeadError`].
    pub(super) fn into_request(self, origins: AcceptedOrigins) -> Result<Request<()>, HeadError> {
        let accepts_any = origins == AcceptedOrigins::Any;
        if !accepts_any && self.has_other_scheme {
            return Err(HeadError::Malformed(Malformation::Scheme));
        }
        if !accepts_any && self.has_other_authority {
            return Err(HeadError::Malformed(Malformation::Authority));
        }
        self.check(self.status.is_none())?;
        let method = self.method.ok_or(PSEUDO_HEADERS)?;
        let is_plain_connect = method == Method::CONNECT && self.protocol.is_none();
        let has_rest = (self.scheme.is_some() || accepts_any) && self.path.is_some();
        let has_none = self.scheme.is_none() && self.path.is_none() && self.authority.is_some();
        let is_extended = self.protocol.is_some();
        if (is_plain_connect && !has_none)
            || (!is_plain_connect && !has_rest)
            || (is_extended && method != Method::CONNECT)
        {
            return Err(PSEUDO_HEADERS);
        }
        let mut parts = http::uri::Parts::default();
        // A URI cannot have one of scheme and authority without the other.
        let has_both = self.scheme.is_some() && self.authority.is_some();
        parts.scheme = self.scheme.filter(|_| has_both);
        parts.authority = self.authority.filter(|_| has_both || is_plain_connect);
        parts.path_and_query = self.path;
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| HeadError::Malformed(Malformation::Path))?;
        *request.method_mut() = method;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = self.headers;
        if let Some(protocol) = self.protocol {
            request.extensions_mut().insert(protocol);
        }
        Ok(request)
    }

    /// Returns a response.
    ///
    /// # Errors
    /// [`HeadError`].
    pub(super) fn into_response(self) -> Result<Response<()>, HeadError> {
        self.check(self.has_no_request_fields())?;
        let mut response = Response::new(());
        *response.status_mut() = self.status.ok_or(PSEUDO_HEADERS)?;
        *response.version_mut() = Version::HTTP_2;
        *response.headers_mut() = self.headers;
        Ok(response)
    }

    /// Returns trailers.
    ///
    /// # Errors
    /// [`HeadError`].
    pub(super) fn into_trailers(self) -> Result<HeaderMap, HeadError> {
        self.check(self.has_no_request_fields() && self.status.is_none())?;
        Ok(self.headers)
    }

    fn has_no_request_fields(&self) -> bool {
        !self.has_other_scheme
            && !self.has_other_authority
            && self.method.is_none()
            && self.scheme.is_none()
            && self.authority.is_none()
            && self.path.is_none()
            && self.protocol.is_none()
    }

    fn check(&self, is_valid: bool) -> Result<(), HeadError> {
        match self.error {
            Some(error) => Err(error),
            None if is_valid => Ok(()),
            None => Err(PSEUDO_HEADERS),
        }
    }

    /// Records an error; the first malformed field counts more than the size.
    fn fail(&mut self, error: HeadError) {
        if !matches!(self.error, Some(HeadError::Malformed(_))) {
            self.error = Some(error);
        }
    }

    fn push_header(&mut self, name: HeaderName, value: HeaderValue) {
        if !self.has_headers {
            self.has_headers = true;
            self.headers.reserve(EXPECTED_FIELDS);
        }
        if is_connection_specific(&name, &value) {
            return self.fail(HeadError::Malformed(Malformation::ConnectionField));
        }
        self.has_length |= name == CONTENT_LENGTH;
        if self.headers.try_append(name, value).is_err() {
            self.fail(HeadError::TooLarge);
        }
    }
}

/// Whether a field must not occur in HTTP/2 (RFC 9113 section 8.2.2).
fn is_connection_specific(name: &HeaderName, value: &HeaderValue) -> bool {
    if name == TE {
        return value != "trailers";
    }
    name == CONNECTION
        || name == TRANSFER_ENCODING
        || name == UPGRADE
        || name == KEEP_ALIVE
        || name == PROXY_CONNECTION
}

impl FieldSink for HeadBuilder {
    fn accepts(&mut self, size: usize) -> bool {
        match self.left.checked_sub(size) {
            Some(left) if self.error.is_none() => {
                self.left = left;
                true
            }
            Some(_) => false,
            None => {
                // Also the fields after this one are too much.
                self.left = 0;
                self.fail(HeadError::TooLarge);
                false
            }
        }
    }

    fn push(&mut self, field: HeaderField) {
        // A pseudo-header may occur once, and before the others (RFC 9113 section 8.3).
        let is_new = match field {
            HeaderField::Header(name, value) => return self.push_header(name, value),
            HeaderField::Malformed(what) => return self.fail(HeadError::Malformed(what)),
            _ if self.has_headers => false,
            HeaderField::Method(method) => self.method.replace(method).is_none(),
            HeaderField::Scheme(scheme) => self.scheme.replace(scheme).is_none() && !self.has_other_scheme,
            HeaderField::OtherScheme => {
                !std::mem::replace(&mut self.has_other_scheme, true) && self.scheme.is_none()
            }
            HeaderField::Authority(authority) => {
                self.authority.replace(authority).is_none() && !self.has_other_authority
            }
            HeaderField::OtherAuthority => {
                !std::mem::replace(&mut self.has_other_authority, true) && self.authority.is_none()
            }
            HeaderField::Path(path) => self.path.replace(path).is_none(),
            HeaderField::Protocol(protocol) => self.protocol.replace(protocol).is_none(),
            HeaderField::Status(status) => self.status.replace(status).is_none(),
        };
        if !is_new {
            self.fail(PSEUDO_HEADERS);
        }
    }

    fn has_failed(&self) -> bool {
        self.error.is_some()
    }
}

/// Pseudo-header fields of a request (RFC 9113 section 8.3.1).
#[derive(Clone, Copy, Debug)]
pub struct PseudoHeaders<'a> {
    /// `:method`.
    pub method: &'a Method,
    /// `:scheme`.
    pub scheme: &'a Scheme,
    /// `:authority`; `None` if the request has none, or only a `Host` that is not a valid authority.
    pub authority: Option<&'a str>,
    /// `:path`.
    pub path: &'a str,
    /// `:protocol` of an extended CONNECT (RFC 8441).
    pub protocol: Option<&'a Protocol>,
}

/// Appends header fields to a header section that is being encoded.
#[derive(Debug)]
pub struct FieldWriter<'a> {
    encoder: &'a mut HpackEncoder,
    out: &'a mut Vec<u8>,
}

impl<'a> FieldWriter<'a> {
    pub(super) fn new(encoder: &'a mut HpackEncoder, out: &'a mut Vec<u8>) -> Self {
        Self { encoder, out }
    }

    /// Appends a field of a map.
    pub fn push(&mut self, name: &HeaderName, value: &HeaderValue) {
        debug_assert!(!is_connection_specific(name, value), "{name} is not allowed in HTTP/2");
        if !is_padded(value.as_bytes()) {
            self.encoder.header(name, value, self.out);
        } else if let Ok(mut trimmed) = HeaderValue::from_bytes(trimmed(value.as_bytes())) {
            trimmed.set_sensitive(value.is_sensitive());
            self.encoder.header(name, &trimmed, self.out);
        }
    }

    /// Appends a valid field. The name is in lower case and not connection-specific.
    pub fn push_raw(&mut self, name: &[u8], value: &[u8]) {
        self.encoder.raw_header(name, if is_padded(value) { trimmed(value) } else { value }, self.out);
    }

    pub(super) fn push_pseudo_headers(&mut self, fields: &PseudoHeaders<'_>) {
        self.encoder.method(fields.method, self.out);
        self.encoder.scheme(fields.scheme, self.out);
        if let Some(authority) = fields.authority {
            self.encoder.authority(authority, self.out);
        }
        self.encoder.path(fields.path, self.out);
        if let Some(protocol) = fields.protocol {
            self.encoder.protocol(protocol, self.out);
        }
    }
}

/// Whether a value begins or ends with white space, which is malformed in HTTP/2 (RFC 9113 section 8.2.1) and has no
/// meaning in HTTP/1.1.
fn is_padded(value: &[u8]) -> bool {
    matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t'])
}

fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Appends the fields of a response.
pub(super) fn encode_response(head: &Response<()>, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    encoder.status(head.status(), out);
    encode_headers(head.headers(), encoder, out);
}

/// Appends the fields of a request.
pub(super) fn encode_request(head: &Request<()>, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    let (uri, protocol) = (head.uri(), head.extensions().get::<Protocol>());
    let is_plain_connect = head.method() == Method::CONNECT && protocol.is_none();
    encoder.method(head.method(), out);
    if !is_plain_connect {
        encoder.scheme(uri.scheme().unwrap_or(&Scheme::HTTP), out);
    }
    if let Some(authority) = uri.authority() {
        encoder.authority(authority.as_str(), out);
    }
    if !is_plain_connect {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let is_asterisk = head.method() == Method::OPTIONS && path == "/" && uri.path_and_query().is_none();
        encoder.path(if is_asterisk { "*" } else { path }, out);
    }
    if let Some(protocol) = protocol {
        encoder.protocol(protocol, out);
    }
    encode_headers(head.headers(), encoder, out);
}

/// Appends trailers, without fields of connections: HTTP/1.1 permits any name there.
pub(super) fn encode_trailers(trailers: &HeaderMap, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    let mut fields = FieldWriter::new(encoder, out);
    for (name, value) in trailers.iter().filter(|(name, value)| !is_connection_specific(name, value)) {
        fields.push(name, value);
    }
}

/// Appends header fields.
pub(super) fn encode_headers(headers: &HeaderMap, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    let mut fields = FieldWriter::new(encoder, out);
    for (name, value) in headers {
        fields.push(name, value);
    }
}

/// Returns the length of a body as its head states it; `None` if it does not.
///
/// # Errors
/// If the first `content-length` is not a number.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, HeadError> {
    let Some(value) = headers.get(CONTENT_LENGTH) else { return Ok(None) };
    let mut length = 0_u64;
    for digit in value.as_bytes() {
        let digit = char::from(*digit).to_digit(10).ok_or(CONTENT_LENGTH_ERROR)?;
        length = length
            .checked_mul(10)
            .and_then(|length| length.checked_add(digit.into()))
            .ok_or(CONTENT_LENGTH_ERROR)?;
    }
    Ok(Some(length))
}

#[cfg(test)]
mod tests;
