//! Forms: `application/x-www-form-urlencoded` (URL Standard, section 5.1), read in pieces.

use crate::Unreadable;
use crate::fields::{FieldSet, Kind, Record, Value};

/// Reads the fields of a form.
#[derive(Debug, Default)]
pub struct FormReader {
    /// What has been read of a pair.
    pair: Vec<u8>,
    record: Option<Record>,
}

impl FormReader {
    /// Reads the next piece.
    ///
    /// # Errors
    /// [`Unreadable::Duplicate`] if a field has two values: programs use the first, the last or both.
    pub fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        let mut rest = piece;
        while let Some(end) = memchr::memchr(b'&', rest) {
            self.pair.extend_from_slice(&rest[..end]);
            self.end_pair(fields)?;
            rest = &rest[end + 1..];
        }
        self.pair.extend_from_slice(rest);
        Ok(())
    }

    /// Returns the values at the end of the body.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn finish(mut self, fields: &FieldSet) -> Result<Record, Unreadable> {
        self.end_pair(fields)?;
        Ok(self.record.unwrap_or_else(|| fields.empty_record()))
    }

    /// Returns the values that have been read so far.
    pub(crate) const fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    fn end_pair(&mut self, fields: &FieldSet) -> Result<(), Unreadable> {
        if self.pair.is_empty() {
            return Ok(());
        }
        let mut parts = self.pair.splitn(2, |byte| *byte == b'=');
        let name = decoded(parts.next().unwrap_or_default());
        if let Some(index) = fields.form_field(&name) {
            let text = decoded(parts.next().unwrap_or_default()).into();
            let record = self.record.get_or_insert_with(|| fields.empty_record());
            if record[index].replace(Value { kind: Kind::String, text }).is_some() {
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
    use crate::fields::FieldName;

    fn read(form: &[u8], names: &[&str]) -> Result<Vec<Option<String>>, Unreadable> {
        let fields = FieldSet::new(names.iter().map(|name| FieldName::Form((*name).into())));
        let whole = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut reader = FormReader::default();
            for piece in pieces {
                reader.read(&fields, piece)?;
            }
            let texts =
                |record: Record| record.iter().map(|value| Some(value.as_ref()?.text.to_string())).collect();
            reader.finish(&fields).map(texts)
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
