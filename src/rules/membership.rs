//! Which plan a client is on: what it shows, usually an API key, is looked up among the members.
//!
//! Members are kept as hashes under a secret of their own: a million take 18 MB, and none of them can be
//! read back from memory. Who is no member is on the default plan, if there is one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::attribute::{Attribute, Incomplete};
use super::pattern::Route;
use crate::identify::lookup::Ambiguity;
use crate::identify::{Attributes, cookie};
use crate::limiter::key::{KeyHash, KeyHasher};

/// So many plans at the most.
pub const MOST_PLANS: usize = 1000;

/// Stands for the default plan, beyond the numbers of all others.
const DEFAULT: u16 = u16::MAX;

/// The plans of one configuration.
#[derive(Debug)]
pub struct Plans {
    /// What is looked up: a part whose value is a text.
    pub of: Attribute,
    /// Who is on which plan.
    pub members: Arc<Members>,
    /// The plan of everybody else.
    pub default: Option<Box<str>>,
}

/// Members and their plans.
pub struct Members {
    hasher: KeyHasher,
    /// Ascending.
    hashes: Box<[KeyHash]>,
    /// The plan of each, beside `hashes`, by its place in `names`.
    plans: Box<[u16]>,
    names: Box<[Box<str>]>,
}

/// Members as they come, to be made [`Members`].
#[derive(Debug)]
pub struct MembersBuilder {
    hasher: KeyHasher,
    /// Hash, place in the order of coming, plan.
    members: Vec<(KeyHash, u32, u16)>,
    names: Vec<Box<str>>,
}

/// There are more than [`MOST_PLANS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than 1000 plans")]
pub struct TooManyPlans;

/// A member that came twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuplicateMember {
    /// When it came again, from 0.
    pub again: usize,
    /// When it came first.
    pub first: usize,
}

impl Plans {
    /// The name of the plan the client is on. Found out once for each request.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request shows several of what clients are known by.
    pub fn of(&self, request: &Attributes<'_>) -> Result<Option<&str>, Ambiguity> {
        let number = (*request.plan.get_or_init(|| self.number(request)))?;
        Ok(number.and_then(|number| match number {
            DEFAULT => self.default.as_deref(),
            number => self.members.names.get(usize::from(number)).map(|name| &**name),
        }))
    }

    fn number(&self, request: &Attributes<'_>) -> Result<Option<u16>, Ambiguity> {
        let default = self.default.as_ref().map(|_| DEFAULT);
        // Members are written as the service has them.
        if let Attribute::Cookie(name) = &self.of {
            let value = cookie::decoded(request.headers, name)?;
            return Ok(value.and_then(|value| self.members.number(&value)).or(default));
        }
        match self.of.read(request, Route(""), |value| self.members.number(value)) {
            Ok(number) => Ok(number.or(default)),
            Err(Incomplete::Missing) => Ok(default),
            Err(Incomplete::Ambiguous(ambiguity)) => Err(ambiguity),
        }
    }
}

/// A configuration has its plans once, and no two are compared by what is in them.
impl PartialEq for Plans {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Plans {}

impl Hash for Plans {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

impl Members {
    /// Every plan that has members, with how many it has, in the order in which the plans came.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut counts = vec![0_usize; self.names.len()];
        for plan in &self.plans {
            counts[usize::from(*plan)] += 1;
        }
        self.names.iter().map(|name| &**name).zip(counts)
    }

    fn number(&self, member: &[u8]) -> Option<u16> {
        let at = self.hashes.binary_search(&self.hasher.hash(member)).ok()?;
        self.plans.get(at).copied()
    }
}

/// Nothing of the secret, and nothing of a million members.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").field("len", &self.hashes.len()).finish_non_exhaustive()
    }
}

impl MembersBuilder {
    /// An empty builder; `secret` must come from a source of randomness.
    pub const fn new(secret: [u64; 2]) -> Self {
        Self { hasher: KeyHasher::new(secret), members: Vec::new(), names: Vec::new() }
    }

    /// Adds a member.
    ///
    /// # Errors
    /// [`TooManyPlans`] if its plan is one too many.
    pub fn add(&mut self, member: &str, plan: &str) -> Result<(), TooManyPlans> {
        // A builder has few plans, and members of one plan often stand together.
        let known = self.names.iter().rposition(|name| **name == *plan);
        let number = match known {
            Some(number) => number,
            None if self.names.len() >= MOST_PLANS => return Err(TooManyPlans),
            None => {
                self.names.push(plan.into());
                self.names.len() - 1
            }
        };
        let order = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let number = u16::try_from(number).unwrap_or(DEFAULT - 1);
        self.members.push((self.hasher.hash(member.as_bytes()), order, number));
        Ok(())
    }

    /// The members, if each came once.
    ///
    /// # Errors
    /// All that came again, in order.
    pub fn close(mut self) -> Result<Members, Vec<DuplicateMember>> {
        self.members.sort_unstable();
        let pairs = self.members.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        let mut duplicates: Vec<DuplicateMember> = pairs
            .map(|pair| DuplicateMember { first: pair[0].1 as usize, again: pair[1].1 as usize })
            .collect();
        if !duplicates.is_empty() {
            duplicates.sort_unstable();
            return Err(duplicates);
        }
        Ok(Members {
            hasher: self.hasher,
            hashes: self.members.iter().map(|(hash, ..)| *hash).collect(),
            plans: self.members.iter().map(|(.., plan)| *plan).collect(),
            names: self.names.into(),
        })
    }
}

#[cfg(test)]
mod tests;
