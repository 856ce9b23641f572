//! Requests whose client has left before the response, and whose cost is in the response.
//!
//! The upstream has such a request already. If Weir gave it up with its client, a client could have any work done for the
//! estimated cost. So it is awaited without the client, within bounds, and settled by its response.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use super::connection::DownstreamConnection;
use super::local_reply::DownstreamResponse;
use super::timeouts::RequestTimer;
use weir_net::drain::DrainPhase;

/// Maximum time for which a response is awaited without its client. After that, or when a drain begins, the maximum cost is
/// charged.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Maximum number of such requests per worker. Further ones are charged the maximum cost at once.
const MAX_AWAITED: u32 = 1024;

struct AwaitedGuard(Rc<DownstreamConnection>);

impl AwaitedGuard {
    /// Counts a request. `None` if there are too many: of the worker, or of the connection, which must not take the places
    /// of all others by resetting its streams. A drain does not wait for clients that have left.
    fn new(connection: &Rc<DownstreamConnection>) -> Option<Self> {
        let worker = &connection.worker;
        let is_full = worker.awaited.get() >= MAX_AWAITED
            || connection.awaited.get() >= connection.limits.streams
            || worker.coarse_clock.is_draining();
        if is_full {
            return None;
        }
        worker.awaited.add();
        connection.awaited.add();
        Some(Self(Rc::clone(connection)))
    }
}

impl Drop for AwaitedGuard {
    fn drop(&mut self) {
        self.0.worker.awaited.subtract();
        self.0.awaited.subtract();
    }
}

/// Continues a request whose client has left, if its response states its cost and the upstream has it. The response is
/// dropped once it has settled the request.
pub(super) fn settle_later(
    connection: &Rc<DownstreamConnection>,
    timer: Option<&Rc<RequestTimer>>,
    mut handling: impl Future<Output = DownstreamResponse> + Unpin + 'static,
) {
    let is_awaited = match timer {
        Some(timer) => timer.awaits_cost(),
        None => connection.timer().awaits_cost(),
    };
    let Some(guard) = is_awaited.then(|| AwaitedGuard::new(connection)).flatten() else { return };
    let timer = timer.cloned();
    drop(tokio::task::spawn_local(async move {
        let response = poll_fn(|cx| {
            match &timer {
                Some(timer) => timer.register_waker(cx.waker()),
                None => guard.0.timer().register_waker(cx.waker()),
            }
            let polled = Pin::new(&mut handling).poll(cx);
            // At once, so that no other request of the connection finds it.
            guard.0.discard_upgraded();
            polled
        });
        let draining = guard.0.worker.shared.drain.wait_for_phase(DrainPhase::Draining);
        tokio::select! {
            _ = tokio::time::timeout(MAX_WAIT, response) => {}
            () = draining => {}
        }
        drop(guard);
    }));
}
