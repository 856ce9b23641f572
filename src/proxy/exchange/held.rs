//! Requests that are held back: nothing of them is due meanwhile, and those that a limit delays are counted.

use std::rc::Rc;

use super::Exchange;
use crate::limiter::timestamp::Timestamp;
use crate::proxy::connection::Connection;
use crate::proxy::timeouts::RequestTimer;

/// A request whose bodies may stand still, until this is dropped.
pub(super) struct Held(Rc<RequestTimer>);

impl Held {
    pub(super) fn begin(timer: &Rc<RequestTimer>) -> Self {
        timer.pause_timeouts();
        Self(Rc::clone(timer))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.resume_timeouts();
    }
}

/// A request that is held back by a limit, until this is dropped.
pub(super) struct Waiting {
    connection: Rc<Connection>,
    since: Timestamp,
}

impl Waiting {
    pub(super) fn begin(exchange: &Exchange) -> Self {
        let Exchange { connection, started, .. } = exchange;
        connection.worker.metrics.delay_started();
        Self { connection: Rc::clone(connection), since: *started }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let worker = &self.connection.worker;
        worker.metrics.delay_ended(worker.shared.clock.now().since(self.since));
    }
}
