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
use hyper::body::Body;
use prost::Message as _;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::connection_limiter::ConnectionActivity;
use super::grpc::{self, MESSAGE_PREFIX_LEN};
use super::message_reader::{MESSAGE_TIMEOUT, cancelled_status, incomplete_status};
use weir_net::transport::Http2Body;

/// Maximum total size of incomplete reports of all streams of the process, in bytes.
const MAX_INCOMPLETE_BYTES: usize = 64 << 20;

/// The reports of one stream.
#[derive(Debug)]
pub(super) struct ReportReader<B = Http2Body> {
    body: B,
    buffer: BytesMut,
    /// Timer that runs while a report is incomplete.
    timeout: Option<Pin<Box<Sleep>>>,
    /// Bytes of the incomplete report. The next field has the total of all streams.
    buffered_bytes: usize,
    total_buffered_bytes: Arc<AtomicUsize>,
    activity: ConnectionActivity,
}

impl<B: Body<Data = Bytes> + Unpin> ReportReader<B> {
    /// Creates a reader of `body`. The timeout of the first report starts now.
    pub(super) fn new(body: B, total_buffered_bytes: Arc<AtomicUsize>, activity: ConnectionActivity) -> Self {
        let timeout = Some(Box::pin(sleep(MESSAGE_TIMEOUT)));
        Self { body, buffer: BytesMut::new(), timeout, buffered_bytes: 0, total_buffered_bytes, activity }
    }

    /// Returns the next report; `None` at the end.
    ///
    /// # Errors
    /// The status with which to end the stream.
    pub(super) async fn next(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        loop {
            if let Some(report) = self.decode_buffered()? {
                return Ok(Some(report));
            }
            self.track_incomplete()?;
            let timeout = async {
                match &mut self.timeout {
                    Some(limit) => limit.await,
                    None => pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                frame = self.body.frame() => frame,
                () = timeout => return Err(incomplete_status()),
            };
            match frame.transpose().map_err(|_| cancelled_status())? {
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
    fn track_incomplete(&mut self) -> Result<(), Status> {
        if !self.buffer.is_empty() && self.timeout.is_none() {
            self.timeout = Some(Box::pin(sleep(MESSAGE_TIMEOUT)));
        }
        let more = self.buffer.len().saturating_sub(self.buffered_bytes);
        self.buffered_bytes += more;
        if self.total_buffered_bytes.fetch_add(more, Ordering::Relaxed) + more > MAX_INCOMPLETE_BYTES {
            return Err(Status::resource_exhausted("too many bytes of incomplete messages"));
        }
        Ok(())
    }

    /// Returns the first report in the buffer, if it is complete.
    fn decode_buffered(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        let Some(message) = grpc::first_message(&self.buffer)? else { return Ok(None) };
        let report = RateLimitQuotaUsageReports::decode(message)
            .map_err(|error| Status::invalid_argument(format!("malformed report: {error}")))?;
        let length = message.len();
        self.buffer.advance(MESSAGE_PREFIX_LEN + length);
        // Copies the rest, because a slice would keep the whole buffer in memory.
        self.buffer = BytesMut::from(&*self.buffer);
        self.timeout = None;
        self.activity.record_call();
        self.release_bytes();
        Ok(Some(report))
    }
}

impl<B> ReportReader<B> {
    fn release_bytes(&mut self) {
        self.total_buffered_bytes.fetch_sub(std::mem::take(&mut self.buffered_bytes), Ordering::Relaxed);
    }
}

impl<B> Drop for ReportReader<B> {
    fn drop(&mut self) {
        self.release_bytes();
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
    use crate::server::connection_limiter::ConnectionLimiter;

    fn reader<B: Body<Data = Bytes> + Unpin>(body: B) -> ReportReader<B> {
        let activity = ConnectionLimiter::new(1).acquire().unwrap().activity().clone();
        ReportReader::new(body, Arc::default(), activity)
    }

    /// Returns the number of buckets of each report in a body, and how the body ends.
    fn read_reports(body: impl Body<Data = Bytes> + Unpin) -> (Vec<usize>, Option<Code>) {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let (mut reports, mut found) = (reader(body), Vec::new());
        loop {
            match runtime.block_on(reports.next()) {
                Ok(Some(report)) => found.push(report.bucket_quota_usages.len()),
                Ok(None) => return (found, None),
                Err(status) => return (found, Some(status.code())),
            }
        }
    }

    fn encoded_report(buckets: usize) -> Vec<u8> {
        let bucket_quota_usages = vec![BucketQuotaUsage::default(); buckets];
        let report = RateLimitQuotaUsageReports { bucket_quota_usages, ..Default::default() };
        let length = u32::try_from(report.encoded_len()).unwrap().to_be_bytes();
        [&[0][..], &length, &report.encode_to_vec()].concat()
    }

    fn read_bytes(bytes: Vec<u8>) -> (Vec<usize>, Option<Code>) {
        read_reports(Full::new(Bytes::from(bytes)))
    }

    proptest! {
        #[test]
        fn reports_are_read_whatever_the_frame_boundaries(
            counts in prop::collection::vec(0_usize..20, 0..6),
            cut in 1_usize..50,
        ) {
            let sent: Vec<u8> = counts.iter().flat_map(|count| encoded_report(*count)).collect();
            let frames: Vec<_> =
                sent.chunks(cut).map(|part| Ok::<_, Status>(Frame::data(Bytes::copy_from_slice(part)))).collect();
            prop_assert_eq!(read_reports(StreamBody::new(tokio_stream::iter(frames))), (counts, None));
        }

        #[test]
        fn report_timeout_runs_until_its_last_byte_whatever_the_frame_boundaries(
            counts in prop::collection::vec(0_usize..5, 0..6),
            cut in 1_usize..12,
        ) {
            let (mut sent, mut ends) = (Vec::new(), vec![0]);
            for count in &counts {
                sent.extend(encoded_report(*count));
                ends.push(sent.len());
            }
            let runtime = Builder::new_current_thread().enable_time().build().unwrap();
            let _guard = runtime.enter();
            let mut reports = reader(Empty::<Bytes>::new());
            let total_buffered_bytes = Arc::clone(&reports.total_buffered_bytes);
            let mut at = 0;
            for part in sent.chunks(cut) {
                reports.buffer.extend_from_slice(part);
                let mut has_completed = false;
                while reports.decode_buffered().unwrap().is_some() {
                    has_completed = true;
                }
                prop_assert_eq!(has_completed, ends.iter().any(|end| (at + 1..=at + part.len()).contains(end)));
                at += part.len();
                reports.track_incomplete().unwrap();
                // The timeout of the first report starts at the beginning.
                let is_between = ends.contains(&at);
                prop_assert_eq!(reports.timeout.is_none(), is_between);
                prop_assert_eq!(total_buffered_bytes.load(Ordering::Relaxed) == 0, is_between);
            }
            drop(reports);
            prop_assert_eq!(total_buffered_bytes.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn invalid_report_ends_the_stream_with_a_status() {
        assert_eq!(read_bytes(vec![1, 0, 0, 0, 0]), (vec![], Some(Code::Internal)));
        assert_eq!(read_bytes(vec![0, 0, 0x10, 0, 1]), (vec![], Some(Code::OutOfRange)));
        assert_eq!(read_bytes(vec![0, 0, 0, 0, 1, 0xff]), (vec![], Some(Code::InvalidArgument)));
        assert_eq!(read_bytes(vec![0, 0, 0, 0, 0, 0, 0]), (vec![0], Some(Code::Internal)));
    }
}
