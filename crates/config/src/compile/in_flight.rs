//! Concurrency limits: a number, or bounds within which it adapts to the latency of the upstream.

use std::num::NonZeroU32;

use crate::at::At;
use crate::defaults::{MAX_IN_FLIGHT, MIN_IN_FLIGHT};
use crate::diagnostic::ValueError;
use crate::raw;
use weir_limiter::adaptive::AdaptiveRange;

/// Maximum number of requests in flight, and bounds if it adapts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InFlight {
    pub(super) max: Option<NonZeroU32>,
    pub(super) adaptive: Option<AdaptiveRange>,
}

impl From<AdaptiveRange> for InFlight {
    fn from(range: AdaptiveRange) -> Self {
        Self { max: Some(range.max()), adaptive: Some(range) }
    }
}

/// Compiles the `in_flight` of the map at `at`.
pub(super) fn compile(raw: Option<&raw::InFlight>, at: At<'_>) -> InFlight {
    match raw {
        None => InFlight::default(),
        Some(raw::InFlight::Max(max)) => InFlight { max: Some(*max), adaptive: None },
        Some(raw::InFlight::Auto(raw::Auto::Auto)) => AdaptiveRange::default().into(),
        Some(raw::InFlight::Map(raw::InFlightMap { auto })) => {
            let bounds = auto.clone().unwrap_or_default();
            compile_bounds(&bounds, at.key("in_flight").key("auto")).into()
        }
    }
}

/// Compiles the bounds. A default gives way to a bound beyond it.
fn compile_bounds(raw: &raw::InFlightBounds, at: At<'_>) -> AdaptiveRange {
    let max = raw.max.unwrap_or_else(|| MAX_IN_FLIGHT.max(raw.min.unwrap_or(NonZeroU32::MIN)));
    let min = raw.min.unwrap_or_else(|| MIN_IN_FLIGHT.min(max));
    AdaptiveRange::new(min, max).unwrap_or_else(|| {
        let error = ValueError::new(format!("`min` {min} is above `max` {max}"));
        at.key("min").error(error.with_hint(format!("`in_flight: {max}` is a fixed limit")));
        AdaptiveRange::default()
    })
}
