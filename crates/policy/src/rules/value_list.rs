//! Long lists of values, such as API keys.

use std::fmt;

use siphasher::sip128::SipHasher13;

/// A list of values, stored as keyed hashes: 16 bytes each, and none can be read back from memory.
pub struct ValueList {
    secret: [u64; 2],
    /// Hashes, ascending and without duplicates.
    hashes: Box<[u128]>,
}

impl ValueList {
    /// Creates a list of `values`. `secret` must come from a source of randomness.
    pub fn new<'v>(values: impl IntoIterator<Item = &'v [u8]>, secret: [u64; 2]) -> Self {
        let mut hashes: Vec<u128> = values.into_iter().map(|value| hash(value, secret)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self { secret, hashes: hashes.into() }
    }

    pub fn contains(&self, value: &[u8]) -> bool {
        !self.hashes.is_empty() && self.hashes.binary_search(&hash(value, self.secret)).is_ok()
    }

    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }
}

impl fmt::Debug for ValueList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueList").field("len", &self.hashes.len()).finish_non_exhaustive()
    }
}

fn hash(value: &[u8], secret: [u64; 2]) -> u128 {
    SipHasher13::new_with_keys(secret[0], secret[1]).hash(value).as_u128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_list_contains_exactly_its_values() {
        let values: Vec<String> = (0..1000).map(|n| format!("key-{n}")).collect();
        let list = ValueList::new(values.iter().map(String::as_bytes), [1, 2]);
        assert!(values.iter().all(|value| list.contains(value.as_bytes())));
        for other in ["", "key-", "key-1000", "KEY-1", "key-1 "] {
            assert!(!list.contains(other.as_bytes()), "{other}");
        }
        assert!(ValueList::new([], [1, 2]).is_empty());
        assert!(!ValueList::new([], [1, 2]).contains(b""));
        assert!(ValueList::new([&b""[..]], [1, 2]).contains(b""));
    }

    #[test]
    fn debug_output_of_a_value_list_hides_values() {
        let list = ValueList::new([&b"hush"[..]], [1, 2]);
        assert_eq!(format!("{list:?}"), "ValueList { len: 1, .. }");
    }
}
