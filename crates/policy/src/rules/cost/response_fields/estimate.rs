//! What is reserved for a request until its response states the cost.

use std::num::NonZeroU64;

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::super::ArrivedRequest;
use super::super::measures::{length, number};
use super::ResponseFieldsCost;
use crate::identify::body::{BodyField, RequestFields};

/// What a request is expected to cost at most, by its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    /// What requests state, by endpoint. Of several to which a request may be, the highest number counts.
    pub stated: Box<[StatedMax]>,
    /// The number if it is absent.
    pub default: u32,
    /// Fields of which the highest number multiplies that of `stated`.
    pub repetitions: Box<[BodyField]>,
    /// Number of prompts of a request, by which it is multiplied as well.
    pub prompts: Option<BodyField>,
    /// Bytes of the request's body for which one unit is added.
    pub bytes_per_unit: Option<NonZeroU64>,
}

/// The maximum that requests to an endpoint state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatedMax {
    /// Fields of which the highest number counts.
    pub fields: Box<[BodyField]>,
    /// Which requests are to the endpoint. The field of another endpoint says nothing about the cost.
    pub endpoint: EndpointPattern,
}

/// Requests to an endpoint; all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointPattern {
    /// Fields of which such a request has one.
    pub fields: Box<[BodyField]>,
    /// The last segment of the path is one of these.
    pub last_segments: &'static [&'static str],
}

/// What is reserved for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservedCost {
    pub units: u32,
    /// Whether it is a guess, because the request does not say what it costs at most.
    pub is_guess: bool,
}

impl CostEstimate {
    /// Returns an estimate of the same units for every request.
    pub fn fixed(units: u32) -> Self {
        Self {
            stated: Box::default(),
            default: units,
            repetitions: Box::default(),
            prompts: None,
            bytes_per_unit: None,
        }
    }

    /// Whether it is the same for every request.
    pub fn is_fixed(&self) -> bool {
        self.fields().next().is_none() && self.bytes_per_unit.is_none()
    }

    /// Returns the fields that it depends on.
    pub(super) fn fields(&self) -> impl Iterator<Item = &BodyField> {
        let stated =
            self.stated.iter().flat_map(|stated| stated.fields.iter().chain(&stated.endpoint.fields));
        stated.chain(&self.repetitions).chain(&self.prompts)
    }

    /// Returns the maximum of one response.
    fn max_of_response(&self, request: ArrivedRequest<'_>) -> ReservedCost {
        let highest =
            |stated: &StatedMax| highest_number(&stated.fields, request.body).filter(|max| *max > 0);
        let mut known: Option<ReservedCost> = None;
        for stated in self.stated.iter().filter(|stated| stated.endpoint.matches(request)) {
            let max = highest(stated);
            let units = max.unwrap_or(self.default);
            let other = known.unwrap_or(ReservedCost { units, is_guess: false });
            let is_guess = other.is_guess || max.is_none();
            known = Some(ReservedCost { units: other.units.max(units), is_guess });
        }
        known.unwrap_or_else(|| {
            let stated = self.stated.iter().filter_map(highest).max();
            ReservedCost { units: self.default.max(stated.unwrap_or(0)), is_guess: true }
        })
    }

    /// Returns the number of responses that are generated.
    fn responses(&self, body: RequestFields<'_>) -> u32 {
        let repetitions = highest_number(&self.repetitions, body).unwrap_or(1).max(1);
        let prompts = highest_number(self.prompts.as_slice(), body).unwrap_or(1).max(1);
        repetitions.saturating_mul(prompts)
    }
}

impl EndpointPattern {
    fn matches(&self, ArrivedRequest { body, path, .. }: ArrivedRequest<'_>) -> bool {
        let has = |field: &BodyField| matches!(body.field(field.index), Ok(Some(_)));
        let segment = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        (self.fields.is_empty() || self.fields.iter().any(has))
            && (self.last_segments.is_empty() || self.last_segments.contains(&segment))
    }
}

impl ResponseFieldsCost {
    /// Returns what to reserve for a request.
    pub(in super::super) fn reserve(&self, request: ArrivedRequest<'_>) -> ReservedCost {
        let ReservedCost { units, is_guess } = self.estimate.max_of_response(request);
        let by_bytes = match self.estimate.bytes_per_unit {
            None => 0,
            Some(unit) => match request.size.or_else(|| length_of_content(request.headers)) {
                Some(bytes) => u32::try_from(bytes.div_ceil(unit.get())).unwrap_or(u32::MAX),
                // An upload of unknown length must not reserve less than one that states its length.
                None => self.max_units.unwrap_or(0),
            },
        };
        let units = units.saturating_mul(self.estimate.responses(request.body)).saturating_add(by_bytes);
        ReservedCost { units: self.bounded(units).max(1), is_guess }
    }
}

/// Returns the highest number in these fields. What is not a number counts as the highest one.
fn highest_number(fields: &[BodyField], body: RequestFields<'_>) -> Option<u32> {
    let number_of = |field: &BodyField| {
        let text = body.field(field.index).ok().flatten()?;
        Some(number(text.as_bytes()).unwrap_or(u32::MAX))
    };
    fields.iter().filter_map(number_of).max()
}

/// Returns the length of the content of a request that is not compressed, if it is stated.
fn length_of_content(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(CONTENT_ENCODING) { None } else { length(headers) }
}
