//! Whether the client of an exchange keeps up while its upstream's requests are scarce.
//!
//! A client that sends its request a byte at a time, or does not read its answer, holds a request of the upstream for as
//! long as it likes. While there are enough of those nobody minds. Once more than half are in flight, a client must
//! move a minimum of bytes a second, as with Apache's `mod_reqtimeout` or Envoy's overload action `reduce_timeouts`. Only
//! the time for which we wait for the client counts, so it does not answer for a slow upstream.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::upstream::Scarcity;

/// Ticks in a second.
const SECOND: u64 = 10;
/// How long a client may move nothing, in ticks: one that changes from one mobile network to another needs some seconds.
const GRACE: u64 = 10 * SECOND;

/// The minimum rate of one request's client.
#[derive(Debug, Default)]
pub(super) struct MinRate {
    /// `None` where any pace will do.
    scarcity: RefCell<Option<Rc<Scarcity>>>,
    /// What the client has moved beyond the minimum, up to the grace, in bytes times [`SECOND`].
    ahead: Cell<u64>,
    /// Bytes that it has moved since the last tick.
    moved: Cell<u64>,
    /// Whether the request's body has to keep up, and whether the next part of it is waited for.
    counts_upload: Cell<bool>,
    waits_for_upload: Cell<bool>,
    /// Whether the client has yet to take a part of the response's body, and how large that is.
    waits_for_reader: Cell<bool>,
    ready: Cell<usize>,
}

impl MinRate {
    pub(super) fn require(&self, scarcity: Rc<Scarcity>, counts_upload: bool) {
        self.ahead.set(u64::from(scarcity.rate().get()) * GRACE);
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

    /// The next part of the request's body is waited for.
    pub(super) fn upload_awaited(&self) {
        self.waits_for_upload.set(true);
    }

    /// It is here.
    pub(super) fn upload_received(&self, bytes: u64) {
        self.waits_for_upload.set(false);
        self.moved(bytes);
    }

    /// A part of the response's body is for the client to take.
    pub(super) fn data_ready(&self, bytes: usize) {
        self.waits_for_reader.set(true);
        self.ready.set(bytes);
    }

    /// It has taken it; `counts` says whether the bytes of the last have not been counted yet.
    pub(super) fn data_taken(&self, counts: bool) {
        self.waits_for_reader.set(false);
        let taken = self.ready.replace(0);
        if counts {
            self.moved(taken as u64);
        }
    }

    /// The client has moved so many bytes.
    pub(super) fn moved(&self, bytes: u64) {
        self.moved.set(self.moved.get().saturating_add(bytes));
    }

    /// A tick has passed: whether the client has been too slow. The request's body counts only while it `is_due`.
    pub(super) fn is_missed(&self, is_due: bool) -> bool {
        let scarcity = self.scarcity.borrow();
        let Some(scarcity) = &*scarcity else { return false };
        let uploads = self.waits_for_upload.get() && self.counts_upload.get() && is_due;
        let waits = uploads || self.waits_for_reader.get();
        let rate = u64::from(scarcity.rate().get());
        let moved = self.moved.replace(0).saturating_mul(SECOND);
        let due = if waits { rate } else { 0 };
        let ahead = self.ahead.get().saturating_add(moved).saturating_sub(due).min(rate * GRACE);
        self.ahead.set(ahead);
        let is_too_slow = waits && ahead == 0 && scarcity.is_scarce();
        if is_too_slow {
            scarcity.note_slow_client();
        }
        is_too_slow
    }
}
