//! Protocol detection: the first bytes of a connection tell HTTP/1 from HTTP/2.
//!
//! A connection without any bytes costs no more than its socket: what serves it is made when the first bytes arrive.

use std::future::poll_fn;
use std::task::{Poll, ready};

use crate::proxy::stream::Downstream;
use crate::proxy::timeouts::{ConnectionTimer, TimeoutKind};

/// The connection preface of HTTP/2 with prior knowledge (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// Anything but the preface of HTTP/2.
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// The preface has begun and did not end in time.
    TimedOut,
    /// No byte has come.
    Unused,
}

/// Reads until the protocol is known; what has been read is kept in `stream`.
pub(super) async fn detect(stream: &mut Downstream, timer: &ConnectionTimer) -> Protocol {
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => return Poll::Ready(Protocol::TimedOut),
            Some(_) => return Poll::Ready(Protocol::Unused),
            None => {}
        }
        loop {
            match ready!(stream.poll_opening(cx)) {
                Ok(0) | Err(_) if stream.opening().is_empty() => return Poll::Ready(Protocol::Unused),
                // HTTP/1 rejects a cut off preface.
                Ok(0) | Err(_) => return Poll::Ready(Protocol::Http1),
                Ok(_) => {}
            }
            if let Some(protocol) = recognise(stream.opening()) {
                return Poll::Ready(protocol);
            }
        }
    })
    .await
}

/// The protocol that begins with `bytes`; `None` if more bytes are needed.
fn recognise(bytes: &[u8]) -> Option<Protocol> {
    let common = bytes.len().min(PREFACE.len());
    match bytes[..common] == PREFACE[..common] {
        false => Some(Protocol::Http1),
        true if common == PREFACE.len() => Some(Protocol::Http2),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_recognised_by_all_of_it() {
        assert_eq!(recognise(PREFACE), Some(Protocol::Http2));
        assert_eq!(recognise(&[PREFACE, b"\0\0\0"].concat()), Some(Protocol::Http2));
        for cut in 0..PREFACE.len() {
            assert_eq!(recognise(&PREFACE[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn whatever_else_comes_is_for_http_1() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"P", b"PRI / HTTP/1.1\r\n", b"\x16\x03\x01", b"\r\n"] {
            let expected = if bytes == b"P" { None } else { Some(Protocol::Http1) };
            assert_eq!(recognise(bytes), expected, "{bytes:?}");
        }
    }
}
