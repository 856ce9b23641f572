//! A stored call that runs through the pipeline as an internal request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::view::GenerationView;
use weir_policy::rules::deferral::DeferredRequest;
use weir_store::deferred::{Reporter, SendOutcome};

/// The stored call that an internal connection sends.
#[derive(Debug)]
pub(super) struct StoredRequest {
    /// The generation in which its rule was found.
    pub(super) view: Rc<GenerationView>,
    /// The rule that has stored it, and its key.
    pub(super) deferred: DeferredRequest,
    /// Random number of its request ID.
    pub(super) id: u128,
    /// Taken for the final report.
    pub(super) reporter: RefCell<Option<Reporter>>,
    /// What has happened to it so far, once that is final.
    pub(super) outcome: Cell<Option<SendOutcome>>,
}

impl StoredRequest {
    /// Records that the limit has room and the request is being sent.
    pub(super) fn admit(&self) {
        if let Some(reporter) = &*self.reporter.borrow() {
            reporter.admitted();
        }
    }

    /// Whether there is no room for it now, so that it will be sent again.
    pub(super) fn is_postponed(&self) -> bool {
        matches!(self.outcome.get(), Some(SendOutcome::NoRoom(_)))
    }

    /// Records that there is no room for this time.
    pub(super) fn reject(&self, retry_after: Duration) {
        self.outcome.set(Some(SendOutcome::NoRoom(retry_after)));
    }
}
