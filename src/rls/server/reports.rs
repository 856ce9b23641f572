//! Reports on quotas, read from the body of a call.
//!
//! A stream rests for most of its life, and may do so for days. The buffer in which a report was collected goes with the
//! report; a general decoder keeps it for the next one, which is up to a mebibyte for each stream.

use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use envoy_types::pb::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::Status;

use super::framing::{Framed, MAX_MESSAGE};
use super::receiving::PREFIX;

/// The reports of one stream.
#[derive(Debug)]
pub(super) struct Reports<B = Framed<Incoming>> {
    body: B,
    buffer: BytesMut,
}

/// Reports on their way to the service, beside a request whose body is empty.
#[derive(Clone, Debug)]
pub(super) struct Handover(Arc<Mutex<Option<Reports>>>);

impl Handover {
    /// To be taken once.
    pub(super) fn of(reports: Reports) -> Self {
        Self(Arc::new(Mutex::new(Some(reports))))
    }

    /// What was handed over.
    pub(super) fn take(&self) -> Option<Reports> {
        self.0.lock().take()
    }
}

impl<B: Body<Data = Bytes, Error = Status> + Unpin> Reports<B> {
    /// The reports in `body`.
    pub(super) fn new(body: B) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// The next report; `None` at the end.
    ///
    /// # Errors
    /// The status that ends the stream.
    pub(super) async fn next(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        loop {
            if let Some(report) = self.complete()? {
                return Ok(Some(report));
            }
            match self.body.frame().await.transpose()? {
                Some(frame) => {
                    frame.data_ref().into_iter().for_each(|data| self.buffer.extend_from_slice(data))
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::internal("the last report is incomplete")),
            }
        }
    }

    /// The first report in the buffer, if all of it is there.
    fn complete(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        let Some(&[flag, ref length @ ..]) = self.buffer.first_chunk::<PREFIX>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if flag != 0 {
            return Err(Status::unimplemented("reports must not be compressed"));
        }
        if length > MAX_MESSAGE {
            return Err(Status::out_of_range(format!(
                "report too large, at most {MAX_MESSAGE} bytes: {length}"
            )));
        }
        let Some(mut message) = self.buffer.get(PREFIX..PREFIX + length) else { return Ok(None) };
        let report = RateLimitQuotaUsageReports::decode(&mut message)
            .map_err(|error| Status::invalid_argument(format!("not a report: {error}")))?;
        self.buffer.advance(PREFIX + length);
        // A copy, since what is left of a buffer keeps all of it.
        self.buffer = BytesMut::from(&*self.buffer);
        Ok(Some(report))
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tonic::Code;
    use tonic::codegen::tokio_stream;

    use super::*;

    /// The numbers of buckets in the reports of a body, and how it ends.
    fn read(body: impl Body<Data = Bytes, Error = Status> + Unpin) -> (Vec<usize>, Option<Code>) {
        let (mut reports, mut found) = (Reports::new(body), Vec::new());
        let runtime = Builder::new_current_thread().build().unwrap();
        loop {
            match runtime.block_on(reports.next()) {
                Ok(Some(report)) => found.push(report.bucket_quota_usages.len()),
                Ok(None) => return (found, None),
                Err(status) => return (found, Some(status.code())),
            }
        }
    }

    fn whole(bytes: Vec<u8>) -> (Vec<usize>, Option<Code>) {
        read(Full::new(Bytes::from(bytes)).map_err(|never| match never {}))
    }

    proptest! {
        #[test]
        fn reports_are_read_however_they_are_cut(
            counts in prop::collection::vec(0_usize..20, 0..6),
            cut in 1_usize..50,
        ) {
            let mut sent = Vec::new();
            for count in &counts {
                let bucket_quota_usages = vec![BucketQuotaUsage::default(); *count];
                let report = RateLimitQuotaUsageReports { bucket_quota_usages, ..Default::default() };
                sent.push(0);
                sent.extend(u32::try_from(report.encoded_len()).unwrap().to_be_bytes());
                sent.extend(report.encode_to_vec());
            }
            let frames: Vec<_> =
                sent.chunks(cut).map(|part| Ok(Frame::data(Bytes::copy_from_slice(part)))).collect();
            prop_assert_eq!(read(StreamBody::new(tokio_stream::iter(frames))), (counts, None));
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
