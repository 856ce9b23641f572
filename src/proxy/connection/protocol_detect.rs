//! Protocol detection: the first bytes of a connection distinguish HTTP/1 from HTTP/2.
//!
//! The state that serves a connection is only created when the first bytes arrive, so an unused connection costs little
//! more than its socket.

use std::future::poll_fn;
use std::task::{Poll, ready};

use crate::proxy::stream::DownstreamIo;
use crate::proxy::timeouts::{ConnectionTimer, TimeoutKind};

/// The HTTP/2 connection preface, sent by clients with prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Protocol of a connection.
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

/// Reads until the protocol is known. The bytes read stay in `stream` and are read again.
pub(super) async fn detect(stream: &mut DownstreamIo, timer: &ConnectionTimer) -> DetectedProtocol {
    poll_fn(|cx| {
        timer.register_waker(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => return Poll::Ready(DetectedProtocol::TimedOut),
            Some(_) => return Poll::Ready(DetectedProtocol::NoData),
            None => {}
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
            if let Some(protocol) = recognise(stream.peeked()) {
                return Poll::Ready(protocol);
            }
        }
    })
    .await
}

/// Returns the protocol of a connection that starts with `bytes`; `None` if more bytes are needed.
fn recognise(bytes: &[u8]) -> Option<DetectedProtocol> {
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
        assert_eq!(recognise(PREFACE), Some(DetectedProtocol::Http2));
        assert_eq!(recognise(&[PREFACE, b"\0\0\0"].concat()), Some(DetectedProtocol::Http2));
        for cut in 0..PREFACE.len() {
            assert_eq!(recognise(&PREFACE[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn anything_but_the_http2_preface_is_http1() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"P", b"PRI / HTTP/1.1\r\n", b"\x16\x03\x01", b"\r\n"] {
            let expected = if bytes == b"P" { None } else { Some(DetectedProtocol::Http1) };
            assert_eq!(recognise(bytes), expected, "{bytes:?}");
        }
    }
}
