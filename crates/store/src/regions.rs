//! Limits that several regions share: what a query says of them, and the errands to the global store.
//!
//! Each region has a store of its own, in which it counts a limit with its stock and its allotment. Allotments move through
//! the global store, on errands that instances make in the background: no request waits for another region.
//! `docs/design/025-regions.md` has the protocol.

pub(crate) mod calls;
pub mod errands;
pub(crate) mod link;

use std::hash::Hasher as _;
use std::num::NonZeroU32;
use std::time::Duration;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use weir_limiter::leases::{LeaseRequest, StoreCounterKind};

/// The number that stands for all of what moves between regions.
const WHOLE: u32 = 1_048_576;
/// Divisor of the burst of a limit of which all regions together have the stock. Limits that count in windows have a smaller
/// one, because what is in the stock of a region without requests is not used.
const STOCK_OF_BURST: u32 = 4;
const STOCK_OF_WINDOW: u32 = 16;
/// Limits of the time over which the demand of a region is an average: an eighth of the time that the limit takes to be whole.
const MIN_DEMAND_TIME: Duration = Duration::from_secs(1);
const MAX_DEMAND_TIME: Duration = Duration::from_secs(60);

/// What is known of the regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    /// Name of this region.
    pub name: Box<str>,
    /// Registered regions, as of the last registration.
    pub regions: u32,
    /// Whether the global store does not respond.
    pub is_global_away: bool,
    /// Counters about which this instance reports to the global store.
    pub reported_counters: usize,
}

/// This region, as the scripts of both stores know it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Number that identifies the region: a hash of its name, which a double holds exactly.
    id: u64,
    /// Maximum number of regions.
    count: NonZeroU32,
    /// Time for which the global store holds back the allotment of a region that it does not hear of.
    valid: Duration,
    /// Whether the region counts with its allotment after this time, while it does not reach the global store.
    keeps_allotment: bool,
    /// Whether it does not reach the global store.
    is_cut_off: bool,
}

/// A limit that regions share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionalLimit {
    /// Units of its burst or of its window.
    pub units: u32,
    /// Time after which nothing matters that was spent.
    pub settle_time: Duration,
    /// Whether it has a burst that fills at a rate.
    pub has_rate: bool,
}

impl RegionalLimit {
    /// Returns the limit of a query; `None` for concurrency limits.
    pub fn of(request: &LeaseRequest) -> Option<Self> {
        let has_rate =
            matches!(request.kind, StoreCounterKind::Bucket { .. } | StoreCounterKind::Refill { .. });
        let settle_time = request.kind.settle_time()?;
        Some(Self { units: request.kind.capacity(), settle_time, has_rate })
    }

    /// Returns the units that each region always has.
    fn stock(&self, regions: NonZeroU32) -> u32 {
        if self.units < regions.get().saturating_mul(2) {
            return 0;
        }
        let divisor = if self.has_rate { STOCK_OF_BURST } else { STOCK_OF_WINDOW };
        (self.units / divisor / regions).max(1)
    }
}

impl Region {
    /// Creates the region `name`, one of at most `count`. The global store holds back its allotment for the time `valid`.
    pub fn new(name: &str, count: NonZeroU32, valid: Duration, keeps_allotment: bool) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(name.as_bytes());
        // A double holds 53 bits.
        let id = hasher.finish128().h1 >> 16;
        Self { id, count, valid, keeps_allotment, is_cut_off: false }
    }

    /// Maximum number of regions.
    pub fn count(&self) -> NonZeroU32 {
        self.count
    }

    /// Encodes what a request about a limit says of regions, before its kind. `action` is that of the script.
    pub fn head(&self, action: char, limit: &RegionalLimit) -> String {
        let Self { count, valid, keeps_allotment, is_cut_off, .. } = self;
        let over = (limit.settle_time / 8).clamp(MIN_DEMAND_TIME, MAX_DEMAND_TIME);
        let [valid, settle, over] = [*valid, limit.settle_time, over].map(|time| time.as_micros());
        let (stock, keeps) = (limit.stock(*count), u8::from(*keeps_allotment && *is_cut_off));
        format!("@{action} {stock} {count} {valid} {settle} {over} {keeps}")
    }

    /// Encodes the report of an errand to the global store. `begun` is what the regional store has replied, and
    /// `is_complete` whether all regions have been connected for long.
    pub fn report(&self, limit: &RegionalLimit, begun: &BegunErrand, is_complete: bool) -> String {
        let movable = limit.units - limit.stock(self.count) * self.count.get();
        let unit = (WHOLE / movable.max(1)).max(1);
        let (valid, settle) = (self.valid.as_micros(), limit.settle_time.as_micros());
        let BegunErrand { parts, number, demand, in_use, window, lacked } = *begun;
        let least = (lacked - i64::from(limit.stock(self.count))).max(0) as u64 * u64::from(WHOLE);
        let least = least.div_ceil(movable.max(1).into()).min(WHOLE.into());
        let (id, complete) = (self.id, u8::from(is_complete));
        format!("{id} {parts} {number} {demand} {in_use} {window} {valid} {settle} {unit} {complete} {least}")
    }
}

/// An errand that the regional store has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BegunErrand {
    parts: i64,
    /// Number of the errand.
    pub number: i64,
    demand: i64,
    in_use: i64,
    window: i64,
    /// Least units that were needed and not left; 0 if all were.
    lacked: i64,
}

/// What the global store has allotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Allotted {
    parts: i64,
    target: i64,
    /// Microseconds after which the region is to report again; zero if it need not.
    again: i64,
    window: i64,
}

impl BegunErrand {
    /// Decodes the regional store's reply; `None` if no errand is due yet.
    pub fn decode(reply: &[i64]) -> Option<Self> {
        let &[1, parts, number, demand, in_use, window, lacked] = reply else { return None };
        Some(Self { parts, number, demand, in_use, window, lacked })
    }
}

impl Allotted {
    /// Decodes the global store's reply; `None` if the report came too late.
    pub fn decode(reply: &[i64]) -> Option<Self> {
        let &[parts, target, again, window] = reply else { return None };
        (parts >= 0).then_some(Self { parts, target, again, window })
    }

    /// Encodes the deposit of the errand with this number, after the head.
    pub fn deposit(&self, number: i64) -> String {
        let Self { parts, target, again, window } = self;
        format!(" {number} {parts} {target} {again} {window}")
    }

    /// Time after which the region is to report again; `None` if it need not.
    pub fn report_again_after(&self) -> Option<Duration> {
        u64::try_from(self.again).ok().filter(|micros| *micros > 0).map(Duration::from_micros)
    }
}
