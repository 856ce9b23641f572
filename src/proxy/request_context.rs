//! State of one request: plain data. The stages of the pipeline fill it in; [`finish`] records it.
//!
//! [`finish`]: super::finish

mod log_record;
mod response_flag;

use std::cell::Cell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

pub(super) use self::log_record::{LogRecord, propagate_trace, record_decision, start_log};
pub(super) use self::response_flag::ResponseFlag;
use super::connection::DownstreamConnection;
use super::fallback::Recorder;
use super::streams::{BodyGate, RequestStreams};
use super::timeouts::RequestTimer;
use weir_bodies::response::ResponseReader;
use weir_http::http1::head::ReceivedHead;
use weir_limiter::classes::ConcurrencySlot;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::WaitingMemory;
use weir_limits::{FollowedLimits, Settlement};
use weir_net::in_place;
use weir_net::overload::InFlightPermit;
use weir_policy::decision::InquiryForm;
use weir_policy::identify::geo::GeoLocation;
use weir_policy::response::request_details::RequestDetails;
use weir_policy::rules::classes::ClassOfRequest;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_upstream::tunnel::Tunnel;

/// One request and its response, up to the last byte of both. Boxed, because it is moved often.
#[derive(Debug)]
pub(super) struct RequestContext {
    pub(super) connection: Rc<DownstreamConnection>,
    pub(super) timer: Rc<RequestTimer>,
    /// The request's permit, if requests are limited.
    pub(super) permit: Option<InFlightPermit>,
    /// Its class, if the concurrency of upstreams is limited and it may be forwarded.
    pub(super) class: Option<ClassOfRequest>,
    /// Its slot at the upstream, if the concurrency of that is limited.
    pub(super) slot: Option<ConcurrencySlot>,
    /// Memory that it takes while a limit delays it.
    pub(super) delayed_memory: Option<WaitingMemory>,
    /// Whether it is a gRPC call, whose outcome is in `grpc-status`.
    pub(super) is_grpc: bool,
    /// Whether the upstream learns nothing about the client.
    pub(super) hides_client: bool,
    /// Whether Weir is a proxy that the client has chosen, and not the gateway of a service.
    pub(super) is_proxied: bool,
    /// The client's address or network, by which an upstream distributes its requests.
    pub(super) client: IpAddr,
    /// Location of the client, if there is a database of countries.
    pub(super) location: Option<GeoLocation>,
    pub(super) upgrade: UpgradeRequest,
    /// 128 random bits for the request ID.
    pub(super) request_bits: u128,
    /// Whether this hop responds, and not the upstream (RFC 9110 section 7.6.2).
    pub(super) is_last_hop: bool,
    /// The form of the request for a decision, if another proxy forwards the request.
    pub(super) inquiry: Option<InquiryForm>,
    /// What the local reply may repeat, if a rule's reply needs it and the request is or may be rejected.
    pub(super) details: Option<Box<RequestDetails>>,
    pub(super) started_at: Timestamp,
    /// When it was ready to be sent to the upstream.
    pub(super) forwarded_at: Timestamp,
    /// When the client stops waiting, if it has sent a deadline.
    pub(super) deadline: Option<Timestamp>,
    /// Time until the head of the upstream's response arrived, in the last attempt.
    pub(super) upstream_time: Duration,
    /// Retries made, and whether another one was prevented only by their maximum.
    pub(super) retries: u32,
    pub(super) retries_exhausted: bool,
    /// `None` until there is a response.
    pub(super) status: Option<StatusCode>,
    pub(super) flag: ResponseFlag,
    /// What the rules decided together; `None` until they have.
    pub(super) decision: Option<DecisionOutcome>,
    /// Bytes of the response body.
    pub(super) bytes_sent: u64,
    /// The response has ended.
    pub(super) is_complete: bool,
    /// Progress of the request body; `None` for a request without one.
    pub(super) upload: Option<Rc<UploadProgress>>,
    /// Charges to be settled when the outcome is known.
    pub(super) settlement: Option<Box<Settlement>>,
    /// Limits inside its stream.
    pub(super) streams: Option<Box<RequestStreams>>,
    /// Limits that follow the provider.
    pub(super) followed: Option<Box<FollowedLimits>>,
    /// Records the response for requests that are rejected later.
    pub(super) recorder: Option<Box<Recorder>>,
    /// Reads the fields of the response that state its cost.
    pub(super) stated_cost: Option<Box<ResponseReader>>,
    /// The request should have been changed to ask for its usage, and was not.
    pub(super) lacks_usage: bool,
    /// Head of the request as it arrived over HTTP/1.1, until it has been forwarded.
    pub(super) received: ReceivedHead,
    /// Data for the access log and spans, if either is enabled.
    pub(super) log: Option<Box<LogRecord>>,
}

