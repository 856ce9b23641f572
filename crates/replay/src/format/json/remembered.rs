//! Fields of the previous lines of a JSON log, recognised without a search for the end of their names.

use crate::format::fields::LogField;

/// A field of the previous lines.
#[derive(Debug)]
pub(super) struct RememberedField {
    /// Name of the object that contains it, with a dot behind it; empty for the outermost one.
    prefix: Box<[u8]>,
    /// Name, and the quote behind it.
    quoted: Box<[u8]>,
    /// The first 16 bytes of `quoted` as a number, and ones where they are.
    head: u128,
    mask: u128,
    meaning: Option<LogField>,
}

impl RememberedField {
    /// Returns the field `name` of the object with this `prefix`.
    pub(super) fn new(prefix: &[u8], name: &[u8], meaning: Option<LogField>) -> Self {
        let quoted = [name, b"\""].concat();
        let head = quoted.iter().take(16).rev().fold(0, |all, byte| all << 8 | u128::from(*byte));
        let mask = u128::MAX >> (128 - 8 * quoted.len().min(16));
        Self { prefix: prefix.into(), quoted: quoted.into(), head, mask, meaning }
    }

    /// Whether a member with this name begins at `rest`, in the object with this `prefix`.
    #[inline]
    pub(super) fn is_at(&self, rest: &[u8], prefix: &[u8]) -> bool {
        let is_next = match rest.first_chunk::<16>() {
            Some(head) if self.quoted.len() <= 16 => u128::from_le_bytes(*head) & self.mask == self.head,
            _ => rest.starts_with(&self.quoted),
        };
        // Almost all fields are in the outermost object. Comparing nothing with `memcmp` can be slow.
        is_next && self.prefix.len() == prefix.len() && (prefix.is_empty() || *self.prefix == *prefix)
    }

    /// Length of the name and the quote behind it.
    pub(super) const fn length(&self) -> usize {
        self.quoted.len()
    }

    /// Returns its meaning, if it has one.
    pub(super) const fn meaning(&self) -> Option<LogField> {
        self.meaning
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_name_in_the_same_object_is_recognised() {
        for name in ["", "key", "fifteen_letters", "sixteen_letters_", "a_name_of_more_letters"] {
            let field = RememberedField::new(b"request.", name.as_bytes(), None);
            for (rest, is_at) in [
                (format!("{name}\":0}}"), true),
                (format!("{name}\"{}", ":0, \"next\": [1, 2, 3]}"), true),
                (format!("{name}x\":{}", "0".repeat(20)), false),
                (format!("x{name}\":{}", "0".repeat(20)), false),
                (name.to_owned(), false),
            ] {
                assert_eq!(field.is_at(rest.as_bytes(), b"request."), is_at, "{name:?} at {rest:?}");
                assert!(!field.is_at(rest.as_bytes(), b"") && !field.is_at(rest.as_bytes(), b"requesu."));
            }
        }
    }
}
