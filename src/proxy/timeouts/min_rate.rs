//! Minimum rate of clients while the upstream is short of permits for requests.
//!
//! A client that sends its request byte by byte, or does not read its response, holds one of the upstream's permits for
//! as long as it likes. This is harmless while enough permits are free. Once more than half are in use, a client must
//! transfer a minimum of bytes per second, as with Apache's `mod_reqtimeout` or Envoy's overload action
//! `reduce_timeouts`. Only time spent waiting for the client counts, so a slow upstream is not held against it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weir_upstream::RequestScarcity;

const TICKS_PER_SECOND: u64 = 10;
/// Maximum time in ticks for which a client may transfer nothing. Changing from one mobile network to another takes
/// some seconds.
const GRACE_TICKS: u64 = 10 * TICKS_PER_SECOND;

/// The minimum rate of one request's client.
#[derive(Debug, Default)]
pub(super) struct MinRate {
    /// `None` if there is no minimum.
    scarcity: RefCell<Option<Rc<RequestScarcity>>>,
    /// Credit: bytes transferred beyond the minimum, up to the grace time, multiplied by
    /// [`TICKS_PER_SECOND`].
    ahead: Cell<u64>,
    /// Bytes that the client has transferred since the last tick.
    moved: Cell<u64>,
    /// Whether the minimum applies to the request body, and whether its next part is awaited.
    counts_upload: Cell<bool>,
    waits_for_upload: Cell<bool>,
    /// Whether the client has yet to take a part of the response body, and the size of that part.
    waits_for_reader: Cell<bool>,
    ready: Cell<usize>,
}

impl MinRate {
    pub(super) fn require(&self, scarcity: Rc<RequestScarcity>, counts_upload: bool) {
        self.ahead.set(u64::from(scarcity.min_client_rate().get()) * GRACE_TICKS);
        self.scarcity.replace(Some(scarcity));
        self.moved.set(0);
        self.counts_upload.set(counts_upload);
        self.waits_for_upload.set(false);
        self.waits_for_reader.set(false);
        self.ready.set(0);
    }

    pub(super) fn waive(&self) {
        if self.scarcity.borrow().is_some() {
            self.scarcity.replace(None);
        }
    }

    /// Records that the next part of the request body is awaited.
    pub(super) fn upload_awaited(&self) {
        self.waits_for_upload.set(true);
    }

    /// Records that a part of the request body has arrived.
    pub(super) fn upload_received(&self, bytes: u64) {
        self.waits_for_upload.set(false);
        self.moved(bytes);
    }

    /// Records that a part of the response body is ready for the client.
    pub(super) fn data_ready(&self, bytes: usize) {
        self.waits_for_reader.set(true);
        self.ready.set(bytes);
    }

    /// Records that the client has taken that part. `counts`: whether its bytes have not been counted yet.
    pub(super) fn data_taken(&self, counts: bool) {
        self.waits_for_reader.set(false);
        let taken = self.ready.replace(0);
        if counts {
            self.moved(taken as u64);
        }
    }

    /// Adds bytes that the client has transferred.
    pub(super) fn moved(&self, bytes: u64) {
        self.moved.set(self.moved.get().saturating_add(bytes));
    }

    /// Called once per tick; returns whether the client has been too slow. The request body counts only while it
    /// `is_due`.
    pub(super) fn is_missed(&self, is_due: bool) -> bool {
        let scarcity = self.scarcity.borrow();
        let Some(scarcity) = &*scarcity else { return false };
        let uploads = self.waits_for_upload.get() && self.counts_upload.get() && is_due;
        let waits = uploads || self.waits_for_reader.get();
        let rate = u64::from(scarcity.min_client_rate().get());
        let moved = self.moved.replace(0).saturating_mul(TICKS_PER_SECOND);
        let due = if waits { rate } else { 0 };
        let ahead = self.ahead.get().saturating_add(moved).saturating_sub(due).min(rate * GRACE_TICKS);
        self.ahead.set(ahead);
        let is_too_slow = waits && ahead == 0 && scarcity.is_scarce();
        if is_too_slow {
            scarcity.record_slow_client();
        }
        is_too_slow
    }
}
