//! Bodies of requests that get a local reply.
//!
//! A rejected request may still be sending its body. A small body is read and discarded, so that the connection can be
//! reused. If the body is large or waits for `100 Continue`, the connection is closed after the response. In both
//! cases, no byte of the body can be taken for another request.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use crate::proxy::body::DownstreamBody;
use crate::proxy::headers::Expectation;
use crate::proxy::request_context::RequestContext;
use crate::proxy::stream::MAX_DISCARDED_BODY;
use crate::proxy::timeouts::UploadTimer;

/// Maximum time for which the body of a rejected request is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// Body of a request that may be rejected, before it is read.
#[derive(Debug)]
pub(in crate::proxy) struct PendingBody {
    pub(in crate::proxy) body: DownstreamBody,
    expectation: Expectation,
}

/// What is unread of the body of a request that gets a local reply.
#[derive(Debug)]
pub(in crate::proxy) enum UnreadBody {
    /// All of it.
    Pending(PendingBody),
    /// What remains of a body that is or was being read, perhaps nothing.
    Rest,
    /// An unknown part of what follows: the request may have been misread.
    Unknown,
}

impl PendingBody {
    pub(in crate::proxy) const fn new(expectation: Expectation, body: DownstreamBody) -> Self {
        Self { body, expectation }
    }

    /// Whether the request has no body.
    pub(in crate::proxy) fn is_empty(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Discards the body. Returns whether the connection has to be closed after the response.
    fn discard(self, context: &RequestContext) -> bool {
        let Self { body, expectation } = self;
        if body.is_end_stream() || !context.owns_connection() {
            // The rest of the stream is not polled. The stream is reset after the response (RFC 9113 section 8.1).
            return false;
        }
        context.timer.must_linger();
        let is_small = body.size_hint().upper().is_none_or(|length| length <= MAX_DISCARDED_BODY as u64);
        // Reading the body would send `100 Continue`; RFC 9110 section 10.1.1 allows closing the connection instead.
        if !is_small || expectation == Expectation::Continue {
            return true;
        }
        let upload = UploadTimer::start(&context.timer);
        tokio::task::spawn_local(async move {
            if tokio::time::timeout(DISCARD_TIME, discard(body)).await == Ok(true) {
                upload.body_complete();
            }
        });
        false
    }
}

impl UnreadBody {
    /// Discards the body. Returns whether the connection has to be closed after the response.
    pub(super) fn discard(self, context: &RequestContext) -> bool {
        let is_read = match self {
            Self::Pending(pending) => return pending.discard(context),
            Self::Rest => context.upload_is_complete(),
            Self::Unknown => false,
        };
        if !is_read {
            context.timer.must_linger();
        }
        !is_read
    }
}

impl From<PendingBody> for UnreadBody {
    fn from(pending: PendingBody) -> Self {
        Self::Pending(pending)
    }
}

/// Reads a body up to a maximum size. Returns whether it has ended. A body dropped before its end closes the
/// connection.
async fn discard(mut body: DownstreamBody) -> bool {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > MAX_DISCARDED_BODY {
            return false;
        }
    }
    body.is_end_stream()
}
