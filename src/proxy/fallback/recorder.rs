//! A response that is recorded while it passes.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};

use super::taking::Taking;
use crate::limiter::timestamp::Timestamp;
use crate::response::fallback::Kept;

/// A response that is recorded while it passes.
#[derive(Debug)]
pub(in crate::proxy) struct Recorder {
    /// Where it will be kept; those who have no room for it drop out.
    takings: Vec<Taking>,
    at: Timestamp,
    /// The answer, once its head is known and may be kept.
    kept: Option<Kept>,
    body: Vec<u8>,
}

impl Recorder {
    pub(super) const fn new(takings: Vec<Taking>, at: Timestamp) -> Self {
        Self { takings, at, kept: None, body: Vec::new() }
    }

    /// The head of the upstream's answer; whether there is any use in going on.
    pub(in crate::proxy) fn head(&mut self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.kept = Kept::new(status, headers, self.at);
        let Some(kept) = &self.kept else { return false };
        let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let size = (kept.size() as u64).saturating_add(told.unwrap_or(0));
        self.takings.retain_mut(|taking| {
            size <= taking.largest() && taking.admits(kept) && taking.takes(kept.size() as u64)
        });
        !self.takings.is_empty()
    }

    /// A part of its body; whether there is any use in going on.
    pub(in crate::proxy) fn data(&mut self, data: &Bytes) -> bool {
        let length = self.body.len().saturating_add(data.len());
        let grown = grown(self.body.capacity(), length);
        let more = grown.saturating_sub(self.body.capacity()) as u64;
        self.takings
            .retain_mut(|taking| length as u64 <= taking.largest() && (more == 0 || taking.takes(more)));
        if self.takings.is_empty() {
            return false;
        }
        self.body.reserve_exact(grown - self.body.len());
        self.body.extend_from_slice(data);
        true
    }

    /// Bytes of memory that its body takes.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.body.capacity()
    }

    /// The body has come to its end.
    pub(in crate::proxy) fn keep(self) {
        let Self { takings, kept, mut body, .. } = self;
        let Some(kept) = kept else { return };
        body.shrink_to_fit();
        let kept = Arc::new(kept.with_body(Bytes::from(body)));
        takings.into_iter().for_each(|taking| taking.keep(&kept));
    }
}

/// The capacity for so many bytes: doubled rather than stretched, so that many small parts are not copied as often.
fn grown(capacity: usize, length: usize) -> usize {
    if length <= capacity { capacity } else { length.max(capacity.saturating_mul(2)) }
}
