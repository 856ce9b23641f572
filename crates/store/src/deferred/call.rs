//! A deferred call, and its encoding in the store.
//!
//! The encoding is text, except for the body, so that operators can read it with `redis-cli`: a line with the version, lines
//! about the acceptance, an empty line, the request line, header lines, an empty line, and the body. It contains the headers
//! as received, and so the caller's credentials for the service.

use std::fmt::Write as _;
use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

/// First line of a call. A version that changes how calls are read has another one.
const VERSION_LINE: &[u8] = b"weir-call 1";
const LINE_END: &[u8] = b"\r\n";
/// Maximum header lines of a call; more than any listener accepts.
const MAX_HEADERS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    /// Random number that identifies the call, and of which its request ID is made.
    pub id: u128,
    /// Encoding of the rule's key.
    pub key: Box<[u8]>,
    /// Address of the peer that sent the request.
    pub peer: IpAddr,
    /// Name of the listener on which the request arrived.
    pub listener: Box<str>,
    /// Whether the request arrived over TLS.
    pub is_tls: bool,
    /// Verified client certificate of the peer, as the header for the upstream.
    pub certificate: Option<HeaderValue>,
    pub method: Method,
    /// Target in origin-form, or in absolute-form if it came to a forward proxy.
    pub target: Uri,
    /// Headers as received, without hop-by-hop ones.
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl StoredCall {
    /// Returns the ID in the form of a UUID.
    pub fn id_text(&self) -> String {
        format_id(self.id)
    }

    pub fn encode(&self) -> Vec<u8> {
        let lines: usize =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let mut out = Vec::with_capacity(256 + self.key.len() * 2 + lines + self.body.len());
        out.extend_from_slice(VERSION_LINE);
        out.extend_from_slice(LINE_END);
        write_line(&mut out, "id", format!("{:032x}", self.id).as_bytes());
        write_line(&mut out, "key", encode_hex(&self.key).as_bytes());
        write_line(&mut out, "peer", self.peer.to_string().as_bytes());
        write_line(&mut out, "listener", self.listener.as_bytes());
        if self.is_tls {
            write_line(&mut out, "tls", b"1");
        }
        if let Some(certificate) = &self.certificate {
            write_line(&mut out, "certificate", certificate.as_bytes());
        }
        out.extend_from_slice(LINE_END);
        for part in [self.method.as_str().as_bytes(), b" ", self.target.to_string().as_bytes(), LINE_END] {
            out.extend_from_slice(part);
        }
        for (name, value) in &self.headers {
            write_line(&mut out, name.as_str(), value.as_bytes());
        }
        out.extend_from_slice(LINE_END);
        out.extend_from_slice(&self.body);
        out
    }

    /// Decodes a call; `None` if it is invalid or of another version.
    pub fn decode(text: &Bytes) -> Option<Self> {
        let mut rest: &[u8] = text;
        if take_line(&mut rest)? != VERSION_LINE {
            return None;
        }
        let (mut id, mut key, mut peer) = (None, None, None);
        let (mut listener, mut is_tls, mut certificate) = (None, false, None);
        while let Some((name, value)) = take_field(&mut rest)? {
            match name {
                b"id" => id = u128::from_str_radix(str::from_utf8(value).ok()?, 16).ok(),
                b"key" => key = Some(decode_hex(value)?),
                b"peer" => peer = str::from_utf8(value).ok()?.parse().ok(),
                b"listener" => listener = Some(str::from_utf8(value).ok()?.into()),
                b"tls" => is_tls = true,
                b"certificate" => certificate = Some(HeaderValue::from_bytes(value).ok()?),
                _ => return None,
            }
        }
        let (method, target) = take_request_line(&mut rest)?;
        let headers = take_headers(&mut rest)?;
        let body = text.slice_ref(rest);
        let (id, key, peer, listener) = (id?, key?, peer?, listener?);
        Some(Self { id, key, peer, listener, is_tls, certificate, method, target, headers, body })
    }
}

