//! Forms: `application/x-www-form-urlencoded` (URL Standard, section 5.1), read in pieces.

use crate::Unreadable;
use crate::fields::{Kind, Record, Value};

/// Reads the fields of a form.
#[derive(Debug, Default)]
pub struct FormReader {
    /// What has been read of a pair.
    pair: Vec<u8>,
    record: Vec<Option<Value>>,
}

impl FormReader {
    /// Reads the next piece, for the fields with these names.
    ///
    /// # Errors
    /// [`Unreadable::Duplicate`] if a field has two values: programs use the first, the last or both.
    pub fn read(&mut self, names: &[Box<str>], piece: &[u8]) -> Result<(), Unreadable> {
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'&', rest) {
            self.pair.extend_from_slice(&rest[..end]);
            self.end_pair(names)?;
            rest = &rest[end + 1..];
        }
        self.pair.extend_from_slice(rest);
        Ok(())
    }

    /// Returns the values at the end of the body, by the positions of their names.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn finish(mut self, names: &[Box<str>]) -> Result<Record, Unreadable> {
        self.end_pair(names)?;
        self.record.resize(names.len(), None);
        Ok(self.record.into())
    }

    fn end_pair(&mut self, names: &[Box<str>]) -> Result<(), Unreadable> {
        self.record.resize(names.len(), None);
        if self.pair.is_empty() {
            return Ok(());
        }
        let mut parts = self.pair.splitn(2, |byte| *byte == b'=');
        let name = decoded(parts.next().unwrap_or_default());
        if let Some(position) = names.iter().position(|wanted| **wanted == *name) {
            let text = decoded(parts.next().unwrap_or_default()).into();
            if self.record[position].replace(Value { kind: Kind::String, text }).is_some() {
                return Err(Unreadable::Duplicate);
            }
        }
        self.pair.clear();
        Ok(())
    }
}

/// Decodes a name or value. Bytes that are no UTF-8 become U+FFFD, as the URL Standard has it.
fn decoded(text: &[u8]) -> String {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: &[u8], names: &[&str]) -> Result<Vec<Option<String>>, Unreadable> {
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        let whole = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut reader = FormReader::default();
            for piece in pieces {
                reader.read(&names, piece)?;
            }
            let texts =
                |record: Record| record.iter().map(|value| Some(value.as_ref()?.text.to_string())).collect();
            reader.finish(&names).map(texts)
        };
        let at_once = whole(&mut std::iter::once(form));
        assert_eq!(whole(&mut form.chunks(1)), at_once, "in single bytes");
        at_once
    }

    #[test]
    fn fields_are_decoded() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(read(b"user=a%20b+c&x=1", &["user", "y"]), Ok(vec![some("a b c"), None]));
        assert_eq!(read(b"us%65r=%zz&x", &["user", "x"]), Ok(vec![some("%zz"), some("")]));
        assert_eq!(read(b"a=1=2&&=3", &["a", ""]), Ok(vec![some("1=2"), some("3")]));
        assert_eq!(read(b"", &["a"]), Ok(vec![None]));
        assert_eq!(read(b"a=%ff", &["a"]), Ok(vec![some("\u{fffd}")]));
    }

    #[test]
    fn two_values_of_a_field_are_unreadable() {
        assert_eq!(read(b"user=a&x=1&x=2&%75ser=b", &["user"]), Err(Unreadable::Duplicate));
    }
}