/// A client's request to switch protocols.
#[derive(Debug, Default)]
pub(super) struct UpgradeRequest {
    /// The protocol, if it may be forwarded.
    pub(super) protocol: Option<HeaderValue>,
    /// Whether it is an extended CONNECT (RFC 8441), over HTTP/2.
    pub(super) is_extended_connect: bool,
    /// Whether the method is CONNECT: the client requests a tunnel to the destination.
    pub(super) is_connect: bool,
}

impl UpgradeRequest {
    /// Whether the protocol is WebSocket (RFC 6455).
    pub(super) fn is_websocket(&self) -> bool {
        self.protocol.as_ref().is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
    }

    /// Whether what follows the head is for a tunnel and not the content of the request (RFC 9110 section 9.3.6, RFC 8441 section 5).
    pub(super) const fn is_by_connect(&self) -> bool {
        self.is_connect || self.is_extended_connect
    }
}

/// Progress of an upload, shared between the request's body and its context.
#[derive(Debug, Default)]
pub(super) struct UploadProgress {
    /// Bytes of content received.
    pub(super) received: Cell<u64>,
    /// The body was malformed, or its connection failed.
    pub(super) failed: Cell<bool>,
    /// The whole body has been read.
    pub(super) ended: Cell<bool>,
}

/// A tunnel that starts once the response has been sent.
#[derive(Debug)]
pub(super) struct UpgradedRequest {
    /// The upstream's side.
    pub(super) upstream: Tunnel,
    /// The request for the tunnel.
    pub(super) context: Box<RequestContext>,
}

impl RequestContext {
    /// Creates the context of a request that has arrived on `connection`.
    pub(super) fn new(
        connection: &Rc<DownstreamConnection>,
        timer: Rc<RequestTimer>,
        started: Timestamp,
    ) -> Box<Self> {
        in_place::boxed!(Self {
            connection: Rc::clone(connection),
            timer,
            permit: None,
            class: None,
            slot: None,
            delayed_memory: None,
            is_grpc: false,
            hides_client: false,
            is_proxied: false,
            client: connection.peer,
            location: None,
            upgrade: UpgradeRequest::default(),
            request_bits: connection.request_bits(),
            is_last_hop: false,
            inquiry: None,
            details: None,
            started_at: started,
            forwarded_at: started,
            deadline: None,
            upstream_time: Duration::ZERO,
            retries: 0,
            retries_exhausted: false,
            status: None,
            flag: ResponseFlag::None,
            decision: None,
            bytes_sent: 0,
            is_complete: false,
            upload: None,
            settlement: None,
            streams: None,
            followed: None,
            recorder: None,
            stated_cost: None,
            lacks_usage: false,
            received: ReceivedHead::default(),
            log: None,
        })
    }

    /// Whether the request has the connection to itself and may close it, which is the case over HTTP/1.1.
    pub(super) fn owns_connection(&self) -> bool {
        !self.timer.is_stream()
    }

    /// Whether the client accepts no other success than the protocol that it has requested.
    pub(super) fn requires_upgrade(&self) -> bool {
        self.upgrade.is_extended_connect
    }

    /// Returns the limits on the body of the response.
    #[inline]
    pub(super) fn response_gate(&mut self) -> Option<&mut BodyGate> {
        self.streams.as_mut()?.of_response_mut()
    }

    /// Whether a limit, a cost or a cache reads the body of the response.
    pub(super) fn reads_response(&self) -> bool {
        let is_limited = self.streams.as_ref().is_some_and(|streams| streams.of_response().is_some());
        is_limited || self.stated_cost.is_some() || self.recorder.is_some()
    }

    /// Returns the bytes received of the request body.
    pub(super) fn bytes_received(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.received.get())
    }

    /// Whether the whole request has been read.
    pub(super) fn upload_is_complete(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.ended.get())
    }

    /// Whether the request body was malformed or its connection failed.
    pub(super) fn upload_has_failed(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.failed.get())
    }

    /// Records the status code of the response, and the reason for it.
    pub(super) fn respond_with(&mut self, status: StatusCode, flag: ResponseFlag) {
        self.status = Some(status);
        self.flag = flag;
    }
}
