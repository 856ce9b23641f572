//! Membership of clients in plans: looks up an attribute, usually an API key, among the members.
//!
//! Members are stored as hashes under a separate secret: a million of them take 18 MB, and none can be read back from
//! memory. Clients that are not members are on the default plan, if there is one.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::attribute::{Attribute, IncompleteKey};
use super::pattern::Route;
use crate::identify::lookup::Ambiguity;
use crate::identify::{Attributes, cookie};
use weir_limiter::key::{KeyHash, KeyHasher};
use weir_limiter::quota::Limit;

/// Maximum number of plans.
pub const MAX_PLANS: usize = 1000;

/// Number of the default plan, above those of all others.
const DEFAULT: u16 = u16::MAX;

/// The plans of one configuration.
#[derive(Debug)]
pub struct Plans {
    /// Attribute that identifies members; its value is text.
    pub attribute: Attribute,
    /// Members and their plans.
    pub members: Arc<Members>,
    /// Plan of clients that are not members.
    pub default: Option<Box<str>>,
}

/// Members and their plans.
pub struct Members {
    hasher: KeyHasher,
    /// Hashes of the members, ascending.
    hashes: Box<[KeyHash]>,
    /// Plan of each member, parallel to `hashes`: an index into `names`.
    plans: Box<[u16]>,
    names: Box<[Box<str>]>,
    /// Limits of the members that have one of their own, by their hash, ascending.
    limits: Box<[(KeyHash, Limit)]>,
}

/// Collects the members of [`Members`].
#[derive(Debug)]
pub struct MembersBuilder {
    hasher: KeyHasher,
    /// Hash, order of insertion, and plan of each member.
    members: Vec<(KeyHash, u32, u16)>,
    names: Vec<Box<str>>,
    limits: Vec<(KeyHash, Limit)>,
}

/// Error: there are more than [`MAX_PLANS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than 1000 plans")]
pub struct TooManyPlans;

/// A member that was added twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DuplicateMember {
    /// Order of the repeated insertion, from 0.
    pub again: usize,
    /// Order of the first insertion, from 0.
    pub first: usize,
}

impl Plans {
    /// Returns the name of the client's plan. The result is cached in the request.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several values of the attribute.
    pub fn plan_of(&self, request: &Attributes<'_>) -> Result<Option<&str>, Ambiguity> {
        let number = (*request.plan.get_or_init(|| self.number(request)))?;
        Ok(number.and_then(|number| match number {
            DEFAULT => self.default.as_deref(),
            number => self.members.names.get(usize::from(number)).map(|name| &**name),
        }))
    }

    /// Returns the limit of the member that sends the request; `None` if it is no member, or has none of its own.
    ///
    /// # Errors
    /// [`Ambiguity`] if the request has several values of the attribute.
    pub fn limit_of(&self, request: &Attributes<'_>) -> Result<Option<Limit>, Ambiguity> {
        if self.members.limits.is_empty() {
            return Ok(None);
        }
        if let Attribute::Cookie(name) = &self.attribute {
            let value = cookie::decoded(request.headers, name)?;
            return Ok(value.and_then(|value| self.members.limit(&value)));
        }
        match self.attribute.read(request, Route(""), |value| self.members.limit(value)) {
            Ok(limit) => Ok(limit),
            Err(IncompleteKey::Missing) => Ok(None),
            Err(IncompleteKey::Ambiguous(ambiguity)) => Err(ambiguity),
        }
    }

    fn number(&self, request: &Attributes<'_>) -> Result<Option<u16>, Ambiguity> {
        let default = self.default.as_ref().map(|_| DEFAULT);
        // Cookie values are compared decoded, because members are configured that way.
        if let Attribute::Cookie(name) = &self.attribute {
            let value = cookie::decoded(request.headers, name)?;
            return Ok(value.and_then(|value| self.members.number(&value)).or(default));
        }
        match self.attribute.read(request, Route(""), |value| self.members.number(value)) {
            Ok(number) => Ok(number.or(default)),
            Err(IncompleteKey::Missing) => Ok(default),
            Err(IncompleteKey::Ambiguous(ambiguity)) => Err(ambiguity),
        }
    }
}

/// Compares identities: a configuration has its plans once.
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
    /// Returns the name and the number of members of every plan that has any, in order of first insertion.
    pub fn counts(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut counts = vec![0_usize; self.names.len()];
        for plan in &self.plans {
            counts[usize::from(*plan)] += 1;
        }
        self.names.iter().map(|name| &**name).zip(counts)
    }

    fn limit(&self, member: &[u8]) -> Option<Limit> {
        let hash = self.hasher.hash(member);
        let at = self.limits.binary_search_by_key(&hash, |(hash, _)| *hash).ok()?;
        self.limits.get(at).map(|(_, limit)| *limit)
    }

    fn number(&self, member: &[u8]) -> Option<u16> {
        let at = self.hashes.binary_search(&self.hasher.hash(member)).ok()?;
        self.plans.get(at).copied()
    }
}

/// Shows only the number of members, not the secret.
impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members").field("len", &self.hashes.len()).finish_non_exhaustive()
    }
}

impl MembersBuilder {
    /// Creates an empty builder. `secret` must come from a source of randomness.
    pub const fn new(secret: [u64; 2]) -> Self {
        Self { hasher: KeyHasher::new(secret), members: Vec::new(), names: Vec::new(), limits: Vec::new() }
    }

    /// Adds a member, with its own limit if it has one.
    ///
    /// # Errors
    /// [`TooManyPlans`] if the plan is new and there are [`MAX_PLANS`] already.
    pub fn add(&mut self, member: &str, plan: &str, limit: Option<Limit>) -> Result<(), TooManyPlans> {
        // Searched from the end: there are few plans, and members of one plan are often consecutive.
        let known = self.names.iter().rposition(|name| **name == *plan);
        let number = match known {
            Some(number) => number,
            None if self.names.len() >= MAX_PLANS => return Err(TooManyPlans),
            None => {
                self.names.push(plan.into());
                self.names.len() - 1
            }
        };
        let order = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let number = u16::try_from(number).unwrap_or(DEFAULT - 1);
        let hash = self.hasher.hash(member.as_bytes());
        self.members.push((hash, order, number));
        self.limits.extend(limit.map(|limit| (hash, limit)));
        Ok(())
    }

    /// Builds the members, provided that each was added once.
    ///
    /// # Errors
    /// All repeated insertions, in order.
    pub fn close(mut self) -> Result<Members, Vec<DuplicateMember>> {
        self.members.sort_unstable();
        self.limits.sort_unstable_by_key(|(hash, _)| *hash);
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
            limits: self.limits.into(),
        })
    }
}

#[cfg(test)]
mod tests;
