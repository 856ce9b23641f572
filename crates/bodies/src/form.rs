//! Forms: `application/x-www-form-urlencoded` (URL Standard, section 5.1), read in pieces.
//!
//! A form is whole wherever it is cut, so its fields are known at its end only.

pub(crate) mod names;

use std::mem;

use self::names::FormMatch;
use crate::Unreadable;
use crate::fields::{FieldIndex, FieldMask, FieldSet, Kind, Record, Value};

/// Reads the fields of a form.
#[derive(Debug)]
pub struct FormReader {
    wanted: FieldMask,
    part: FormPart,
    /// What has been read of a name, or of the value of a field.
    text: Vec<u8>,
    /// Whether a semicolon precedes the pair, which some decoders take for `&`.
    follows_semicolon: bool,
    record: Option<Record>,
    /// Bytes of the values.
    values_size: usize,
}

/// What is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormPart {
    Name,
    Value(FieldIndex),
    /// The value of a name that leads to no field.
    OtherValue,
}

impl FormReader {
    /// Creates a reader of the fields `wanted`.
    pub const fn new(wanted: FieldMask) -> Self {
        Self {
            wanted,
            part: FormPart::Name,
            text: Vec::new(),
            follows_semicolon: false,
            record: None,
            values_size: 0,
        }
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// [`Unreadable::Duplicate`] if programs may read different values: of a field that is stated twice, or in a spelling that some of them
    /// take for it.
    pub fn read(&mut self, fields: &FieldSet, piece: &[u8]) -> Result<(), Unreadable> {
        let mut rest = piece;
        while let Some(end) = self.end_of_part(rest) {
            self.keep(&rest[..end]);
            if rest[end] == b'=' {
                self.end_name(fields)?;
            } else {
                self.end_pair(fields, rest[end] == b';')?;
            }
            rest = &rest[end + 1..];
        }
        self.keep(rest);
        Ok(())
    }

    /// Returns the values at the end of the body.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn finish(mut self, fields: &FieldSet) -> Result<Record, Unreadable> {
        self.end_pair(fields, false)?;
        Ok(self.record.unwrap_or_else(|| fields.empty_record()))
    }

    /// Returns the bytes that are kept.
    pub(crate) fn kept_size(&self) -> usize {
        let record = self.record.as_deref().map_or(0, size_of_val);
        self.values_size.saturating_add(record).saturating_add(self.text.capacity())
    }

    fn end_of_part(&self, rest: &[u8]) -> Option<usize> {
        match self.part {
            FormPart::Name => memchr::memchr3(b'&', b';', b'=', rest),
            FormPart::Value(_) | FormPart::OtherValue => memchr::memchr2(b'&', b';', rest),
        }
    }

    fn keep(&mut self, text: &[u8]) {
        if self.part != FormPart::OtherValue {
            self.text.extend_from_slice(text);
        }
    }

    fn end_name(&mut self, fields: &FieldSet) -> Result<(), Unreadable> {
        let name = mem::take(&mut self.text);
        self.part = match fields.forms().find(self.wanted, &decoded(&name)) {
            FormMatch::Similar => return Err(Unreadable::Duplicate),
            FormMatch::Field(_) if self.follows_semicolon => return Err(Unreadable::Duplicate),
            FormMatch::Field(field) => FormPart::Value(field),
            FormMatch::None => match of_wide_escapes(&name) {
                Some(wide) if fields.forms().find(self.wanted, &decoded(&wide)) != FormMatch::None => {
                    return Err(Unreadable::Duplicate);
                }
                _ => FormPart::OtherValue,
            },
        };
        Ok(())
    }

