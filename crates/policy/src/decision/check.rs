//! Envoy's external authorization over gRPC: reads the request that Envoy asks about, and writes the decision.

use std::net::IpAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, request};
use prost::Message as _;

use super::wire::{
    BoolValue, CheckAttributes, CheckRequest, CheckResponse, CheckedHttp, CoreHeader, DeniedHttpResponse,
    HeaderOption, HttpStatus, OkHttpResponse, RpcStatus,
};
use super::{InvalidInquiry, parse_target, require_client};
use crate::identify::IdentifySettings;
use crate::identify::client_headers::names_client_or_target;
use crate::identify::forwarded::X_FORWARDED_FOR;
use crate::response::grpc_reply;
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;

/// Path of the only method.
const CHECK_PATH: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Length of the compression flag and the message length before a message ("Length-Prefixed-Message").
const MESSAGE_PREFIX_LENGTH: usize = 5;

/// Whether a request is a call of Envoy's, and not one of its HTTP service.
pub fn is_check(head: &request::Parts) -> bool {
    let is_call = head.version == Version::HTTP_2 && head.method == Method::POST;
    is_call && head.uri.path() == CHECK_PATH && grpc_reply::is_grpc(&head.headers)
}

/// Returns the head of the request about which a call asks, whose whole content is `data`.
///
/// # Errors
/// What is missing or has no meaning.
pub fn read_request(data: &[u8], settings: &IdentifySettings) -> Result<request::Parts, InvalidInquiry> {
    let message = only_message(data)?;
    let CheckRequest { attributes } =
        CheckRequest::decode(message).map_err(|_| InvalidInquiry::Message("not a protobuf message"))?;
    let CheckAttributes { source, request } =
        attributes.ok_or(InvalidInquiry::Message("attributes are missing"))?;
    let http = request.and_then(|request| request.http);
    let http = http.ok_or(InvalidInquiry::Message("attributes.request.http is missing"))?;
    let address = source.and_then(|source| source.address?.socket_address);
    let peer = address.and_then(|address| address.address.parse::<IpAddr>().ok());
    let mut head = head_of(http)?;
    if let Some(peer) = peer {
        set_client(&mut head.headers, peer, settings);
    }
    require_client(&head.headers, settings)?;
    Ok(head)
}

fn only_message(data: &[u8]) -> Result<&[u8], InvalidInquiry> {
    let Some((prefix, message)) = data.split_first_chunk::<MESSAGE_PREFIX_LENGTH>() else {
        return Err(InvalidInquiry::Message("there is no message"));
    };
    let [flag, length @ ..] = *prefix;
    if flag != 0 {
        return Err(InvalidInquiry::Message("compressed messages are not supported"));
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err(InvalidInquiry::Message("the length of the message is not that of its prefix"));
    }
    Ok(message)
}

/// Returns the head of a request over HTTP/2, so that its headers are validated as those of one.
fn head_of(http: CheckedHttp) -> Result<request::Parts, InvalidInquiry> {
    let invalid = |what| move |_| InvalidInquiry::Message(what);
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.version = Version::HTTP_2;
    head.method = Method::from_bytes(http.method.as_bytes()).map_err(invalid("method is invalid"))?;
    head.uri = match parse_target(http.path.as_bytes()) {
        Some((target, None)) => target,
        _ => return Err(InvalidInquiry::Message("path is invalid")),
    };
    let entries = http.header_map.map_or(http.headers, |map| map.headers);
    for entry in entries {
        // Pseudo-headers, which the other fields repeat.
        if entry.key.starts_with(':') {
            continue;
        }
        let name =
            HeaderName::try_from(entry.key).map_err(|_| InvalidInquiry::Message("a header is invalid"))?;
        let value = if entry.raw_value.is_empty() { entry.value.into_bytes() } else { entry.raw_value };
        let value =
            HeaderValue::try_from(value).map_err(|_| InvalidInquiry::Message("a header is invalid"))?;
        let added = head.headers.try_append(name, value);
        added.map_err(|_| InvalidInquiry::Message("there are too many headers"))?;
    }
    // The content stays with Envoy.
    head.headers.remove(CONTENT_LENGTH);
    head.headers.remove(TRANSFER_ENCODING);
    let host = HeaderValue::try_from(http.host).map_err(|_| InvalidInquiry::Message("host is invalid"))?;
    head.headers.insert(HOST, host);
    Ok(head)
}

