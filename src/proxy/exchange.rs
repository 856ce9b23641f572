//! One request and its answer, from the first to the last byte, for those who count and log.
//!
//! An exchange ends when it is dropped: with the body that was sent to its end, or with the connection that
//! broke off. Nothing is written down for the access log or a span unless there is one.

mod call;
mod flag;
mod held;
mod record;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, request};
use hyper::upgrade::OnUpgrade;

pub(super) use self::flag::Flag;
use self::held::{Held, Waiting};
use self::record::Record;
use super::body::Progress;
use super::connection::Connection;
use super::elastic::Load;
use super::fallback::Capture;
use super::grpc;
use super::headers::envoy::Controls;
use super::headers::{self, Given, Hop, Wishes};
use super::timeouts::RequestTimer;
use super::tunnel::{self, Switched};
use crate::engine::Policy;
use crate::headers::Headers;
use crate::http1::interim::Interims;
use crate::identify::Attributes;
use crate::identify::client_ip;
use crate::limiter::timestamp::Timestamp;
use crate::limits::{Limits, Settlement};
use crate::overload::{InFlightPermit, LoadShed};
use crate::rules::RuleIndex;
use crate::rules::grpc::GrpcStatus;
use crate::rules::tariff::Ending;
use crate::telemetry::access_log::Entry;
use crate::upstream::Upstream;
use crate::upstream::tunnel::Tunnel;

/// What is known of an exchange so far. It goes through many hands, so it lives in a box.
#[derive(Debug)]
pub(super) struct Exchange {
    connection: Rc<Connection>,
    timer: Rc<RequestTimer>,
    grpc: bool,
    /// Whose share of an upstream's requests it takes: the client's address, or its network.
    client: IpAddr,
    /// What the client would rather speak.
    upgrade: Option<HeaderValue>,
    /// Where its stream is to be had when that is no longer one of HTTP.
    stream: Option<OnUpgrade>,
    started: Timestamp,
    /// When it was free to go to the upstream.
    forwarded: Timestamp,
    /// When the client stops waiting, as far as it has said so.
    deadline: Option<Timestamp>,
    /// `None` as long as there is no answer.
    status: Option<StatusCode>,
    took: Duration,
    /// Attempts after the first, and whether there were as many as might be.
    retries: u32,
    exhausted: bool,
    sent: u64,
    whole: bool,
    flag: Flag,
    /// How the request's body goes; `None` for a request without one.
    upload: Option<Rc<Progress>>,
    /// What is to be settled when the end is known.
    settlement: Option<Box<Settlement>>,
    /// The answer is taken down for others.
    capture: Option<Box<Capture>>,
    record: Option<Box<Record>>,
    /// Its permit among all requests, where these are limited.
    permit: Option<InFlightPermit>,
}

impl Exchange {
    /// A request's head is complete; its bodies may stand still for `stall`. One for a stream that is to leave HTTP is
    /// made what it would be in HTTP/1.1.
    pub(super) fn begin(
        connection: &Rc<Connection>,
        head: &mut request::Parts,
        started: Timestamp,
        stall: Duration,
    ) -> Box<Self> {
        let stream = headers::connect::take(head, || connection.worker.random());
        let timer = connection.start_request(head.version, stall);
        connection.worker.metrics.request_started(connection.listener);
        let record = Record::begin(connection, head);
        Box::new(Self {
            connection: Rc::clone(connection),
            timer,
            grpc: grpc::is_call(head),
            client: connection.peer,
            upgrade: None,
            stream,
            started,
            forwarded: started,
            deadline: None,
            status: None,
            took: Duration::ZERO,
            retries: 0,
            exhausted: false,
            sent: 0,
            whole: false,
            flag: Flag::None,
            upload: None,
            settlement: None,
            capture: None,
            record,
            permit: None,
        })
    }

