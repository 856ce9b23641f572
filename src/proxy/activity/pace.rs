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

/// The pace of one exchange.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// `None` where any pace will do.
    scarcity: RefCell<Option<Rc<Scarcity>>>,
    /// What the client has moved beyond the minimum, up to the grace, in bytes times [`SECOND`].
    ahead: Cell<u64>,
    /// Bytes that it has moved since the last tick.
    moved: Cell<u64>,
    /// Whether the request's body has to keep up, and whether the next part of it is waited for.
    counts_upload: Cell<bool>,
    waits_for_upload: Cell<bool>,
    /// Whether the client has yet to take a part of the answer's body, and how large that is.
    waits_for_reader: Cell<bool>,
    handed_over: Cell<usize>,
}

impl Pace {
    pub(super) fn begin(&self, scarcity: Rc<Scarcity>, counts_upload: bool) {
        self.ahead.set(u64::from(scarcity.rate().get()) * GRACE);
        self.scarcity.replace(Some(scarcity));
        self.moved.set(0);
        self.counts_upload.set(counts_upload);
        self.waits_for_upload.set(false);
        self.waits_for_reader.set(false);
        self.handed_over.set(0);
    }

    pub(super) fn end(&self) {
        if self.scarcity.borrow().is_some() {
            self.scarcity.replace(None);
        }
    }

    /// The next part of the request's body is waited for.
    pub(super) fn waits(&self) {
        self.waits_for_upload.set(true);
    }

    /// It is here.
    pub(super) fn received(&self, octets: u64) {
        self.waits_for_upload.set(false);
        self.moved(octets);
    }

    /// A part of the answer's body is for the client to take.
    pub(super) fn hands_over(&self, octets: usize) {
        self.waits_for_reader.set(true);
        self.handed_over.set(octets);
    }

    /// The next one is asked for; `counts` says whether the bytes of the last have not been counted yet.
    pub(super) fn is_asked(&self, counts: bool) {
        self.waits_for_reader.set(false);
        let taken = self.handed_over.replace(0);
        if counts {
            self.moved(taken as u64);
        }
    }

    /// The client has moved so many bytes.
    pub(super) fn moved(&self, octets: u64) {
        self.moved.set(self.moved.get().saturating_add(octets));
    }

    /// A tick has passed: whether the client has to go.
    ///
    /// While there is an answer, both sides may talk when they like: the request's body only `is_due` before and after.
    pub(super) fn is_too_slow(&self, is_due: bool) -> bool {
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
