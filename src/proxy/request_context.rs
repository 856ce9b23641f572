//! What is known of one request so far: plain data. The stages of the pipeline fill it in; [`finish`] records it.
//!
//! [`finish`]: super::finish

mod log_record;
mod response_flag;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;

pub(super) use self::log_record::LogRecord;
pub(super) use self::response_flag::ResponseFlag;
use super::connection::Connection;
use super::fallback::Recorder;
use super::timeouts::RequestTimer;
use crate::limiter::timestamp::Timestamp;
use crate::limits::Settlement;
use crate::overload::InFlightPermit;
use crate::upstream::tunnel::Tunnel;

/// One request and its response, up to the last byte of both. It is moved often, so it lives in a box.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) connection: Rc<Connection>,
    pub(super) timer: Rc<RequestTimer>,
    /// Its permit among all requests, where these are limited.
    pub(super) permit: Option<InFlightPermit>,
    /// Whether it is a gRPC call, whose outcome is in `grpc-status`.
    pub(super) is_grpc: bool,
    /// The client's address or network, by which an upstream shares out its requests.
    pub(super) client: IpAddr,
    pub(super) upgrade: UpgradeRequest,
    pub(super) started: Timestamp,
    /// When it was free to go to the upstream.
    pub(super) forwarded: Timestamp,
    /// When the client stops waiting, as far as it has said so.
    pub(super) deadline: Option<Timestamp>,
    /// How long the upstream took for the head of its response.
    pub(super) upstream_time: Duration,
    /// Attempts after the first, and whether the policy allowed no more.
    pub(super) retries: u32,
    pub(super) retries_exhausted: bool,
    /// `None` as long as there is no response.
    pub(super) status: Option<StatusCode>,
    pub(super) flag: ResponseFlag,
    /// Bytes of the response's body.
    pub(super) bytes_sent: u64,
    /// The response has come to its end.
    pub(super) is_complete: bool,
    /// The progress of the request's body; `None` for a request without one.
    pub(super) upload: Option<Rc<UploadProgress>>,
    /// What is to be settled when the end is known.
    pub(super) settlement: Option<Box<Settlement>>,
    /// Records the response for requests that are rejected later.
    pub(super) recorder: Option<Box<Recorder>>,
    /// What the access log and spans say of it, where there is either.
    pub(super) log: Option<Box<LogRecord>>,
}

/// A client's wish to leave HTTP.
#[derive(Debug, Default)]
pub(super) struct UpgradeRequest {
    /// The protocol, if it is one that may be passed on.
    pub(super) protocol: Option<HeaderValue>,
    /// Of an extended CONNECT (RFC 8441): its stream.
    pub(super) stream: Option<OnUpgrade>,
}

/// The progress of an upload, shared between the request's body and the request.
#[derive(Debug, Default)]
pub(super) struct UploadProgress {
    /// Bytes of content received.
    pub(super) received: Cell<u64>,
    /// The client broke off or sent what is no body.
    pub(super) failed: Cell<bool>,
    /// The whole body has been read.
    pub(super) ended: Cell<bool>,
}

/// A tunnel that begins when the client has its response.
#[derive(Debug)]
pub(super) struct UpgradedRequest {
    /// The far end.
    pub(super) upstream: Tunnel,
    /// The request that asked for it.
    pub(super) context: Box<RequestContext>,
}

impl RequestContext {
    /// A request that arrives on `connection` now.
    pub(super) fn new(connection: &Rc<Connection>, timer: Rc<RequestTimer>, started: Timestamp) -> Box<Self> {
        Box::new(Self {
            connection: Rc::clone(connection),
            timer,
            permit: None,
            is_grpc: false,
            client: connection.peer,
            upgrade: UpgradeRequest::default(),
            started,
            forwarded: started,
            deadline: None,
            upstream_time: Duration::ZERO,
            retries: 0,
            retries_exhausted: false,
            status: None,
            flag: ResponseFlag::None,
            bytes_sent: 0,
            is_complete: false,
            upload: None,
            settlement: None,
            recorder: None,
            log: None,
        })
    }

    /// Whether it has its connection to itself, and may close it.
    pub(super) fn owns_connection(&self) -> bool {
        !self.timer.is_stream()
    }

    /// Whether the client accepts no success but the protocol that it asks for.
    pub(super) fn requires_upgrade(&self) -> bool {
        self.upgrade.stream.is_some()
    }

    /// Bytes of the request's body.
    pub(super) fn bytes_received(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.received.get())
    }

    /// Whether the request's last byte has been read.
    pub(super) fn upload_is_complete(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.ended.get())
    }

    /// Whether the request's body broke off or is none.
    pub(super) fn upload_has_failed(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.failed.get())
    }

    /// The response is decided, and why it is this one.
    pub(super) fn respond_with(&mut self, status: StatusCode, flag: ResponseFlag) {
        self.status = Some(status);
        self.flag = flag;
    }
}
