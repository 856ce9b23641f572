//! Cost of a request, and how its response changes that.
//!
//! A cost model is evaluated twice: when the request arrives, with only its header section known, and when
//! the request has ended. It covers every way in which a request can end. Numbers in headers are read so that
//! malformed ones give no advantage: the highest of several values counts, and numbers saturate.

mod measures;
mod response_condition;
mod response_fields;

use std::fmt;
use std::ops::RangeInclusive;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use self::measures::length;
pub use self::measures::{ByteCost, FieldCost, HeaderCost};
pub use self::response_condition::ResponseCondition;
pub use self::response_fields::{
    CostEstimate, EndpointPattern, ReservedCost, ResponseFieldsCost, StatedMax, StreamEnd, UsageOptionFields,
    WEIGHT_SCALE, WeightedFields,
};
use super::grpc::{CallStatus, GrpcStatus, GrpcStatuses};
use crate::identify::Attributes;
use crate::identify::body::RequestFields;
use weir_bodies::fields::FieldMask;
use weir_bodies::response::{Extent, LatestValues};
use weir_http::headers::Headers;
use weir_limiter::reservation::{ChargeTiming, DebtLimit};

#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Cost of a request that counts.
    pub cost: Cost,
    /// Responses that count; `None` if every request counts, even without a response.
    pub counts: Option<ResponseCondition>,
    /// Endings for which nothing is charged.
    pub refunds: Refunds,
}

/// Units that a request uses if it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(u32),
    /// The number in a request header, at least 1.
    Header(HeaderCost),
    /// The number in a field of the request's body, at least 1.
    RequestField(FieldCost),
    /// One unit per [`ByteCost::bytes_per_unit`] bytes of the request body, at least 1.
    RequestBytes(ByteCost),
    /// The number in a response header. [`HeaderCost::default`] is held until the response arrives.
    ResponseHeader(HeaderCost),
    /// One unit per [`ByteCost::bytes_per_unit`] bytes of the response body, at least 1.
    ResponseBytes(ByteCost),
    /// Numbers in fields of the response body. The estimate is held until they are known.
    ResponseFields(Box<ResponseFieldsCost>),
}

/// A set of response status codes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses(Box<[RangeInclusive<u16>]>);

/// Endings for which the whole charge is refunded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refunds {
    /// Status codes of responses, from the upstream or local.
    pub statuses: Statuses,
    /// Statuses of gRPC calls.
    pub calls: GrpcStatuses,
    /// The connection to the upstream failed.
    pub connect_failure: bool,
    /// The upstream closed the connection before it responded.
    pub reset: bool,
    /// The upstream timed out.
    pub timeout: bool,
}

/// A request that has arrived, as far as a cost model may depend on it.
#[derive(Clone, Copy, Debug)]
pub struct ArrivedRequest<'a> {
    pub headers: &'a HeaderMap,
    /// Fields of its body.
    pub body: RequestFields<'a>,
    /// Size of its body, if that has arrived completely.
    pub size: Option<u64>,
    /// Its normalised path.
    pub path: &'a str,
}

/// How a request ended, as far as a cost model may depend on it.
#[derive(Clone, Copy, Debug)]
pub enum RequestEnd<'a> {
    /// The upstream has responded; the body may not be complete.
    Responded {
        /// Status code of the response.
        status: StatusCode,
        /// Headers of the response.
        headers: &'a Headers,
    },
    /// The upstream failed and a local reply was sent.
    Failed {
        /// Status code of the local reply.
        status: StatusCode,
        failure: UpstreamFailure,
    },
    /// Rejected after this rule's decision, by another rate limit service.
    Rejected,
    /// The client left before the upstream had the request.
    Abandoned,
    /// The client left, its request was incomplete, or a timeout that the client had set expired. The upstream may have
    /// done all of the work.
    Unanswered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// The connection failed.
    Connect,
    /// The connection was closed before a response.
    Reset,
    /// The upstream timed out.
    Timeout,
    /// The response was malformed.
    Malformed,
}

/// What a request is charged after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalCharge {
    /// Nothing, because it does not count.
    Nothing,
    /// The units that were reserved.
    AsReserved,
    Units(u32),
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(units) => units.fmt(f),
            Self::Header(told) => write!(f, "header {}", told.name),
            Self::RequestField(stated) => write!(f, "{} {}", stated.field.word(), stated.field.field),
            Self::RequestBytes(measure) => write!(f, "request_bytes {}", measure.bytes_per_unit),
            Self::ResponseHeader(told) => write!(f, "response_header {}", told.name),
            Self::ResponseBytes(measure) => write!(f, "response_bytes {}", measure.bytes_per_unit),
            Self::ResponseFields(stated) => stated.fmt(f),
        }
    }
}

