//! A small HTTP/1.1 client for the admin port, for commands of the terminal: one request per connection, with timeouts.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Time to connect, and for each read and write.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response.
const MAX_RESPONSE_SIZE: u64 = 64 << 20;
/// Maximum number of headers of a response.
const MAX_HEADERS: usize = 64;

/// A response of the admin port.
#[derive(Clone, Debug)]
pub struct AdminResponse {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum AdminClientError {
    /// The address is not one.
    #[error("expected an address such as 127.0.0.1:9901, got `{0}`")]
    Address(String),
    /// The connection failed.
    #[error("cannot reach the admin port at {0}")]
    Io(String, #[source] io::Error),
    /// The response is not valid HTTP/1.1.
    #[error("the response of {0} is not valid HTTP/1.1: is it the admin port?")]
    Malformed(String),
}

/// Sends `GET target` to the admin port at `address`, `host:port` or `http://host:port`.
///
/// # Errors
/// [`AdminClientError`] if there is no complete response.
pub fn get(
    address: &str,
    target: &str,
    authorization: Option<&str>,
) -> Result<AdminResponse, AdminClientError> {
    let host = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let failed = |error| AdminClientError::Io(host.to_owned(), error);
    let mut request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    if let Some(value) = authorization {
        request.push_str(&format!("authorization: {value}\r\n"));
    }
    request.push_str("\r\n");
    let mut stream = connect(host)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut received = Vec::new();
    stream.take(MAX_RESPONSE_SIZE).read_to_end(&mut received).map_err(failed)?;
    parse(&received).ok_or_else(|| AdminClientError::Malformed(host.to_owned()))
}

fn connect(host: &str) -> Result<TcpStream, AdminClientError> {
    let failed = |error| AdminClientError::Io(host.to_owned(), error);
    let addresses: Vec<SocketAddr> =
        host.to_socket_addrs().map_err(|_| AdminClientError::Address(host.to_owned()))?.collect();
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => {
                stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
                stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

/// Reads a complete response with `content-length`, which the admin port always sends.
fn parse(received: &[u8]) -> Option<AdminResponse> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(received).ok()? else { return None };
    let status = head.code?;
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"))?;
    let length = std::str::from_utf8(length.value).ok()?.parse::<usize>().ok()?;
    let body = received.get(start..)?.get(..length)?;
    Some(AdminResponse { status, body: body.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_read_only_if_complete() {
        let response = parse(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno").unwrap();
        assert_eq!((response.status, response.body.as_slice()), (404, &b"no"[..]));
        for received in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nno"[..],
            b"HTTP/1.1 200 OK\r\n\r\nno",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200",
            b"SSH-2.0-OpenSSH_9.9\r\n",
            b"",
        ] {
            assert!(parse(received).is_none());
        }
    }

    #[test]
    fn errors_name_the_address() {
        let error = get("nowhere", "/", None).unwrap_err().to_string();
        assert_eq!(error, "expected an address such as 127.0.0.1:9901, got `nowhere`");
    }
}
