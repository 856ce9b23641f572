//! Protocol detection: the first bytes of a connection distinguish HTTP/1 from HTTP/2.
//!
//! The state that serves a connection is only created when the first bytes arrive, so an unused connection costs little
//! more than its socket.

use std::future::poll_fn;
use std::task::{Poll, ready};

use super::DownstreamConnection;
use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::TimeoutKind;
use weir_net::tls::AlpnProtocol;

/// The HTTP/2 connection preface, sent by clients with prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedProtocol {
    /// Anything but the HTTP/2 connection preface.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// An incomplete preface was received before the timeout.
    TimedOut,
    /// No byte was received.
    NoData,
}

/// Reads until the protocol is known. The bytes read stay in `stream` and are read again. `negotiated` is the result of
/// ALPN.
// Not an async function: its future has room for the parameters twice.
pub(super) fn detect(
    stream: &mut DownstreamIo,
    negotiated: Option<AlpnProtocol>,
    connection: &DownstreamConnection,
) -> impl Future<Output = DetectedProtocol> {
    let timer = connection.timer();
    poll_fn(move |cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => return Poll::Ready(DetectedProtocol::TimedOut),
            Some(_) => return Poll::Ready(DetectedProtocol::NoData),
            None => {}
        }
        // What was read so far moves with the connection.
        if connection.is_held_back() {
            return Poll::Ready(DetectedProtocol::Http1);
        }
        loop {
            match ready!(stream.poll_peek(cx)) {
                Ok(0) | Err(_) if stream.peeked().is_empty() => {
                    return Poll::Ready(DetectedProtocol::NoData);
                }
                // The HTTP/1 decoder rejects an incomplete preface.
                Ok(0) | Err(_) => return Poll::Ready(DetectedProtocol::Http1),
                Ok(_) => {}
            }
            if let Some(protocol) = recognise(stream.peeked(), negotiated) {
                return Poll::Ready(protocol);
            }
        }
    })
}

/// Returns the protocol of a connection that starts with `bytes`; `None` if more bytes are needed. A client must speak the
/// protocol that it has negotiated (RFC 9113 sections 3.2 and 3.4): for the other one, the bytes are malformed.
fn recognise(bytes: &[u8], negotiated: Option<AlpnProtocol>) -> Option<DetectedProtocol> {
    match negotiated {
        Some(AlpnProtocol::Http1) => return Some(DetectedProtocol::Http1),
        Some(AlpnProtocol::Http2) => return Some(DetectedProtocol::Http2),
        None => {}
    }
    let common = bytes.len().min(PREFACE.len());
    match bytes[..common] == PREFACE[..common] {
        false => Some(DetectedProtocol::Http1),
        true if common == PREFACE.len() => Some(DetectedProtocol::Http2),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http2_is_detected_by_its_complete_preface() {
        assert_eq!(recognise(PREFACE, None), Some(DetectedProtocol::Http2));
        assert_eq!(recognise(&[PREFACE, b"\0\0\0"].concat(), None), Some(DetectedProtocol::Http2));
        for cut in 0..PREFACE.len() {
            assert_eq!(recognise(&PREFACE[..cut], None), None, "{cut}");
        }
    }

    #[test]
    fn negotiated_protocol_is_not_guessed() {
        for bytes in [PREFACE, &PREFACE[..5], b"GET / HTTP/1.1\r\n", b"\0"] {
            assert_eq!(recognise(bytes, Some(AlpnProtocol::Http2)), Some(DetectedProtocol::Http2));
            assert_eq!(recognise(bytes, Some(AlpnProtocol::Http1)), Some(DetectedProtocol::Http1));
        }
    }

    #[test]
    fn anything_but_the_http2_preface_is_http1() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"P", b"PRI / HTTP/1.1\r\n", b"\x16\x03\x01", b"\r\n"] {
            let expected = if bytes == b"P" { None } else { Some(DetectedProtocol::Http1) };
            assert_eq!(recognise(bytes, None), expected, "{bytes:?}");
        }
    }
}