    /// Acquires a permit among all requests, until its end.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn acquire_permit(&mut self) -> Result<(), LoadShed> {
        self.permit = self.connection.worker.shared.overload.acquire_request()?;
        Ok(())
    }

    /// The request is shed.
    pub(super) fn record_shed(&self, by: LoadShed) {
        self.connection.worker.metrics.load_shed(by);
    }

    pub(super) fn timer(&self) -> &Rc<RequestTimer> {
        &self.timer
    }

    /// Whether the exchange has its connection to itself, and may close it.
    pub(super) fn is_alone(&self) -> bool {
        !self.timer.is_stream()
    }

    /// Whether the client called a procedure by gRPC, and looks for the outcome in `grpc-status`.
    pub(super) fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Whether somebody reads the request's fields as they go out.
    pub(super) fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// The request has a body; answers where its progress is to be noted.
    pub(super) fn begin_upload(&mut self) -> Rc<Progress> {
        Rc::clone(self.upload.get_or_insert_default())
    }

    /// Whether the drain has begun, so that the connection is to be closed after the answer.
    pub(super) fn is_last(&self) -> bool {
        self.is_alone() && self.connection.worker.slow_clock.is_draining()
    }

    /// Whether the request's last byte has been read.
    pub(super) fn request_is_whole(&self) -> bool {
        self.upload.as_ref().is_none_or(|upload| upload.ended.get())
    }

    /// Whether the request's body broke off or is none.
    pub(super) fn request_is_broken(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| upload.failed.get())
    }

    /// A rule refuses the request; for the log, its headers are what the upstream would have seen.
    pub(super) fn note_refused(
        &mut self,
        rule: &str,
        (head, given): (&mut request::Parts, Given),
        hop: &Hop<'_>,
    ) {
        if let Some(record) = &mut self.record {
            record.rule = Some(rule.into());
            let _ = headers::prepare_request(head, given, hop, &[], None);
            record.note_headers(&head.headers);
        }
    }

    /// What the client asks of us; answers what concerns the way to the upstream.
    pub(super) fn note_wishes(&mut self, wishes: Wishes) -> Option<Box<Controls>> {
        self.upgrade = wishes.upgrade;
        wishes.controls
    }

    /// Where interim responses are left for the client.
    pub(super) fn interims(&self) -> &Interims {
        &self.connection.interims
    }

    /// Whether the client takes nothing for a success but the protocol that it asks for.
    pub(super) fn insists(&self) -> bool {
        self.stream.is_some()
    }

    /// The protocol that the client would rather speak, if the upstream does.
    pub(super) fn wanted(&self) -> Option<&HeaderValue> {
        self.upgrade.as_ref()
    }

    /// The upstream does: the connection, or the stream, is a tunnel from now on, and this its exchange.
    pub(super) fn switch(mut self: Box<Self>, upstream: Tunnel) {
        let connection = Rc::clone(&self.connection);
        match self.stream.take() {
            Some(stream) => tunnel::begin(&connection, stream, Switched { upstream, exchange: self }),
            None => connection.switch(Switched { upstream, exchange: self }),
        }
    }

    /// A tunnel has ended through which so much went.
    pub(super) fn note_tunnelled(&mut self, received: u64, sent: u64) {
        let upload = self.upload.get_or_insert_default();
        upload.received.set(upload.received.get().saturating_add(received));
        self.sent = self.sent.saturating_add(sent);
    }

    /// Copies what the log needs of the headers as they are now, and has them lead on from our span.
    pub(super) fn note_headers(&mut self, headers: &mut HeaderMap) {
        if let Some(record) = &mut self.record {
            record.note_headers(headers);
            record.lead_on(headers);
        }
    }

    /// These rules are asked about the request.
    pub(super) fn note_rules(
        &mut self,
        policy: &Policy,
        rules: impl Iterator<Item = RuleIndex>,
        request: &Attributes<'_>,
    ) {
        if let Some(record) = &mut self.record {
            record.note_route(policy, rules, request);
        }
    }

    /// Who the rules say the client is; an IPv6 client is a network with this prefix.
    pub(super) fn note_client(&mut self, ip: IpAddr, ipv6_prefix: u8) {
        self.client = client_ip::network(ip, 32, ipv6_prefix);
        if let Some(record) = &mut self.record {
            record.client = Some(ip);
        }
    }

    /// Whose share of an upstream's requests it takes.
    pub(super) const fn client(&self) -> IpAddr {
        self.client
    }

    /// Holds the request back, however long its bodies may stand still otherwise.
    pub(super) async fn wait(&mut self, delay: Duration) {
        let waiting = Waiting::begin(self);
        self.hold(tokio::time::sleep(delay)).await;
        drop(waiting);
    }

    /// Holds the request back until `done` is, however long its bodies may stand still otherwise.
    pub(super) async fn hold<T>(&mut self, done: impl Future<Output = T>) -> T {
        let held = Held::begin(&self.timer);
        let done = done.await;
        drop(held);
        self.forwarded = self.connection.worker.shared.clock.now();
        done
    }

    /// This rule refuses the request after all.
    pub(super) fn note_refused_by(&mut self, rule: &str) {
        if let Some(record) = &mut self.record {
            record.rule = Some(rule.into());
        }
    }

    /// The request is sent once more.
    pub(super) fn note_retry(&mut self) {
        self.retries = self.retries.saturating_add(1);
    }

    /// It would have been, had it not been too often already.
    pub(super) fn note_exhausted(&mut self) {
        self.exhausted = true;
    }

    /// How long the upstream took to answer.
    pub(super) const fn upstream_took(&self) -> Duration {
        self.took
    }

    /// The head of the upstream's answer is here; answers how long it took.
    pub(super) fn upstream_answered(&mut self) -> Duration {
        let took = self.connection.worker.shared.clock.now().since(self.forwarded);
        if let Some(record) = &mut self.record {
            record.upstream_time = Some(took);
        }
        self.took = took;
        took
    }

    /// Where elastic limits note how the upstream does.
    pub(super) fn load(&self) -> &Load {
        &self.connection.worker.load
    }

    /// The upstream that takes the request: its bodies may stand still as long as it says, and go as slowly as its
    /// requests are not scarce. The messages of a gRPC call come when they come.
    pub(super) fn goes_to(&self, upstream: &Upstream) {
        self.timer.set_stream_idle_timeout(upstream.settings().idle_timeout);
        if let Some(scarcity) = upstream.scarcity() {
            self.timer.require_min_rate(Rc::clone(scarcity), !self.grpc);
        }
    }

    /// Where the request goes.
    pub(super) fn note_upstream(&mut self, address: &str) {
        if let Some(record) = &mut self.record {
            record.upstream = Some(address.into());
        }
    }

    /// The request has passed its limits: what they reserved is settled when the end is known.
    pub(super) fn reserve(&mut self, settlement: Option<Box<Settlement>>) {
        self.settlement = settlement;
    }

    /// Settles what the request reserved, and notes in `limits` how the client stands now.
    pub(super) fn settle(&mut self, ending: &Ending<'_>, limits: &mut Limits) {
        let received = self.received();
        let call = grpc::call_status(self.grpc, ending);
        if let Some(settlement) = &mut self.settlement {
            let shared = &self.connection.worker.shared;
            let now = shared.clock.now();
            // The upstream knows the client's deadline too, and may be the first to give up.
            let is_past = self.deadline.is_some_and(|deadline| deadline <= now);
            let gave_up = is_past && ending.may_be_by_deadline(call);
            let ending = if gave_up { &Ending::Abandoned } else { ending };
            let mut note = |position, settled| limits.note_settled(position, settled, now);
            settlement.settle((ending, call), (&shared.limiter, now), &mut note);
            settlement.octets(received, 0, (&shared.limiter, now), &mut note);
        }
    }

    /// The answer's status is decided, and why.
    pub(super) fn answers(&mut self, status: StatusCode, flag: Flag) {
        self.status = Some(status);
        self.flag = flag;
    }

    /// The answer's status is another than its reason would have it.
    pub(super) fn answers_with(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    /// The upstream's answer is to be taken down.
    pub(super) fn listen(&mut self, capture: Option<Box<Capture>>) {
        self.capture = capture;
    }

    /// The head of the upstream's answer as it is passed on.
    pub(super) fn note_answer(&mut self, status: StatusCode, headers: &mut Headers) {
        self.capture.take_if(|capture| !capture.head(status, headers.map_mut()));
    }

    /// A part of the answer's body has been handed over; `None` for its trailers.
    pub(super) fn sent(&mut self, data: Option<&Bytes>) {
        self.sent = self.sent.saturating_add(data.map_or(0, |data| data.len() as u64));
        self.capture.take_if(|capture| !data.is_some_and(|data| capture.data(data)));
    }

    /// The answer's body has been handed over whole.
    pub(super) fn note_whole(&mut self) {
        self.whole = true;
        if let Some(status) = self.status.filter(|_| self.grpc) {
            self.settle_call(GrpcStatus::of_silence(status));
        }
        if let Some(capture) = self.capture.take() {
            capture.keep();
        }
    }

    /// The answer goes without its body, as that to HEAD does.
    pub(super) fn note_left_out(&mut self) {
        self.whole = true;
        self.capture = None;
    }

    /// The answer's body broke off.
    pub(super) fn broke_off(&mut self) {
        self.settle_call(GrpcStatus::UNAVAILABLE);
        self.flag = Flag::UpstreamClosed;
        self.whole = true;
        self.capture = None;
    }

    /// Whether the answer's body did.
    pub(super) fn has_broken_off(&self) -> bool {
        self.whole && self.flag == Flag::UpstreamClosed
    }

    /// Another answer takes the place of one of which nothing was sent; when the request came.
    pub(super) fn answer_again(&mut self) -> Timestamp {
        (self.whole, self.sent) = (false, 0);
        self.started
    }

    /// Octets of the request's body.
    fn received(&self) -> u64 {
        self.upload.as_ref().map_or(0, |upload| upload.received.get())
    }

    fn log(&self, duration: Duration) {
        let Some(record) = self.record.as_ref() else { return };
        let flag = if self.whole { self.flag } else { Flag::DownstreamClosed };
        let entry = Entry {
            start: self.connection.worker.shared.clock.civil(self.started),
            method: &record.method,
            path: &record.target,
            protocol: record.protocol,
            status: self.status,
            flags: if self.exhausted { flag.exhausted() } else { flag.as_str() },
            attempts: record.upstream.as_ref().map_or(0, |_| self.retries.saturating_add(1)),
            bytes_received: self.received(),
            bytes_sent: self.sent,
            duration,
            upstream_time: record.upstream_time,
            x_forwarded_for: record.forwarded_for.as_ref().map(HeaderValue::as_bytes),
            user_agent: record.user_agent.as_ref().map(HeaderValue::as_bytes),
            request_id: record.request_id.as_ref().map(HeaderValue::as_bytes),
            authority: record.authority.as_ref().map(HeaderValue::as_bytes),
            upstream_host: record.upstream.as_deref(),
            rule: record.rule.as_deref(),
            client_ip: record.client.unwrap_or(self.connection.peer),
        };
        record.end(&self.connection, &entry, (self.flag, self.forwarded.since(self.started)));
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let worker = &self.connection.worker;
        let now = worker.shared.clock.now();
        let duration = now.since(self.started);
        if let Some(mut settlement) = self.settlement.take() {
            settlement.end(self.received(), self.sent, (&worker.shared.limiter, now));
        }
        match self.status {
            Some(status) if self.whole => {
                worker.metrics.request_finished(self.connection.listener, status, duration);
            }
            _ => worker.metrics.request_reset(self.connection.listener),
        }
        self.log(duration);
        self.timer.response_ended();
    }
}
