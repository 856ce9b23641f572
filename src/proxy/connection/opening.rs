//! The first bytes of a connection, which tell what the client speaks.
//!
//! A connection on which nothing has come yet costs no more than its socket: what serves it is made when its first
//! bytes are here.

use std::future::poll_fn;
use std::task::{Poll, ready};

use crate::proxy::stream::Downstream;
use crate::proxy::timeouts::{ConnectionTimer, TimeoutKind};

/// What a client begins with that speaks HTTP/2 without having asked (RFC 9113 section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How a connection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// With what must be HTTP/1, if it is anything.
    Http1,
    /// With the preface of HTTP/2.
    Http2,
    /// With the beginning of a preface, and nothing behind it.
    TimedOut,
    /// Not at all.
    Unused,
}

/// Reads until it is clear what the client speaks; what has been read is kept for whoever serves it.
pub(super) async fn read(stream: &mut Downstream, timer: &ConnectionTimer) -> Opening {
    poll_fn(|cx| {
        timer.wake_by(cx.waker());
        match timer.expired() {
            Some(TimeoutKind::Head) => return Poll::Ready(Opening::TimedOut),
            Some(_) => return Poll::Ready(Opening::Unused),
            None => {}
        }
        loop {
            match ready!(stream.poll_opening(cx)) {
                Ok(0) | Err(_) if stream.opening().is_empty() => return Poll::Ready(Opening::Unused),
                // What is cut off is for HTTP/1 to refuse.
                Ok(0) | Err(_) => return Poll::Ready(Opening::Http1),
                Ok(_) => {}
            }
            if let Some(opening) = recognise(stream.opening()) {
                return Poll::Ready(opening);
            }
        }
    })
    .await
}

/// What begins so; `None` where it takes more to know.
fn recognise(bytes: &[u8]) -> Option<Opening> {
    let common = bytes.len().min(PREFACE.len());
    match bytes[..common] == PREFACE[..common] {
        false => Some(Opening::Http1),
        true if common == PREFACE.len() => Some(Opening::Http2),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preface_is_recognised_by_all_of_it() {
        assert_eq!(recognise(PREFACE), Some(Opening::Http2));
        assert_eq!(recognise(&[PREFACE, b"\0\0\0"].concat()), Some(Opening::Http2));
        for cut in 0..PREFACE.len() {
            assert_eq!(recognise(&PREFACE[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn whatever_else_comes_is_for_http_1() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"P", b"PRI / HTTP/1.1\r\n", b"\x16\x03\x01", b"\r\n"] {
            let expected = if bytes == b"P" { None } else { Some(Opening::Http1) };
            assert_eq!(recognise(bytes), expected, "{bytes:?}");
        }
    }
}
