//! What a request costs, and what its answer changes about that.
//!
//! A tariff is asked twice: on arrival, when only the request's head is known, and when the request has ended one
//! way or another. Every ending has an answer here. What somebody else wrote is read so that nobody gains by
//! writing it oddly: of several values the highest counts, and numbers saturate.

mod counted;

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

pub use self::counted::Counted;
use super::grpc::{CallStatus, GrpcStatus, GrpcStatuses};
use crate::headers::Headers;
use crate::limiter::reservation::{Charging, Debt};

/// A rule's tariff.
#[derive(Clone, Debug, PartialEq)]
pub struct Tariff {
    /// What a request costs that counts.
    pub cost: Cost,
    /// Responses that count; `None` if all do, and those that never came.
    pub counts: Option<Counted>,
    /// Ends for which nothing is charged.
    pub refunds: Refunds,
}

/// Units of a request that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always as many.
    Fixed(u32),
    /// What a header of the request says, at least 1.
    Header(Told),
    /// One for every so many octets of the request's body, at least 1.
    RequestBytes(Measure),
    /// What a header of the answer says; `otherwise` is held until then.
    ResponseHeader(Told),
    /// One for every so many octets of the answer's body, at least 1.
    ResponseBytes(Measure),
}

/// A number in a header, rounded up; what is no number costs the most there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The header.
    pub name: HeaderName,
    /// In place of a header that is absent or empty.
    pub otherwise: u32,
    /// What is told beyond that counts as that.
    pub most: Option<u32>,
}

/// Units by octets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measure {
    /// Octets to a unit.
    pub unit: NonZeroU64,
    /// Units at the most.
    pub most: Option<u32>,
}

/// Statuses of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statuses(Box<[RangeInclusive<u16>]>);

/// Ends for which the whole charge is given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refunds {
    /// Answered so, by the upstream or by us in its place.
    pub statuses: Statuses,
    /// The same of gRPC calls.
    pub calls: GrpcStatuses,
    /// No connection to the upstream.
    pub connect_failure: bool,
    /// The upstream closed the connection instead of answering.
    pub reset: bool,
    /// The upstream took too long.
    pub timeout: bool,
}

/// How a request ended, as far as its tariff may depend on it.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// The upstream has answered; its body may still come.
    Answered {
        /// With this status.
        status: StatusCode,
        /// With these headers.
        headers: &'a Headers,
    },
    /// The upstream failed and we answered in its place.
    Failed {
        /// With this status.
        status: StatusCode,
        /// This way.
        failure: Failure,
    },
    /// Refused after all, by a service that keeps another limit.
    Refused,
    /// The client left, its request broke off, or a timeout expired that it had set: the upstream may have done all of
    /// the work.
    Abandoned,
}

/// How an upstream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No connection.
    Connect,
    /// Closed instead of answering.
    Reset,
    /// Too late.
    Timeout,
    /// What came was no answer.
    Malformed,
}

/// What an ended request is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing: it does not count.
    Nothing,
    /// What was reserved.
    AsReserved,
    /// So many units.
    Units(u32),
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(units) => units.fmt(f),
            Self::Header(told) => write!(f, "header {}", told.name),
            Self::RequestBytes(measure) => write!(f, "request_bytes {}", measure.unit),
            Self::ResponseHeader(told) => write!(f, "response_header {}", told.name),
            Self::ResponseBytes(measure) => write!(f, "response_bytes {}", measure.unit),
        }
    }
}

impl Ending<'_> {
    /// Whether an upstream ends a request like this, a `call` or none, whose deadline has passed. Which error it makes of
    /// that is up to the upstream.
    pub fn may_be_by_deadline(&self, call: CallStatus) -> bool {
        match self {
            Self::Answered { status, .. } => {
                status.is_server_error() || matches!(call, CallStatus::Known(status) if !status.is_ok())
            }
            Self::Failed { failure, .. } => *failure == Failure::Reset,
            Self::Refused | Self::Abandoned => false,
        }
    }
}

impl Tariff {
    /// The same for all requests, whatever becomes of them.
    pub fn fixed(units: u32) -> Self {
        Self { cost: Cost::Fixed(units), counts: None, refunds: Refunds::default() }
    }

    /// Units to reserve for a request with these headers.
    pub fn on_arrival(&self, headers: &HeaderMap) -> u32 {
        match &self.cost {
            Cost::Fixed(units) => *units,
            Cost::Header(told) => {
                told.by(headers.get_all(&told.name).into_iter().map(HeaderValue::as_bytes)).max(1)
            }
            Cost::RequestBytes(measure) => length(headers).map_or(1, |octets| measure.units(octets)),
            Cost::ResponseHeader(told) => told.otherwise,
            Cost::ResponseBytes(_) => 1,
        }
    }

    /// Whether units are charged on arrival or only held until the answer says that they count.
    pub fn charging(&self) -> Charging {
        match self.cost {
            _ if self.counts.is_some() => Charging::OnAnswer,
            Cost::ResponseHeader(_) => Charging::OnAnswer,
            Cost::Fixed(_) | Cost::Header(_) | Cost::RequestBytes(_) | Cost::ResponseBytes(_) => {
                Charging::OnArrival
            }
        }
    }