/// Has the headers name the client as if `peer`, from which Envoy has received the request, had sent it here: what an
/// untrusted peer states is not believed, whether Envoy has removed it or not.
fn set_client(headers: &mut HeaderMap, peer: IpAddr, settings: &IdentifySettings) {
    let names = || settings.address_headers.iter().map(|named| named.name());
    let is_trusted = settings.trusted_proxies.contains(peer.to_canonical());
    if !is_trusted {
        headers.remove(X_FORWARDED_FOR);
        names().for_each(|name| drop(headers.remove(name)));
        if !settings.keeps_client_headers {
            let named: Vec<_> =
                headers.keys().filter(|name| names_client_or_target(name.as_str())).cloned().collect();
            named.iter().for_each(|name| drop(headers.remove(name)));
        }
    }
    if names().any(|name| headers.contains_key(name)) {
        return;
    }
    if let (Some(name), Ok(value)) =
        (names().next(), HeaderValue::try_from(client_text(names().next(), peer)))
    {
        headers.insert(name.clone(), value);
    }
}

/// Returns the address in the syntax of the header `name`.
fn client_text(name: Option<&HeaderName>, peer: IpAddr) -> String {
    match peer {
        _ if name != Some(&http::header::FORWARDED) => peer.to_string(),
        IpAddr::V4(_) => format!("for={peer}"),
        IpAddr::V6(_) => format!("for=\"[{peer}]\""),
    }
}

/// Returns the response to a call, as the content of its stream: the request is admitted, with these headers for the
/// client.
pub fn admission(headers: &HeaderMap) -> Bytes {
    let over_limit = options(headers.iter().filter(|(name, _)| **name == X_WEIR_OVER_LIMIT));
    // A client could send the mark itself.
    let removed = if over_limit.is_empty() { vec![X_WEIR_OVER_LIMIT.to_string()] } else { Vec::new() };
    encode(&CheckResponse {
        status: Some(RpcStatus { code: 0 }),
        denied: None,
        admitted: Some(OkHttpResponse {
            headers: over_limit,
            headers_to_remove: removed,
            response_headers_to_add: options(headers.iter()),
        }),
    })
}

/// Returns the response to a call, as the content of its stream: the client gets this response instead.
pub fn denial(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Bytes {
    let code = grpc_reply::status_of(status).as_str().parse().unwrap_or(2);
    encode(&CheckResponse {
        status: Some(RpcStatus { code }),
        denied: Some(DeniedHttpResponse {
            status: Some(HttpStatus { code: status.as_u16().into() }),
            headers: options(headers.iter()),
            body: String::from_utf8_lossy(body).into_owned(),
        }),
        admitted: None,
    })
}

fn options<'h>(headers: impl Iterator<Item = (&'h HeaderName, &'h HeaderValue)>) -> Vec<HeaderOption> {
    let mut options: Vec<HeaderOption> = Vec::new();
    for (name, value) in headers {
        let is_repeated = options
            .last()
            .is_some_and(|last| last.header.as_ref().is_some_and(|header| header.key == name.as_str()));
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let header = CoreHeader { key: name.as_str().to_owned(), value, raw_value: Vec::new() };
        // The first one replaces a header of the same name.
        options.push(HeaderOption { header: Some(header), append: Some(BoolValue { value: is_repeated }) });
    }
    options
}

fn encode(response: &CheckResponse) -> Bytes {
    let length = response.encoded_len();
    let mut content = BytesMut::with_capacity(MESSAGE_PREFIX_LENGTH + length);
    content.put_u8(0);
    content.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    content.put_slice(&response.encode_to_vec());
    content.freeze()
}
