//! Reader of quota reports from the body of a call.
//!
//! A stream is idle for most of its life, possibly for days. The buffer for a report is freed with the report. A
//! general decoder keeps it for the next report, which takes up to 1 MiB per stream.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Buf as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::budget::Activity;
use super::receiving::{PREFIX, TIMEOUT, cancelled, incomplete};

/// Maximum size of a report in bytes, enough for 10 000 buckets.
const MAX_REPORT: usize = 1 << 20;

/// Maximum total size of incomplete reports of all streams of the process, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The reports of one stream.
#[derive(Debug)]
pub(super) struct Reports<B = Incoming> {
    body: B,
    buffer: BytesMut,
    /// Timer that runs while a report is incomplete.
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes of the incomplete report. The next field has the total of all streams.
    held: usize,
    held_by_all: Arc<AtomicUsize>,
    activity: Activity,
}

/// Passes the reports to the service, next to a request with an empty body.
#[derive(Clone, Debug)]
pub(super) struct Handover(Arc<Mutex<Option<Reports>>>);

impl Handover {
    /// Stores reports, which can be taken once.
    pub(super) fn of(reports: Reports) -> Self {
        Self(Arc::new(Mutex::new(Some(reports))))
    }

    /// Takes the stored reports.
    pub(super) fn take(&self) -> Option<Reports> {
        self.0.lock().take()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Reports<B> {
    /// Creates a reader of `body`. The timeout of the first report starts now.
    pub(super) fn new(body: B, held_by_all: Arc<AtomicUsize>, activity: Activity) -> Self {
        let limit = Some(Box::pin(sleep(TIMEOUT)));
        Self { body, buffer: BytesMut::new(), limit, held: 0, held_by_all, activity }
    }

    /// Returns the next report; `None` at the end.
    ///
    /// # Errors
    /// The status with which to end the stream.
    pub(super) async fn next(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        loop {
            if let Some(report) = self.complete()? {
                return Ok(Some(report));
            }
            self.wait_for_rest()?;
            let limit = async {
                match &mut self.limit {
                    Some(limit) => limit.await,
                    None => pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = limit => return Err(incomplete()),
            };
            match frame.transpose().map_err(|_| cancelled())? {
                Some(frame) => {
                    frame.data_ref().into_iter().for_each(|data| self.buffer.extend_from_slice(data))
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("the last report is incomplete")),
            }
        }
    }

    /// Starts the timeout of an incomplete report, and accounts for its size. Between two reports, a stream may be idle
    /// for any time.
    fn wait_for_rest(&mut self) -> Result<(), Status> {
        if !self.buffer.is_empty() && self.limit.is_none() {
            self.limit = Some(Box::pin(sleep(TIMEOUT)));
        }
        let more = self.buffer.len().saturating_sub(self.held);
        self.held += more;
        if self.held_by_all.fetch_add(more, Ordering::Relaxed) + more > MAX_BYTES {
            return Err(Status::resource_exhausted("too many bytes of incomplete messages"));
        }
        Ok(())
    }

    /// Returns the first report in the buffer, if it is complete.
    fn complete(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        let Some(&[flag, ref length @ ..]) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if flag != 0 {
            return Err(Status::unimplemented("reports must not be compressed"));
        }
        if length > MAX_REPORT {
            return Err(Status::out_of_range(format!(
                "report too large, at most {MAX_REPORT} bytes: {length}"
            )));
        }
        let Some(mut message) = self.buffer.get(PREFIX..PREFIX + length) else { return Ok(None) };
        let report = RateLimitQuotaUsageReports::decode(&mut message)
            .map_err(|error| Status::invalid_argument(format!("malformed report: {error}")))?;
        self.buffer.advance(PREFIX + length);
        // Copies the rest, because a slice would keep the whole buffer in memory.
        self.buffer = BytesMut::from(&*self.buffer);
        self.limit = None;
        self.activity.called();
        self.release();
        Ok(Some(report))
    }
}

impl<B> Reports<B> {
    fn release(&mut self) {
        self.held_by_all.fetch_sub(std::mem::take(&mut self.held), Ordering::Relaxed);
    }
}

impl<B> Drop for Reports<B> {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
    use http_body_util::{Empty, Full, StreamBody};
    use hyper::body::Frame;
    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tonic::Code;
    use tonic::codegen::tokio_stream;

    use super::*;
    use crate::rls::server::budget::Budget;

    fn reports<B: Body<Data = Bytes> + Unpin>(body: B) -> Reports<B> {
        let activity = Budget::new(1).enter().unwrap().activity().clone();
        Reports::new(body, Arc::default(), activity)
    }

    /// Returns the number of buckets of each report in a body, and how the body ends.
    fn read(body: impl Body<Data = Bytes> + Unpin) -> (Vec<usize>, Option<Code>) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let (mut reports, mut found) = (reports(body), Vec::new());
        loop {
            match runtime.block_on(reports.next()) {
                Ok(Some(report)) => found.push(report.bucket_quota_usages.len()),
                Ok(None) => return (found, None),
                Err(status) => return (found, Some(status.code())),
            }
        }
    }

    fn written(buckets: usize) -> Vec<u8> {
        let bucket_quota_usages = vec![BucketQuotaUsage::default(); buckets];
        let report = RateLimitQuotaUsageReports { bucket_quota_usages, ..Default::default() };
        let length = u32::try_from(report.encoded_len()).unwrap().to_be_bytes();
        [&[0][..], &length, &report.encode_to_vec()].concat()
    }

    fn whole(bytes: Vec<u8>) -> (Vec<usize>, Option<Code>) {
        read(Full::new(Bytes::from(bytes)))
    }

    proptest! {
        #[test]
        fn reports_are_read_however_they_are_cut(
            counts in prop::collection::vec(0_usize..20, 0..6),
            cut in 1_usize..50,
        ) {
            let sent: Vec<u8> = counts.iter().flat_map(|count| written(*count)).collect();
            let frames: Vec<_> =
                sent.chunks(cut).map(|part| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(part)))).collect();
            prop_assert_eq!(read(StreamBody::new(tokio_stream::iter(frames))), (counts, None));
        }

        #[test]
        fn a_report_is_incomplete_until_its_last_byte_however_it_is_cut(
            counts in prop::collection::vec(0_usize..5, 0..6),
            cut in 1_usize..12,
        ) {
            let (mut sent, mut ends) = (Vec::new(), vec![0]);
            for count in &counts {
                sent.extend(written(*count));
                ends.push(sent.len());
            }
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let _guard = runtime.enter();
            let mut reports = reports(Empty::<Bytes>::new());
            let held_by_all = Arc::clone(&reports.held_by_all);
            let mut at = 0;
            for part in sent.chunks(cut) {
                reports.buffer.extend_from_slice(part);
                let mut has_completed = false;
                while reports.complete().unwrap().is_some() {
                    has_completed = true;
                }
                prop_assert_eq!(has_completed, ends.iter().any(|end| (at + 1..=at + part.len()).contains(end)));
                at += part.len();
                reports.wait_for_rest().unwrap();
                // The timeout of the first report starts at the beginning.
                let is_between = ends.contains(&at);
                prop_assert_eq!(reports.limit.is_none(), is_between);
                prop_assert_eq!(held_by_all.load(Ordering::Relaxed) == 0, is_between);
            }
            drop(reports);
            prop_assert_eq!(held_by_all.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn what_is_no_report_ends_the_stream_with_a_reason() {
        assert_eq!(whole(vec![1, 0, 0, 0, 0]), (vec![], Some(Code::Unimplemented)));
        assert_eq!(whole(vec![0, 0, 0x10, 0, 1]), (vec![], Some(Code::OutOfRange)));
        assert_eq!(whole(vec![0, 0, 0, 0, 1, 0xff]), (vec![], Some(Code::InvalidArgument)));
        assert_eq!(whole(vec![0, 0, 0, 0, 0, 0, 0]), (vec![0], Some(Code::Internal)));
    }
}
