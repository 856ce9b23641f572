//! Costs that fields of a response's body state, such as the tokens that a language model has used.

mod estimate;
mod stream_end;

use std::fmt;

pub use self::estimate::{CostEstimate, EndpointPattern, ReservedCost, StatedMax};
pub use self::stream_end::StreamEnd;
use super::FinalCharge;
use super::measures::number;
use crate::identify::body::{BodyField, RequestFields};
use weir_bodies::fields::FieldIndex;
use weir_bodies::response::{Extent, LatestValues};

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
    /// How a stream ends that has stated all of them.
    pub stream_end: StreamEnd,
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

/// Fields of a request that ask for a stream, and for the numbers in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOptionFields(pub [BodyField; 2]);

impl ResponseFieldsCost {
    /// Returns the fields of the request that are read.
    pub fn request_fields(&self) -> impl Iterator<Item = FieldIndex> {
        let options = self.injects_usage.iter().flat_map(|options| &options.0);
        self.estimate.fields().chain(options).map(|field| field.index)
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

    /// Whether these are the numbers of the whole response. An upstream that ends a stream early may have done more work than it has
    /// stated.
    pub fn is_complete(&self, latest: &LatestValues) -> bool {
        match latest.extent() {
            Extent::Document => true,
            Extent::Series => self.stream_end.has_arrived(latest, true),
            Extent::Part => self.stream_end.has_arrived(latest, false),
        }
    }

    /// Whether a request with these fields of its body asks for a stream without its usage, and is to be changed.
    pub fn lacks_usage(&self, body: RequestFields<'_>) -> bool {
        let Some(UsageOptionFields([stream, usage])) = &self.injects_usage else { return false };
        let text = |field: &BodyField| body.field(field.index).ok().flatten();
        // Some services take any other value for true.
        text(stream).is_some_and(|stream| stream != "false") && text(usage) != Some("true")
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