/// Formats the ID of a call as a UUID of version 4 (RFC 9562 section 5.4), as request IDs are made.
pub fn format_id(id: u128) -> String {
    const VERSION_MASK: u128 = 0xf << 76;
    const VARIANT_MASK: u128 = 0x3 << 62;
    let id = id & !VERSION_MASK & !VARIANT_MASK | 0x4 << 76 | 0x2 << 62;
    let digits = format!("{id:032x}");
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

fn write_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, LINE_END] {
        out.extend_from_slice(part);
    }
}

/// Takes a line from the front, without its end.
fn take_line<'t>(rest: &mut &'t [u8]) -> Option<&'t [u8]> {
    let end = rest.windows(LINE_END.len()).position(|window| window == LINE_END)?;
    let (line, after) = rest.split_at_checked(end)?;
    *rest = after.get(LINE_END.len()..)?;
    Some(line)
}

/// Takes a line with a name and a value; `Some(None)` for the empty line after the last one.
#[expect(clippy::option_option, reason = "an invalid line differs from the last one")]
fn take_field<'t>(rest: &mut &'t [u8]) -> Option<Option<(&'t [u8], &'t [u8])>> {
    let line = take_line(rest)?;
    if line.is_empty() {
        return Some(None);
    }
    let colon = line.windows(2).position(|window| window == b": ")?;
    Some(Some((line.get(..colon)?, line.get(colon + 2..)?)))
}

fn take_request_line(rest: &mut &[u8]) -> Option<(Method, Uri)> {
    let line = take_line(rest)?;
    let space = line.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(line.get(..space)?).ok()?;
    let target = Uri::try_from(line.get(space + 1..)?).ok()?;
    // An absolute target is checked by the forward proxy of its listener; a tunnel cannot be stored.
    let is_authority_form = target.authority().is_some() && target.scheme().is_none();
    (!is_authority_form && method != Method::CONNECT).then_some((method, target))
}

fn take_headers(rest: &mut &[u8]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    while let Some((name, value)) = take_field(rest)? {
        if headers.len() >= MAX_HEADERS {
            return None;
        }
        headers.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    Some(headers)
}

fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn decode_hex(text: &[u8]) -> Option<Box<[u8]>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.chunks(2).map(|pair| match *pair {
        [high, low] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call() -> StoredCall {
        let mut headers = HeaderMap::new();
        headers.append("x-list", "a: b".parse().unwrap());
        headers.append("x-list", HeaderValue::from_bytes(b"\xff").unwrap());
        StoredCall {
            id: 0xfedc_ba98_7654_3210_0123_4567_89ab_cdef,
            key: [0, 0, 0, 4, 127, 0, 0, 1].into(),
            peer: "2001:db8::1".parse().unwrap(),
            listener: "inbound".into(),
            is_tls: true,
            certificate: Some("Hash=ab".parse().unwrap()),
            method: Method::POST,
            target: "/hooks/a?b=%20".parse().unwrap(),
            headers,
            body: Bytes::from_static(b"\r\n\r\nbody\0"),
        }
    }

    #[test]
    fn decoding_restores_the_call() {
        let plain = StoredCall { is_tls: false, certificate: None, body: Bytes::new(), ..call() };
        let absolute = StoredCall { target: "https://other/hooks/a".parse().unwrap(), ..call() };
        for call in [call(), plain, absolute] {
            assert_eq!(StoredCall::decode(&call.encode().into()), Some(call));
        }
    }

    #[test]
    fn other_versions_and_truncated_calls_are_not_decoded() {
        let text = call().encode();
        let newer = [b"weir-call 2", &text[VERSION_LINE.len()..]].concat();
        assert_eq!(StoredCall::decode(&newer.into()), None);
        let head = text.len() - call().body.len();
        for end in 0..head {
            assert_eq!(StoredCall::decode(&Bytes::copy_from_slice(&text[..end])), None, "{end}");
        }
    }

    #[test]
    fn tunnels_are_not_decoded() {
        let text = String::from_utf8_lossy(&call().encode()).into_owned();
        for tunnel in ["CONNECT other:443", "CONNECT /hooks/a?b=%20", "POST other:443"] {
            let text = text.replace("POST /hooks/a?b=%20", tunnel);
            assert_eq!(StoredCall::decode(&text.into_bytes().into()), None, "{tunnel}");
        }
    }

    #[test]
    fn id_is_the_request_id_of_the_same_random_number() {
        assert_eq!(format_id(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(format_id(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
