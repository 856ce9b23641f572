//! A request's body on its way to the upstream, for the notes of its connection or stream.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Context;

use super::{Activity, Overdue, keep};
use crate::proxy::deadline::Timeout;

/// An upload on its way; it ends when this is dropped.
#[derive(Debug)]
pub struct Uploading {
    activity: Rc<Activity>,
    exchange: u32,
    /// Of a stream: the upstream has not asked for more than it has got.
    is_held: Cell<bool>,
}

impl Uploading {
    pub(super) fn new(activity: &Rc<Activity>) -> Self {
        Self { activity: Rc::clone(activity), exchange: activity.exchange.get(), is_held: Cell::new(false) }
    }

    /// A part of the request's body has come.
    pub fn moved(&self, octets: u64) {
        if self.is_current() {
            self.activity.read();
            self.activity.pace.received(octets);
            self.hold(true);
        }
    }

    /// The next part of it is waited for.
    pub fn waits(&self) {
        self.hold(false);
        if self.is_current() {
            self.activity.pace.waits();
        }
    }

    /// Whether the client has been too slow with what is left of its request once the response is out. By then nothing but
    /// the upload serves a stream, so its task, that of `cx`, is woken for it.
    pub fn is_overdue(&self, cx: &Context<'_>) -> bool {
        let activity = &self.activity;
        if activity.is_stream() {
            keep(&activity.upload_waker, cx.waker());
        }
        activity.is_stream() && !activity.answering.get() && activity.overdue() == Some(Overdue::Stalled)
    }

    /// The request's last byte has been read: nothing of it is left to linger for, nor held by the upstream.
    pub fn is_whole(&self) {
        self.hold(false);
        if self.is_current() {
            self.activity.linger.set(false);
        }
    }

    /// The request's last byte is out: the answer's head is due in `timeout`.
    pub fn await_answer(&self, timeout: Timeout) {
        if self.is_current() {
            self.activity.await_answer(timeout);
        }
    }

    fn hold(&self, is_held: bool) {
        if let Some(connection) = &self.activity.connection
            && self.is_held.replace(is_held) != is_held
        {
            let held = connection.held_uploads.get();
            connection.held_uploads.set(if is_held { held + 1 } else { held.saturating_sub(1) });
        }
    }

    /// Another request may have begun on the connection before this one's last byte was asked for.
    fn is_current(&self) -> bool {
        self.exchange == self.activity.exchange.get()
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        self.hold(false);
        if self.is_current() {
            self.activity.uploading.set(false);
            self.activity.pace.received(0);
            self.activity.settle();
        }
    }
}