impl RequestEnd<'_> {
    /// Whether an upstream may end a request this way because the request's deadline passed. For a gRPC `call` any
    /// error status counts: upstreams differ in the one that they use.
    pub fn may_be_by_deadline(&self, call: CallStatus) -> bool {
        match self {
            Self::Responded { status, .. } => {
                status.is_server_error() || matches!(call, CallStatus::Known(status) if !status.is_ok())
            }
            Self::Failed { failure, .. } => *failure == UpstreamFailure::Reset,
            Self::Rejected | Self::Abandoned | Self::Unanswered => false,
        }
    }
}

impl<'a> From<&'a Attributes<'_>> for ArrivedRequest<'a> {
    fn from(request: &'a Attributes<'_>) -> Self {
        let (body, size) = (request.body.get(), request.body_size.get());
        Self { headers: request.headers, body, size, path: &request.path }
    }
}

impl CostModel {
    /// Returns a cost model of `units` for every request, however it ends.
    pub fn fixed(units: u32) -> Self {
        Self { cost: Cost::Fixed(units), counts: None, refunds: Refunds::default() }
    }

    /// Returns the request header that states the cost, if one does.
    pub const fn request_header(&self) -> Option<&HeaderName> {
        match &self.cost {
            Cost::Header(told) => Some(&told.name),
            Cost::Fixed(_)
            | Cost::RequestField(_)
            | Cost::RequestBytes(_)
            | Cost::ResponseHeader(_)
            | Cost::ResponseBytes(_)
            | Cost::ResponseFields(_) => None,
        }
    }

    /// Returns the fields of the request's body on which the cost depends.
    pub fn request_fields(&self) -> FieldMask {
        match &self.cost {
            Cost::RequestField(stated) => FieldMask::of(stated.field.index),
            Cost::ResponseFields(stated) => stated.request_fields().collect(),
            Cost::Fixed(_)
            | Cost::Header(_)
            | Cost::RequestBytes(_)
            | Cost::ResponseHeader(_)
            | Cost::ResponseBytes(_) => FieldMask::default(),
        }
    }

    /// Returns the numbers in the response's body that state the cost, if they do.
    pub const fn response_fields(&self) -> Option<&ResponseFieldsCost> {
        if let Cost::ResponseFields(stated) = &self.cost { Some(stated) } else { None }
    }

