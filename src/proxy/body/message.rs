//! A gRPC message as the body of a response, with the trailers of a successful call.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use hyper::body::Frame;

use weir_policy::rules::grpc::GRPC_STATUS;

/// The message and the trailers, until each has been sent.
#[derive(Debug)]
pub(super) struct GrpcMessageBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl GrpcMessageBody {
    pub(super) fn new(message: Bytes) -> Self {
        let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
        Self { message: Some(message), trailers: Some(trailers) }
    }

    pub(super) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        match self.message.take() {
            Some(message) => Some(Frame::data(message)),
            None => self.trailers.take().map(Frame::trailers),
        }
    }

    pub(super) const fn is_sent(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}
