//! Requests whose client has left before the response, and whose cost is in the response.
//!
//! The upstream has such a request already. If Weir gave it up with its client, a client could have any work done for the
//! estimated cost. So it is awaited without the client, within bounds, and settled by its response.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::awaited::AwaitedClient;
use super::connection::DownstreamConnection;
use super::local_reply::DownstreamResponse;
use super::timeouts::RequestTimer;
use weir_net::drain::DrainPhase;

/// Maximum time for which a response is awaited without its client. After that, or when a drain begins, the maximum cost is
/// charged.
const MAX_WAIT: Duration = Duration::from_secs(30);
struct AwaitedGuard {
    connection: Rc<DownstreamConnection>,
    client: AwaitedClient,
}

impl AwaitedGuard {
    /// Counts a request. `None` if there are too many: it is charged the maximum cost at once. A client may have as many as one
    /// connection has streams, or it could take the places of all others by resetting streams and connecting again. A drain
    /// does not wait for clients that have left.
    fn new(connection: &Rc<DownstreamConnection>, client: AwaitedClient) -> Option<Self> {
        let worker = &connection.worker;
        let is_counted =
            !worker.coarse_clock.is_draining() && worker.awaited.add(client, connection.limits.streams);
        is_counted.then(|| Self { connection: Rc::clone(connection), client })
    }
}

impl Drop for AwaitedGuard {
    fn drop(&mut self) {
        self.connection.worker.awaited.remove(self.client);
    }
}

/// Continues a request whose client has left, if its response states its cost and the upstream has it. The response is
/// dropped once it has settled the request.
pub(super) fn settle_later(
    connection: &Rc<DownstreamConnection>,
    timer: Option<&Rc<RequestTimer>>,
    mut handling: impl Future<Output = DownstreamResponse> + Unpin + 'static,
) {
    let client = match timer {
        Some(timer) => timer.awaits_cost(),
        None => connection.timer().awaits_cost(),
    };
    let Some(guard) = client.and_then(|client| AwaitedGuard::new(connection, client)) else { return };
    let timer = timer.cloned();
    drop(tokio::task::spawn_local(async move {
        let response = poll_fn(|cx| {
            match &timer {
                Some(timer) => timer.register_waker(cx.waker()),
                None => guard.connection.timer().register_waker(cx.waker()),
            }
            let polled = Pin::new(&mut handling).poll(cx);
            // At once, so that no other request of the connection finds it.
            guard.connection.discard_upgraded();
            polled
        });
        let draining = guard.connection.worker.shared.drain.wait_for_phase(DrainPhase::Draining);
        tokio::select! {
            _ = tokio::time::timeout(MAX_WAIT, response) => {}
            () = draining => {}
        }
        drop(guard);
    }));
}
