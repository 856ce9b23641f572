//! What is asked: `RateLimitRequest` as plain data.

use super::answer::Undecided;
use super::unit::Unit;

/// Bytes of one message. Envoy's request headers have 60 KiB by default, and each descriptor may repeat one of them. Most
/// Envoys let a request pass that the service rejects, so a client must not get over this by a long header.
pub const MAX_MESSAGE: usize = 1 << 20;

/// Descriptors of one request. Envoy sends one for each `rate_limits` of a route and its virtual host: a handful. All
/// counters of a request are locked at once, so the bound is also one on how long others wait for them.
pub const MAX_DESCRIPTORS: usize = 256;

/// Entries of one descriptor. Envoy sends one for each action of a `rate_limits`: fewer than ten.
pub const MAX_ENTRIES: usize = 64;

/// One question: may this request pass, in this domain, under all of these descriptors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Whose limits.
    pub domain: String,
    /// What is counted; each on its own.
    pub descriptors: Vec<Descriptor>,
    /// Hits of each descriptor that does not say its own; 0 is not set and means 1.
    pub hits_addend: u32,
}

/// An ordered list of entries, which is looked up and counted as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// May be empty: then no limit applies.
    pub entries: Vec<Entry>,
    /// A limit that comes with the request and takes the place of the configured one.
    pub limit: Option<Override>,
    /// Hits; 0 looks without counting.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

/// One step of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Not empty, by convention.
    pub key: String,
    /// May be empty.
    pub value: String,
}

/// A limit in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// `None` where the request says UNKNOWN or something that is no unit.
    pub unit: Option<Unit>,
}

impl Request {
    /// Whether the request is within the bounds of descriptors and entries.
    pub(super) fn check_size(&self) -> Result<(), Undecided> {
        if self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Undecided::TooManyDescriptors(self.descriptors.len()));
        }
        match self.descriptors.iter().position(|descriptor| descriptor.entries.len() > MAX_ENTRIES) {
            Some(index) => Err(Undecided::TooManyEntries(index, self.descriptors[index].entries.len())),
            None => Ok(()),
        }
    }

    /// Hits of one of its descriptors.
    pub(super) fn hits(&self, descriptor: &Descriptor) -> Hits {
        let count = descriptor.hits_addend.unwrap_or_else(|| self.hits_addend.max(1).into());
        Hits { count, are_given_back: descriptor.is_negative_hits }
    }
}

/// How much is counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hits {
    count: u64,
    are_given_back: bool,
}

impl Hits {
    /// To add to a counter.
    pub(super) fn amount(self) -> i64 {
        let amount = i64::try_from(self.count).unwrap_or(i64::MAX);
        if self.are_given_back { -amount } else { amount }
    }

    /// As a check has them, which cannot ask for less than nothing.
    pub(super) fn cost(self) -> u32 {
        u32::try_from(self.counted()).unwrap_or(u32::MAX)
    }

    /// Whether they are given back.
    pub(super) const fn are_given_back(self) -> bool {
        self.are_given_back
    }

    /// As statistics have them, which only ever grow.
    pub(super) const fn counted(self) -> u64 {
        if self.are_given_back { 0 } else { self.count }
    }
}
