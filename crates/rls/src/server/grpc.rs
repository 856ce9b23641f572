//! gRPC over HTTP/2: messages with a prefix, encodings, and statuses in trailers.
//!
//! Messages are not compressed, in either direction. The texts of errors are tonic's.

use std::sync::LazyLock;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use prost::Message;
use tonic::Status;
use tonic::metadata::MetadataValue;

use crate::request::MAX_MESSAGE_BYTES;
use weir_http::http2::Http2Error;

/// Length of the compression flag and the message length before a message ("Length-Prefixed-Message").
pub(super) const MESSAGE_PREFIX_LEN: usize = 5;

/// Media type.
const GRPC: &str = "application/grpc";
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const IDENTITY: &str = "identity";

/// Why a call has no complete response.
pub(super) enum GrpcError {
    /// The call has failed with this status.
    Status(Status),
    /// The client has cancelled the call, or the connection has ended.
    Ended(Http2Error),
}

impl From<Status> for GrpcError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<Http2Error> for GrpcError {
    fn from(error: Http2Error) -> Self {
        Self::Ended(error)
    }
}

/// Head of a response with messages ("Response-Headers").
pub(super) static RESPONSE_HEAD: LazyLock<Response<()>> = LazyLock::new(|| {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    head
});

/// Trailers after the messages of a successful call ("Trailers").
pub(super) static OK_TRAILERS: LazyLock<HeaderMap> = LazyLock::new(|| trailers(&Status::ok("")));

/// Returns the trailers with a status.
pub(super) fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // The text is percent-encoded, so it is valid in a header.
    let _ = status.add_header(&mut trailers);
    trailers
}

/// Returns the response to a call of another media type. A call without a media type is served.
pub(super) fn check_media_type(headers: &HeaderMap) -> Result<(), Response<()>> {
    let Some(media_type) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    // The format of messages may follow, or parameters.
    if let Some([] | [b'+' | b';', ..]) = media_type.as_bytes().strip_prefix(GRPC.as_bytes()) {
        return Ok(());
    }
    let mut response =
        Status::invalid_argument(format!("invalid gRPC request content-type {media_type:?}")).into_http();
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(response)
}

/// Returns an error if messages may be compressed.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(GRPC_ENCODING) {
        Some(encoding) if encoding != IDENTITY => {
            let encoding = String::from_utf8_lossy(encoding.as_bytes());
            let text = format!("Content is compressed with `{encoding}` which isn't supported");
            let mut status = Status::unimplemented(text);
            status.metadata_mut().insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
            Err(status)
        }
        _ => Ok(()),
    }
}

/// Returns the first message of `buffer`, without its prefix; `None` while it is incomplete.
pub(super) fn first_message(buffer: &[u8]) -> Result<Option<&[u8]>, Status> {
    let Some(&[flag, ref length @ ..]) = buffer.first_chunk::<MESSAGE_PREFIX_LEN>() else {
        return Ok(None);
    };
    match flag {
        0 => {}
        1 => {
            return Err(Status::internal(
                "protocol error: received message with compressed-flag but no grpc-encoding was specified",
            ));
        }
        flag => {
            return Err(Status::internal(format!(
                "protocol error: received message with invalid compression flag: {flag} \
                 (valid flags are 0 and 1), while sending request"
            )));
        }
    }
    let length = u32::from_be_bytes(*length) as usize;
    if length > MAX_MESSAGE_BYTES {
        let text = format!("message too large, at most {MAX_MESSAGE_BYTES} bytes: {length}");
        return Err(Status::out_of_range(text));
    }
    Ok(buffer.get(MESSAGE_PREFIX_LEN..MESSAGE_PREFIX_LEN + length))
}

/// Decodes the body of a call with one message. Of several messages, the first one is the request.
pub(super) fn decode_request<M: Message + Default>(mut body: &[u8]) -> Result<M, Status> {
    let mut request = None;
    while !body.is_empty() {
        let message = first_message(body)?;
        let message = message.ok_or_else(|| Status::internal("Unexpected EOF decoding stream."))?;
        let decoded = M::decode(message).map_err(|error| Status::internal(error.to_string()))?;
        request.get_or_insert(decoded);
        body = &body[MESSAGE_PREFIX_LEN + message.len()..];
    }
    request.ok_or_else(|| Status::internal("Missing request message."))
}

/// Encodes a message with its prefix.
pub(super) fn encode_message(message: &impl Message) -> Result<Bytes, Status> {
    let too_large = || Status::internal("response too large");
    let length = message.encoded_len();
    let mut encoded = BytesMut::with_capacity(MESSAGE_PREFIX_LEN + length);
    encoded.put_u8(0);
    encoded.put_u32(u32::try_from(length).map_err(|_| too_large())?);
    message.encode(&mut encoded).map_err(|_| too_large())?;
    Ok(encoded.freeze())
}
