//! HTTP/1.1 towards a client (RFC 9112): one exchange after the other.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::Connection;
use crate::proxy::activity::Overdue;
use crate::proxy::service;
use crate::proxy::stream::Downstream;
use crate::proxy::tunnel;

/// What a connection may buffer of what it reads and of what it writes.
const BUFFER: usize = 64 * 1024;
/// Beside a head of the largest size.
const SPARE: usize = 4 * 1024;
/// As many fields as hyper has room for without asking for memory.
const USUAL_FIELDS: usize = 100;

/// The answer to a head that never ended (RFC 9110 section 15.5.9).
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// Serves a connection to its end.
pub(super) async fn serve(connection: Rc<Connection>, stream: TokioIo<Downstream>) {
    let activity = Rc::clone(&connection.activity);
    let asked = Rc::clone(&connection);
    let handler = service_fn(move |request| service::handle(&asked, request));
    let (size, fields) = (connection.limits.header_size as usize, connection.limits.headers as usize);
    let mut builder = http1::Builder::new();
    builder.max_header_size(size).max_buf_size(BUFFER.max(size + SPARE));
    if fields != USUAL_FIELDS {
        builder.max_headers(fields);
    }
    let mut serving = builder.serve_connection(stream, handler);
    let ended = poll_fn(|cx| {
        activity.wake_by(cx.waker());
        match activity.overdue() {
            // Finishes writing what is under way, then closes.
            Some(Overdue::Idle) => Pin::new(&mut serving).graceful_shutdown(),
            Some(Overdue::Head) => return Poll::Ready(Ended::HeadTimeout),
            Some(Overdue::Stalled) if !activity.is_unanswered() => return Poll::Ready(Ended::Stalled),
            // The service answers for these, and the stream for lingering.
            Some(Overdue::Stalled | Overdue::Answer | Overdue::Linger) | None => {}
        }
        Pin::new(&mut serving).poll(cx).map(Ended::Served)
    });
    let ended = ended.await;
    // Taken in any case: it knows the connection that holds it.
    let switched = connection.switched.take();
    match ended {
        Ended::Served(Ok(())) => {
            if let Some(switched) = switched {
                let parts = serving.into_parts();
                // A tunnel is rare and its future large.
                Box::pin(tunnel::take_over(switched, parts.io.into_inner(), parts.read_buf)).await;
            }
        }
        Ended::Stalled => {}
        Ended::Served(Err(error)) => {
            if error.is_parse() || error.is_parse_too_large() {
                connection.worker.metrics.malformed_request();
            }
            tracing::debug!(%error, "connection ended");
        }
        Ended::HeadTimeout => time_out(&connection, serving.into_parts().io.inner_mut()),
    }
}

/// Says good-bye to a client whose request's head does not come to its end.
pub(super) fn time_out(connection: &Connection, stream: &mut Downstream) {
    stream.say(TIMED_OUT);
    connection.worker.metrics.malformed_request();
}

enum Ended {
    Served(hyper::Result<()>),
    HeadTimeout,
    Stalled,
}