    fn end_pair(&mut self, fields: &FieldSet, at_semicolon: bool) -> Result<(), Unreadable> {
        if self.part == FormPart::Name && !self.text.is_empty() {
            self.end_name(fields)?;
        }
        let (part, text) = (mem::replace(&mut self.part, FormPart::Name), mem::take(&mut self.text));
        self.follows_semicolon = at_semicolon;
        let FormPart::Value(field) = part else { return Ok(()) };
        // The value ends here, or goes on.
        if at_semicolon || of_wide_escapes(&text).is_some() {
            return Err(Unreadable::Duplicate);
        }
        let text: Box<str> = decoded(&text).into();
        self.values_size = self.values_size.saturating_add(text.len());
        let record = self.record.get_or_insert_with(|| fields.empty_record());
        match record[field].replace(Value { kind: Kind::String, text }) {
            Some(_) => Err(Unreadable::Duplicate),
            None => Ok(()),
        }
    }
}

/// Decodes a name or value. Bytes that are no UTF-8 become U+FFFD, as the URL Standard has it.
fn decoded(text: &[u8]) -> String {
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == b'+' { b' ' } else { *byte }).collect();
    percent_encoding::percent_decode(&spaced).decode_utf8_lossy().into_owned()
}

/// Returns the text with its escapes of the form `%u006e` decoded, as ASP.NET does; `None` if it has none.
fn of_wide_escapes(text: &[u8]) -> Option<Vec<u8>> {
    let unit = |escape: &[u8]| {
        let digits = std::str::from_utf8(escape.get(2..6)?).ok()?;
        let unit = u32::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?;
        Some(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER))
    };
    let (mut wide, mut rest) = (Vec::new(), text);
    while let Some(at) = memchr::memmem::find(rest, b"%u") {
        let (before, escape) = rest.split_at(at);
        wide.extend_from_slice(before);
        match unit(escape) {
            Some(letter) => {
                wide.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &escape[6..];
            }
            None => {
                wide.extend_from_slice(&escape[..2]);
                rest = &escape[2..];
            }
        }
    }
    let has_some = wide.len() + rest.len() < text.len();
    wide.extend_from_slice(rest);
    has_some.then_some(wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::FieldName;

    fn read(form: &[u8], names: &[&str]) -> Result<Vec<Option<String>>, Unreadable> {
        let fields = FieldSet::new(names.iter().map(|name| FieldName::Form((*name).into())));
        let whole = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut reader = FormReader::new(FieldMask::ALL);
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

    #[test]
    fn spellings_of_a_field_are_unreadable() {
        for form in [
            "+user=b",
            "user=a&+user=b",
            "user=a&User=b",
            "user[]=b",
            "user%5B0%5D=b",
            "[user]=b",
            "user%00x=b",
            "user%00",
            "x=1;user=b",
            "x;user=b&y",
            "user=a;x",
            "user;x=a",
            "user=a;",
            ";user",
            "%u0075ser=b",
            "us%65r%u0020=b",
            "user=%u0061",
            "user=a&%u0055ser",
        ] {
            assert_eq!(read(form.as_bytes(), &["user"]), Err(Unreadable::Duplicate), "{form}");
        }
    }

    #[test]
    fn names_and_values_of_others_are_passed_over() {
        let some = |text: &str| Ok(vec![Some(text.to_owned())]);
        for form in [
            "user=a&x=user;y=1;;z&user_id=1",
            "users[]=1&user=a&user.id=2&%u0078=1&x=%u0041",
            "user=a&password=%u+123&x[user]=b",
        ] {
            assert_eq!(read(form.as_bytes(), &["user"]), some("a"), "{form}");
        }
        assert_eq!(read(b"user=%u00zz%", &["user"]), some("%u00zz%"));
        let long = [b"x=".as_slice(), &[b'y'; 100_000], b"&user=a&z=", &[b'y'; 100_000]].concat();
        let fields = FieldSet::new([FieldName::Form("user".into())]);
        let mut reader = FormReader::new(FieldMask::ALL);
        for piece in long.chunks(1000) {
            reader.read(&fields, piece).expect("readable");
            assert!(reader.kept_size() < 100, "{} bytes are kept", reader.kept_size());
        }
    }
}
