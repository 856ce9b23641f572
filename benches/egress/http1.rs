//! The little of HTTP/1.1 that the provider, the callers and their control need.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use httparse::{EMPTY_HEADER, Header, Request, Response, Status};
use tokio::io::AsyncReadExt as _;

const MAX_HEADERS: usize = 64;

/// Length of the header section and of the body after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageLength {
    pub(crate) head: usize,
    pub(crate) body: usize,
}

/// Origin of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Provider,
    Weir,
}

/// A response without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) sender: Sender,
}

/// A call as the provider sees it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) target: String,
    pub(crate) tenant: String,
    /// Number of the call in the order of sending, if it has one.
    pub(crate) sequence: Option<u64>,
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn value<'a>(headers: &'a [Header<'_>], name: &str) -> Option<&'a str> {
    let header = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
    str::from_utf8(header.value).ok()
}

fn content_length(headers: &[Header<'_>]) -> usize {
    value(headers, "content-length").and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Removes the next request from `buffer`. `None` if it is incomplete.
pub(crate) fn take_call(buffer: &mut BytesMut) -> io::Result<Option<Call>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut request = Request::new(&mut headers);
    let Status::Complete(head) = request.parse(buffer).map_err(|_| invalid("a malformed request"))? else {
        return Ok(None);
    };
    let length = MessageLength { head, body: content_length(request.headers) };
    if buffer.len() < length.head + length.body {
        return Ok(None);
    }
    let call = Call {
        target: request.path.unwrap_or_default().to_owned(),
        tenant: value(request.headers, "x-tenant").unwrap_or_default().to_owned(),
        sequence: value(request.headers, "x-sequence").and_then(|text| text.parse().ok()),
    };
    buffer.advance(length.head + length.body);
    Ok(Some(call))
}

/// Reads the next response from `stream`, with its body.
pub(crate) async fn read_response(
    stream: &mut tokio::net::TcpStream,
    buffer: &mut BytesMut,
) -> io::Result<ResponseHead> {
    loop {
        if let Some((head, length)) = parse_response(buffer)?
            && buffer.len() >= length.head + length.body
        {
            buffer.advance(length.head + length.body);
            return Ok(head);
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn parse_response(buffer: &[u8]) -> io::Result<Option<(ResponseHead, MessageLength)>> {
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut response = Response::new(&mut headers);
    let Status::Complete(head) = response.parse(buffer).map_err(|_| invalid("a malformed response"))? else {
        return Ok(None);
    };
    let is_provider = value(response.headers, "x-provider").is_some();
    let sender = if is_provider { Sender::Provider } else { Sender::Weir };
    let length = MessageLength { head, body: content_length(response.headers) };
    Ok(Some((ResponseHead { status: response.code.unwrap_or_default(), sender }, length)))
}

/// Sends a request to a provider or an admin port and returns the body of the response.
pub(crate) fn control(address: SocketAddr, method: &str, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    write!(
        stream,
        "{method} {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    let mut headers = [EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = Response::new(&mut headers);
    let Ok(Status::Complete(head)) = parsed.parse(&response) else {
        return Err(invalid("a malformed response"));
    };
    if parsed.code.is_none_or(|code| code >= 400) {
        return Err(invalid("an error response"));
    }
    let is_chunked = value(parsed.headers, "transfer-encoding").is_some();
    let body = String::from_utf8_lossy(&response[head..]).into_owned();
    Ok(if is_chunked { without_chunk_sizes(&body) } else { body })
}

fn without_chunk_sizes(body: &str) -> String {
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_default();
        let Some(chunk) = after.get(..size).filter(|chunk| !chunk.is_empty()) else { break };
        text.push_str(chunk);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    text
}
