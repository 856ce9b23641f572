//! Rule keys: what a rule counts separately, and how a key becomes a counter.
//!
//! The parts of a key are encoded with their lengths and then hashed, so different keys have different encodings:
//! `("a_b", "c")` and `("a", "b_c")` never collide. A lone IPv4 address is hashed directly.

use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;

use super::attribute::{Attribute, IncompleteKey};
use super::pattern::Route;
use crate::identify::Attributes;
use crate::identify::descriptor::Entries;
use weir_limiter::key::{KeyHash, KeyHasher};

/// Parts of a rule's key, in order. Without parts, all requests share one counter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyTemplate(pub Box<[Attribute]>);

/// Encoding of all incomplete keys. No complete key has it.
pub(super) const INCOMPLETE_KEY: &[u8] = &[u8::MAX];

/// Returns the key that all requests with an incomplete key share.
pub fn incomplete_key(hasher: KeyHasher) -> KeyHash {
    hasher.hash(INCOMPLETE_KEY)
}

pub(super) type Encoded = SmallVec<[u8; 128]>;

impl KeyTemplate {
    /// Returns the key of a request that matched by `route`.
    ///
    /// # Errors
    /// [`IncompleteKey`] if the request lacks a part, or has several values for one.
    pub fn hash(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
        hasher: KeyHasher,
    ) -> Result<KeyHash, IncompleteKey> {
        // Fast path for a lone IPv4 address, the most common key.
        if let [part] = &*self.0
            && let Some(IpAddr::V4(v4)) = part.address(request)
        {
            return Ok(hasher.hash_u32(v4.to_bits()));
        }
        Ok(hasher.hash(&self.encoded(request, route)?))
    }

    /// Returns the encoding of the key of a request that matched by `route`. It is the same in every process.
    ///
    /// # Errors
    /// [`IncompleteKey`], as for [`Self::hash`].
    pub(super) fn encoded(
        &self,
        request: &Attributes<'_>,
        route: Route<'_>,
    ) -> Result<Encoded, IncompleteKey> {
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
) -> Result<(), IncompleteKey> {
    match part.source().descriptor() {
        Some(key) => push_values(out, request.descriptor.ok_or(IncompleteKey::Missing)?, key),
        None => part.read(request, route, |value| push(out, value)),
    }
}

/// Appends a part that has one value.
pub(super) fn push_one(part: &Attribute, value: &[u8], out: &mut Encoded) {
    if part.source().descriptor().is_some() {
        out.extend_from_slice(&1_u32.to_be_bytes());
    }
    push(out, value);
}

/// Appends a part, preceded by its length.
fn push(out: &mut Encoded, part: &[u8]) {
    // Nothing in a request's header section is 4 GiB long.
    let length = u32::try_from(part.len()).unwrap_or(u32::MAX - 1);
    out.reserve(size_of::<u32>() + part.len());
    // For four bytes, single pushes are cheaper than a copy of unknown length.
    length.to_be_bytes().into_iter().for_each(|byte| out.push(byte));
    out.extend_from_slice(part);
}

/// Appends the number of values, then each value. The number keeps lists of different lengths from colliding.
fn push_values(out: &mut Encoded, descriptor: Entries<'_>, key: &str) -> Result<(), IncompleteKey> {
    let count = descriptor.values(key).count();
    if count == 0 {
        return Err(IncompleteKey::Missing);
    }
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
    descriptor.values(key).for_each(|value| push(out, value.as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests;
