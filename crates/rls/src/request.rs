//! Requests: `RateLimitRequest` as plain data.

use super::response::RlsError;
use super::unit::RlsUnit;

/// Maximum size of a message in bytes. Envoy's request headers have up to 60 KiB by default, and each descriptor may
/// repeat one of them. Most Envoys fail open when the service returns an error, so a long header must not cause one.
pub const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Maximum descriptors of a request. Envoy sends one for each `rate_limits` of a route and its virtual host: a handful.
/// All counters of a request are locked together, so this also bounds how long other requests wait for the locks.
pub const MAX_DESCRIPTORS: usize = 256;

/// Maximum entries of a descriptor. Envoy sends one for each action of a `rate_limits`: fewer than ten.
pub const MAX_ENTRIES: usize = 64;

/// A request: whether a client's request is within the limits of all of these descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsRequest {
    /// Domain of the limits.
    pub domain: String,
    /// Descriptors; each has its own counters.
    pub descriptors: Vec<RlsDescriptor>,
    /// Hits for each descriptor without its own number; 0 means unset, which is 1.
    pub hits_addend: u32,
}

/// An ordered list of entries, which is looked up and counted as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RlsDescriptor {
    /// Entries; if empty, no limit applies.
    pub entries: Vec<RlsEntry>,
    /// A limit that comes with the request and replaces the configured one.
    pub limit: Option<LimitOverride>,
    /// Number of hits; 0 checks without counting.
    pub hits_addend: Option<u64>,
    /// Whether the hits are refunded.
    pub is_negative_hits: bool,
}

/// One entry of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RlsEntry {
    /// Key; not empty, by convention.
    pub key: String,
    /// Value; may be empty.
    pub value: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// Unit of time; `None` if the request has UNKNOWN or an invalid unit.
    pub unit: Option<RlsUnit>,
}

impl RlsRequest {
    /// Checks the maximum numbers of descriptors and entries.
    pub(super) fn check_size(&self) -> Result<(), RlsError> {
        if self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(RlsError::TooManyDescriptors(self.descriptors.len()));
        }
        match self.descriptors.iter().position(|descriptor| descriptor.entries.len() > MAX_ENTRIES) {
            Some(index) => Err(RlsError::TooManyEntries(index, self.descriptors[index].entries.len())),
            None => Ok(()),
        }
    }

    pub(super) fn hits(&self, descriptor: &RlsDescriptor) -> HitsAddend {
        let count = descriptor.hits_addend.unwrap_or_else(|| self.hits_addend.max(1).into());
        HitsAddend { count, is_refund: descriptor.is_negative_hits }
    }
}

/// Hits to count or to refund.
#[derive(Clone, Copy, Debug)]
pub(super) struct HitsAddend {
    count: u64,
    is_refund: bool,
}

impl HitsAddend {
    /// Returns the amount to add to a counter.
    pub(super) fn signed_amount(self) -> i64 {
        let amount = i64::try_from(self.count).unwrap_or(i64::MAX);
        if self.is_refund { -amount } else { amount }
    }

    /// Returns the cost of a check, which cannot be negative.
    pub(super) fn cost(self) -> u32 {
        u32::try_from(self.counted_hits()).unwrap_or(u32::MAX)
    }

    pub(super) const fn is_refund(self) -> bool {
        self.is_refund
    }

    /// Returns the hits for statistics, which never decrease.
    pub(super) const fn counted_hits(self) -> u64 {
        if self.is_refund { 0 } else { self.count }
    }
}
