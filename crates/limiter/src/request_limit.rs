//! Limits of requests: the limit of one key, which a request states, in place of that of its rule.
//!
//! It stays in force for the key until another request of the key states another one, or none. Units used stay used,
//! as with a reload that changes the limit.

use std::num::NonZeroU32;

use super::Limiter;
use super::algorithm::Refill;
use super::quota::{Limit, Quota};

/// A limit and a burst for the key of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestLimit {
    /// Units per period.
    pub limit: Limit,
    /// Maximum number of units admitted at once. Without effect for algorithms that have no burst.
    pub burst: NonZeroU32,
}

impl Quota {
    /// Returns this quota with the limit of a request; `None` if it cannot be counted by it: the result is not a valid
    /// quota, the windows would have another length, or the store counts the limit.
    pub fn with_request_limit(&self, requested: RequestLimit) -> Option<Self> {
        let RequestLimit { limit, burst } = requested;
        match self.algorithm().refill() {
            Refill::Continuous => self.with_requests(limit, burst),
            Refill::Window | Refill::Sliding if limit.period == self.window() => {
                self.with_requests(limit, limit.count)
            }
            Refill::Window | Refill::Sliding | Refill::Batches | Refill::None => None,
        }
    }
}

impl Limiter {
    /// Number of requests whose limit did not apply since the start, because a shard had no room for another one. The
    /// limit of the rule applied instead.
    pub fn request_limits_dropped(&self) -> u64 {
        self.table.request_limits_dropped()
    }
}

#[cfg(test)]
mod tests;