    /// Returns what to reserve for a request.
    pub fn reserve(&self, request: ArrivedRequest<'_>) -> ReservedCost {
        let ArrivedRequest { headers, body, .. } = request;
        let units = match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::Header(told) => {
                told.units_from(headers.get_all(&told.name).into_iter().map(HeaderValue::as_bytes)).max(1)
            }
            Cost::RequestField(stated) => stated.units(body),
            Cost::RequestBytes(measure) => length(headers).map_or(1, |bytes| measure.units(bytes)),
            Cost::ResponseHeader(told) => told.default,
            Cost::ResponseBytes(_) => 1,
            Cost::ResponseFields(stated) => return stated.reserve(request),
        };
        ReservedCost { units, is_guess: false }
    }

    /// Returns the units to reserve for a request without a path, see [`Self::reserve`].
    pub fn units_to_reserve(&self, headers: &HeaderMap, body: RequestFields<'_>, size: Option<u64>) -> u32 {
        self.reserve(ArrivedRequest { headers, body, size, path: "" }).units
    }

    /// Whether the head of a response of the upstream states the cost.
    pub const fn is_stated_by_response(&self) -> bool {
        matches!(self.cost, Cost::ResponseHeader(_))
    }

    /// Returns the charge of a request whose response is not known: the maximum, if there is one.
    pub fn max_stated_charge(&self, is_guess: bool) -> FinalCharge {
        match &self.cost {
            Cost::ResponseHeader(told) => told.max_units.map_or(FinalCharge::AsReserved, FinalCharge::Units),
            Cost::ResponseFields(stated) => stated.charge_of_unknown(is_guess),
            Cost::Fixed(_)
            | Cost::Header(_)
            | Cost::RequestField(_)
            | Cost::RequestBytes(_)
            | Cost::ResponseBytes(_) => FinalCharge::AsReserved,
        }
    }

    /// Returns whether units are charged on arrival, or held until the response decides.
    pub fn charge_timing(&self) -> ChargeTiming {
        match self.cost {
            _ if self.counts.is_some() => ChargeTiming::OnResponse,
            Cost::ResponseHeader(_) | Cost::ResponseFields(_) => ChargeTiming::OnResponse,
            Cost::Fixed(_)
            | Cost::Header(_)
            | Cost::RequestField(_)
            | Cost::RequestBytes(_)
            | Cost::ResponseBytes(_) => ChargeTiming::OnArrival,
        }
    }

    /// Whether the end of a request can change what it is charged.
    pub fn needs_settlement(&self) -> bool {
        let on_arrival = matches!(self.cost, Cost::Fixed(_) | Cost::Header(_) | Cost::RequestField(_));
        !on_arrival || self.counts.is_some() || self.refunds != Refunds::default()
    }

    /// Returns how far a reported cost may put a counter in debt: without bound if the rule has a maximum cost per
    /// request.
    pub fn debt_limit(&self) -> DebtLimit {
        let max_units = match &self.cost {
            Cost::Fixed(units) => Some(*units),
            Cost::Header(told) | Cost::ResponseHeader(told) => told.max_units,
            Cost::RequestField(stated) => stated.max_units,
            Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => measure.max_units,
            Cost::ResponseFields(stated) => stated.max_units,
        };
        if max_units.is_some() { DebtLimit::Unlimited } else { DebtLimit::OneBurst }
    }

    /// Whether the status of a gRPC call decides what the request is charged.
    pub fn reads_calls(&self) -> bool {
        self.counts_calls() || !self.refunds.calls.is_empty()
    }

    /// Whether the status of a gRPC call decides whether the request counts.
    pub fn counts_calls(&self) -> bool {
        self.counts.as_ref().is_some_and(|counts| counts.calls.is_some())
    }

    /// Returns what a request with this ending is charged, apart from costs by body size. While the status of a `call`
    /// is awaited, it is assumed to change nothing. `is_guess`: what was reserved is, see [`ReservedCost`].
    pub fn final_charge(&self, end: &RequestEnd<'_>, call: CallStatus, is_guess: bool) -> FinalCharge {
        let (status, headers) = match *end {
            RequestEnd::Abandoned => return FinalCharge::AsReserved,
            RequestEnd::Unanswered => return self.max_stated_charge(is_guess),
            RequestEnd::Rejected => return FinalCharge::Nothing,
            RequestEnd::Failed { failure, .. } if self.refunds.cover(failure) => return FinalCharge::Nothing,
            RequestEnd::Responded { status, headers } => (status, headers),
            // A local reply has no headers of the upstream.
            RequestEnd::Failed { status, .. } => (status, &Headers::default()),
        };
        let counts = self.counts.as_ref().is_none_or(|counts| counts.matches(status, headers));
        if !counts || self.refunds.statuses.contain(status) {
            return FinalCharge::Nothing;
        }
        let due = match (&self.cost, end) {
            (Cost::ResponseHeader(told), RequestEnd::Responded { headers, .. }) => {
                FinalCharge::Units(told.units_from(headers.get_all(&told.name)))
            }
            _ => FinalCharge::AsReserved,
        };
        match call {
            CallStatus::Awaited => due,
            CallStatus::Known(status) => self.final_charge_by_call(Some(status), due),
            CallStatus::None => self.final_charge_by_call(None, due),
        }
    }

    /// Applies the status of the call, or its absence, to `due`.
    pub fn final_charge_by_call(&self, call: Option<GrpcStatus>, due: FinalCharge) -> FinalCharge {
        let counts = self.counts.as_ref().is_none_or(|counts| counts.matches_call(call));
        let is_refunded = call.is_some_and(|call| self.refunds.calls.contain(call));
        if counts && !is_refunded { due } else { FinalCharge::Nothing }
    }

    /// Returns the units for this number of body bytes, if the cost is based on body size.
    pub fn units_for_bytes(&self, received: u64, sent: u64) -> Option<u32> {
        match &self.cost {
            Cost::RequestBytes(measure) => Some(measure.units(received)),
            Cost::ResponseBytes(measure) => Some(measure.units(sent)),
            Cost::Fixed(_)
            | Cost::Header(_)
            | Cost::RequestField(_)
            | Cost::ResponseHeader(_)
            | Cost::ResponseFields(_) => None,
        }
    }

    /// Whether these are the numbers of the whole response, see [`ResponseFieldsCost::is_complete`].
    pub fn is_complete(&self, latest: &LatestValues) -> bool {
        self.response_fields().is_none_or(|stated| stated.is_complete(latest))
    }

    /// Whether a stream with these values does not state its cost because it was not asked to.
    pub fn may_be_unasked(&self, latest: &LatestValues) -> bool {
        let is_asked = self.response_fields().is_some_and(|stated| stated.injects_usage.is_some());
        is_asked
            && latest.extent() != Extent::Document
            && self.charge_by_fields(latest) == FinalCharge::AsReserved
    }

    /// Returns what a response with these numbers is charged, if they state its cost.
    pub fn charge_by_fields(&self, latest: &LatestValues) -> FinalCharge {
        let units = self.response_fields().and_then(|stated| stated.units(latest));
        units.map_or(FinalCharge::AsReserved, FinalCharge::Units)
    }
}

impl Statuses {
    /// Whether `status` is in the set.
    pub fn contain(&self, status: StatusCode) -> bool {
        self.0.iter().any(|range| range.contains(&status.as_u16()))
    }
}

impl FromIterator<RangeInclusive<u16>> for Statuses {
    fn from_iter<I: IntoIterator<Item = RangeInclusive<u16>>>(ranges: I) -> Self {
        Self(ranges.into_iter().collect())
    }
}

impl Refunds {
    const fn cover(&self, failure: UpstreamFailure) -> bool {
        match failure {
            UpstreamFailure::Connect => self.connect_failure,
            UpstreamFailure::Reset => self.reset,
            UpstreamFailure::Timeout => self.timeout,
            UpstreamFailure::Malformed => false,
        }
    }
}

#[cfg(test)]
mod tests;