    /// Whether the end of a request can change what it is charged.
    pub fn settles(&self) -> bool {
        let on_arrival = matches!(self.cost, Cost::Fixed(_) | Cost::Header(_));
        !on_arrival || self.counts.is_some() || self.refunds != Refunds::default()
    }

    /// How far what somebody tells may put a counter in debt: in full where the rule says itself how much one
    /// request can cost.
    pub fn debt(&self) -> Debt {
        let most = match &self.cost {
            Cost::Fixed(units) => Some(*units),
            Cost::Header(told) | Cost::ResponseHeader(told) => told.most,
            Cost::RequestBytes(measure) | Cost::ResponseBytes(measure) => measure.most,
        };
        if most.is_some() { Debt::AsTold } else { Debt::OneBurst }
    }

    /// Whether the status of a gRPC call decides what it is charged.
    pub fn reads_calls(&self) -> bool {
        self.counts_calls() || !self.refunds.calls.is_empty()
    }

    /// Whether the status of a gRPC call decides whether it counts.
    pub fn counts_calls(&self) -> bool {
        self.counts.as_ref().is_some_and(|counts| counts.calls.is_some())
    }

    /// What a request is charged that ended so, its body's octets apart. As long as the status of a `call` is awaited,
    /// what it is charged unless the status says otherwise.
    pub fn due(&self, ending: &Ending<'_>, call: CallStatus) -> Due {
        let (status, headers) = match *ending {
            Ending::Abandoned => return Due::AsReserved,
            Ending::Refused => return Due::Nothing,
            Ending::Failed { failure, .. } if self.refunds.cover(failure) => return Due::Nothing,
            Ending::Answered { status, headers } => (status, headers),
            // What we answer in place of the upstream has no header of its.
            Ending::Failed { status, .. } => (status, &Headers::default()),
        };
        let counts = self.counts.as_ref().is_none_or(|counts| counts.hold(status, headers));
        if !counts || self.refunds.statuses.contain(status) {
            return Due::Nothing;
        }
        let due = match (&self.cost, ending) {
            (Cost::ResponseHeader(told), Ending::Answered { headers, .. }) => {
                Due::Units(told.by(headers.get_all(&told.name)))
            }
            _ => Due::AsReserved,
        };
        match call {
            CallStatus::Awaited => due,
            CallStatus::Known(status) => self.due_by_call(Some(status), due),
            CallStatus::None => self.due_by_call(None, due),
        }
    }

    /// What is charged of `due`, now that the status of the call is known, or that there is none.
    pub fn due_by_call(&self, call: Option<GrpcStatus>, due: Due) -> Due {
        let counts = self.counts.as_ref().is_none_or(|counts| counts.hold_for(call));
        let is_refunded = call.is_some_and(|call| self.refunds.calls.contain(call));
        if counts && !is_refunded { due } else { Due::Nothing }
    }

    /// Units for so many octets of the bodies, where they make the cost.
    pub fn by_octets(&self, received: u64, sent: u64) -> Option<u32> {
        match &self.cost {
            Cost::RequestBytes(measure) => Some(measure.units(received)),
            Cost::ResponseBytes(measure) => Some(measure.units(sent)),
            Cost::Fixed(_) | Cost::Header(_) | Cost::ResponseHeader(_) => None,
        }
    }
}

impl Told {
    /// The highest number among all lines and their items. An item that is no number counts as one without end:
    /// nobody knows what it stands for, and writing it must not be cheaper than the truth.
    fn by<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> u32 {
        let items = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
        // RFC 9110, 5.6.1.2: a recipient ignores empty elements.
        let told = items.filter(|item| !item.is_empty()).map(|item| number(item).unwrap_or(u32::MAX)).max();
        told.unwrap_or(self.otherwise).min(self.most.unwrap_or(u32::MAX))
    }
}

impl Measure {
    fn units(&self, octets: u64) -> u32 {
        let units = u32::try_from(octets.div_ceil(self.unit.get())).unwrap_or(u32::MAX);
        units.min(self.most.unwrap_or(u32::MAX)).max(1)
    }
}

impl Statuses {
    /// Whether `status` is one of them.
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
    const fn cover(&self, failure: Failure) -> bool {
        match failure {
            Failure::Connect => self.connect_failure,
            Failure::Reset => self.reset,
            Failure::Timeout => self.timeout,
            Failure::Malformed => false,
        }
    }
}

/// Digits, perhaps with a fraction, which is rounded up; a number of any length saturates.
fn number(text: &[u8]) -> Option<u32> {
    let mut parts = text.splitn(2, |byte| *byte == b'.');
    let (whole, fraction) = (parts.next()?, parts.next());
    let are_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    if !are_digits(whole) || !fraction.is_none_or(are_digits) {
        return None;
    }
    let add = |number: u32, digit: &u8| number.saturating_mul(10).saturating_add((digit - b'0').into());
    let up = fraction.is_some_and(|fraction| fraction.iter().any(|digit| *digit != b'0'));
    Some(whole.iter().fold(0, add).saturating_add(up.into()))
}

/// The length of a request's body, where its head says so: a request that says nothing has none.
fn length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    headers.get(CONTENT_LENGTH).map(HeaderValue::to_str)?.ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
