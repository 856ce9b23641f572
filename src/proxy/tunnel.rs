//! A client's connection that speaks something else now, such as WebSocket (RFC 6455): bytes either way.
//!
//! The exchange that led to it lasts as long as the tunnel, and with it what its limits hold.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::copy_bidirectional;

use super::activity::Overdue;
use super::exchange::Exchange;
use super::stream::Downstream;
use crate::upstream::tunnel::Tunnel;

/// A tunnel that begins when the client has its answer.
#[derive(Debug)]
pub(super) struct Switched {
    /// The far end.
    pub(super) upstream: Tunnel,
    /// The request that asked for it.
    pub(super) exchange: Box<Exchange>,
}

/// Carries bytes both ways until both sides have ended, either breaks off, or nothing has moved for the upstream's
/// idle timeout. `read` is what the client has sent already.
pub(super) async fn carry(switched: Switched, mut downstream: Downstream, read: Bytes) {
    let Switched { mut upstream, mut exchange } = switched;
    downstream.unread(&read);
    let activity = Rc::clone(exchange.activity());
    let carried = {
        let mut copying = pin!(copy_bidirectional(&mut downstream, &mut upstream));
        poll_fn(|cx| {
            activity.wake_by(cx.waker());
            if activity.overdue() == Some(Overdue::Stalled) {
                return Poll::Ready(None);
            }
            copying.as_mut().poll(cx).map(Some)
        })
        .await
    };
    match carried {
        Some(Ok((received, sent))) => exchange.note_tunnelled(received, sent),
        Some(Err(error)) => tracing::debug!(%error, "tunnel broke off"),
        None => tracing::debug!("tunnel stood still"),
    }
    exchange.note_whole();
}
