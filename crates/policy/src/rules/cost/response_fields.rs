//! Costs that fields of a response's body state, such as the tokens that a language model has used.

use std::fmt;
use std::num::NonZeroU64;

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::FinalCharge;
use super::measures::{length, number};
use crate::identify::body::{BodyField, RequestFields};
use weir_bodies::fields::FieldIndex;
use weir_bodies::response::LatestValues;

/// Number by which weights are multiplied.
pub const WEIGHT_SCALE: i64 = 1000;

/// A cost that is the weighted sum of numbers in the body of the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseFieldsCost {
    /// The numbers. Those that are absent count as zero, unless all are absent.
    pub terms: Box<[WeightedFields]>,
    /// What is reserved until they are known.
    pub estimate: CostEstimate,
    /// Maximum cost.
    pub max_units: Option<u32>,
    /// Fields that tell whether the upstream is to be asked to state the numbers in a stream of OpenAI's format.
    pub injects_usage: Option<UsageOptionFields>,
}

/// A number and its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedFields {
    /// The fields that may state the number. The last one in a stream counts.
    pub fields: Box<[BodyField]>,
    /// Units per unit of the number, times [`WEIGHT_SCALE`].
    pub weight: i64,
}

/// What a request is expected to cost at most, by its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    /// Fields of the request of which the highest number counts.
    pub stated: Box<[BodyField]>,
    /// The number if all of them are absent.
    pub default: u32,
    /// Field with a number by which that of `stated` is multiplied.
    pub repetitions: Option<BodyField>,
    /// Bytes of the request's body for which one unit is added.
    pub bytes_per_unit: Option<NonZeroU64>,
}

/// Fields of a request that ask for a stream, and for the numbers in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOptionFields(pub [BodyField; 2]);

impl ResponseFieldsCost {
    /// Returns the fields of the request that are read.
    pub fn request_fields(&self) -> impl Iterator<Item = FieldIndex> {
        let CostEstimate { stated, repetitions, .. } = &self.estimate;
        let options = self.injects_usage.iter().flat_map(|options| &options.0);
        stated.iter().chain(repetitions).chain(options).map(|field| field.index)
    }

    /// Returns the units that a response with these numbers costs; `None` if it has none of them.
    pub fn units(&self, latest: &LatestValues) -> Option<u32> {
        let values = self.terms.iter().filter_map(|term| {
            let value = latest.last_of(term.fields.iter().map(|field| field.index))?;
            let units = number(value.as_bytes()).unwrap_or(u32::MAX);
            Some(i64::from(units).saturating_mul(term.weight))
        });
        let sum = values.reduce(i64::saturating_add)?;
        let units = u32::try_from(sum.max(0).unsigned_abs().div_ceil(WEIGHT_SCALE.unsigned_abs()));
        Some(self.bounded(units.unwrap_or(u32::MAX)))
    }

    /// Returns the units to reserve for a request.
    pub(super) fn units_to_reserve(
        &self,
        headers: &HeaderMap,
        body: RequestFields<'_>,
        size: Option<u64>,
    ) -> u32 {
        let CostEstimate { stated, default, repetitions, bytes_per_unit } = &self.estimate;
        let number_of = |field: &BodyField| {
            let text = body.field(field.index).ok().flatten()?;
            Some(number(text.as_bytes()).unwrap_or(u32::MAX))
        };
        let stated =
            stated.iter().filter_map(number_of).filter(|number| *number > 0).max().unwrap_or(*default);
        let times = repetitions.as_ref().and_then(number_of).unwrap_or(1).max(1);
        let by_bytes = match bytes_per_unit {
            None => 0,
            Some(unit) => match size.or_else(|| length_of_content(headers)) {
                Some(bytes) => u32::try_from(bytes.div_ceil(unit.get())).unwrap_or(u32::MAX),
                // An upload of unknown length must not reserve less than one that states its length.
                None => self.max_units.unwrap_or(0),
            },
        };
        self.bounded(stated.saturating_mul(times).saturating_add(by_bytes)).max(1)
    }

    /// Whether the estimate is the default, because the request does not say what it costs at most.
    pub(super) fn is_guess(&self, body: RequestFields<'_>) -> bool {
        let is_stated = |field: &BodyField| matches!(body.field(field.index), Ok(Some(_)));
        !self.estimate.stated.iter().any(is_stated)
    }

    /// Returns the charge of a request whose client did not wait for the numbers. A guess says nothing about the cost.
    pub(super) fn charge_of_unknown(&self, is_guess: bool) -> FinalCharge {
        let max_units = self.max_units.filter(|_| is_guess);
        max_units.map_or(FinalCharge::AsReserved, FinalCharge::Units)
    }

    fn bounded(&self, units: u32) -> u32 {
        units.min(self.max_units.unwrap_or(u32::MAX))
    }
}

/// Returns the length of the content of a request that is not compressed, if it is stated.
fn length_of_content(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(CONTENT_ENCODING) { None } else { length(headers) }
}

impl CostEstimate {
    /// Returns an estimate of the same units for every request.
    pub fn fixed(units: u32) -> Self {
        Self { stated: Box::default(), default: units, repetitions: None, bytes_per_unit: None }
    }

    /// Whether it is the same for every request.
    pub fn is_fixed(&self) -> bool {
        self.stated.is_empty() && self.repetitions.is_none() && self.bytes_per_unit.is_none()
    }
}

impl fmt::Display for ResponseFieldsCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("response_json")?;
        for (position, term) in self.terms.iter().enumerate() {
            f.write_str(if position == 0 { " " } else { " + " })?;
            if term.weight != WEIGHT_SCALE {
                write!(f, "{} × ", term.weight as f64 / WEIGHT_SCALE as f64)?;
            }
            for (position, field) in term.fields.iter().enumerate() {
                write!(f, "{}{}", if position == 0 { "" } else { "|" }, field.field)?;
            }
        }
        Ok(())
    }
}
