//! Recorder of a response while it passes through.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};

use super::recording::ActiveRecording;
use weir_limiter::timestamp::Timestamp;
use weir_policy::response::fallback::CachedResponse;

/// Copies a response while it passes through.
#[derive(Debug)]
pub(in crate::proxy) struct Recorder {
    /// The caches that will store it. Those without room for it are removed.
    recordings: Vec<ActiveRecording>,
    at: Timestamp,
    /// The response, once its head is known to be storable.
    response: Option<CachedResponse>,
    body: Vec<u8>,
}

impl Recorder {
    pub(super) const fn new(takings: Vec<ActiveRecording>, at: Timestamp) -> Self {
        Self { recordings: takings, at, response: None, body: Vec::new() }
    }

    /// Records the head of the upstream's response. Returns whether to continue recording.
    pub(in crate::proxy) fn record_head(&mut self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.response = CachedResponse::new(status, headers, self.at);
        let Some(kept) = &self.response else { return false };
        let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let size = (kept.size() as u64).saturating_add(told.unwrap_or(0));
        self.recordings.retain_mut(|taking| {
            size <= taking.max_size() && taking.may_store(kept) && taking.reserve(kept.size() as u64)
        });
        !self.recordings.is_empty()
    }

    /// Records a part of the body. Returns whether to continue recording.
    pub(in crate::proxy) fn record_data(&mut self, data: &Bytes) -> bool {
        let length = self.body.len().saturating_add(data.len());
        let grown = grown(self.body.capacity(), length);
        let more = grown.saturating_sub(self.body.capacity()) as u64;
        self.recordings
            .retain_mut(|taking| length as u64 <= taking.max_size() && (more == 0 || taking.reserve(more)));
        if self.recordings.is_empty() {
            return false;
        }
        self.body.reserve_exact(grown - self.body.len());
        self.body.extend_from_slice(data);
        true
    }

    /// Returns the memory in bytes that the body takes.
    #[cfg(test)]
    pub(super) fn body_capacity(&self) -> usize {
        self.body.capacity()
    }

    /// Stores the response after the end of its body.
    pub(in crate::proxy) fn store(self) {
        let Self { recordings: takings, response: kept, mut body, .. } = self;
        let Some(kept) = kept else { return };
        body.shrink_to_fit();
        let kept = Arc::new(kept.with_body(Bytes::from(body)));
        takings.into_iter().for_each(|taking| taking.store(&kept));
    }
}

/// Returns the capacity for `length` bytes. It is at least doubled, so that many small parts are not copied each time.
fn grown(capacity: usize, length: usize) -> usize {
    if length <= capacity { capacity } else { length.max(capacity.saturating_mul(2)) }
}
