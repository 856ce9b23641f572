//! What a rule counts apart, and how that becomes one counter.
//!
//! The parts of a key are encoded with their lengths before they are hashed, so no two different keys have
//! the same encoding: `("a_b", "c")` and `("a", "b_c")` never meet. An IPv4 address alone needs no encoding.

use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::attribute::{Attribute, Incomplete};
use super::pattern::Route;
use crate::identify::Attributes;
use crate::identify::descriptor::Entries;
use crate::limiter::key::{KeyHash, KeyHasher};

/// The parts of a rule's key, in order; none means one counter for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyTemplate(pub Box<[Attribute]>);

/// The encoding of all incomplete keys; no complete key has it.
pub(super) const SHARED: &[u8] = &[u8::MAX];

/// The counter that all requests with an incomplete key share.
pub fn shared(hasher: KeyHasher) -> KeyHash {
    hasher.hash(SHARED)
}

pub(super) type Encoded = SmallVec<[u8; 128]>;

impl KeyTemplate {
    /// The counter of a request that matched by `route`.
    ///
    /// # Errors
    /// [`Incomplete`] if the request lacks a part, or has several of one.
    pub fn hash(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        hasher: KeyHasher,
    ) -> Result<KeyHash, Incomplete> {
        // Most rules, and most addresses.
        if let [part] = &*self.0
            && let Some(IpAddr::V4(v4)) = part.address(request)
        {
            return Ok(hasher.hash_u32(v4.to_bits()));
        }
        Ok(hasher.hash(&self.encoded(request, route)?))
    }

    /// The encoding of the key of a request that matched by `route`; the same in every process.
    ///
    /// # Errors
    /// [`Incomplete`] as of [`Self::hash`].
    pub(super) fn encoded(&self, request: &Attributes<'_>, route: Route<'_>) -> Result<Encoded, Incomplete> {
        let mut encoded = Encoded::new();
        for part in &self.0 {
            encode(part, request, route, &mut encoded)?;
        }
        Ok(encoded)
    }
}

impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (index, part) in self.0.iter().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(f, "{separator}{part}")?;
        }
        f.write_str("]")
    }
}

fn encode(
    part: &Attribute,
    request: &Attributes<'_>,
    route: Route<'_>,
    out: &mut Encoded,
) -> Result<(), Incomplete> {
    match part.source().descriptor() {
        Some(key) => push_values(out, request.descriptor.ok_or(Incomplete::Missing)?, key),
        None => part.read(request, route, |value| push(out, value)),
    }
}

/// A part's length, then the part.
fn push(out: &mut Encoded, part: &[u8]) {
    // Nothing in a request head reaches four gigabytes.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX - 1);
    out.reserve(size_of::<u32>() + part.len());
    // One by one: cheaper than a copy of unknown length for four bytes.
    length.to_be_bytes().into_iter().for_each(|byte| out.push(byte));
    out.extend_from_slice(part);
}

/// As many values as there are, so that no list of them looks like another or like other parts.
fn push_values(out: &mut Encoded, descriptor: Entries<'_>, key: &str) -> Result<(), Incomplete> {
    let count = descriptor.values(key).count();
    if count == 0 {
        return Err(Incomplete::Missing);
    }
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    descriptor.values(key).for_each(|value| push(out, value.as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests;
