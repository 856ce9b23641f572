//! Strings, whose escapes may end in another piece than they begin.

use super::token::{self, Escape};
use super::{JsonReader, JsonState};
use crate::Unreadable;
use crate::fields::FieldSet;

impl JsonReader {
    /// Reads more of a string, up to its end or the end of the next escape.
    pub(super) fn string<'p>(
        &mut self,
        fields: &FieldSet,
        is_key: bool,
        escape: Escape,
        rest: &'p [u8],
    ) -> Result<&'p [u8], Unreadable> {
        if escape != Escape::None {
            let (escape, rest) = self.escape(escape, rest)?;
            self.state = JsonState::String { is_key, escape };
            return Ok(rest);
        }
        let (run, end) = rest.split_at(memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len()));
        if run.iter().any(|byte| *byte < b' ') {
            return Err(Unreadable::Invalid);
        }
        self.keep(run);
        let Some((byte, after)) = end.split_first() else { return Ok(&[]) };
        if *byte == b'"' {
            self.end_string(fields, is_key)?;
        } else {
            self.state = JsonState::String { is_key, escape: Escape::Begun };
        }
        Ok(after)
    }

    /// Reads one byte of an escape, or none if the escape has ended before it.
    fn escape<'p>(&mut self, escape: Escape, rest: &'p [u8]) -> Result<(Escape, &'p [u8]), Unreadable> {
        let Some((byte, after)) = rest.split_first() else { return Ok((escape, rest)) };
        let next = match escape {
            Escape::None => return Ok((escape, rest)),
            Escape::Begun if *byte == b'u' => Escape::hex(None),
            Escape::Begun => {
                self.keep(&[token::unescaped(*byte).ok_or(Unreadable::Invalid)?]);
                Escape::None
            }
            Escape::HighSurrogate(high) if *byte == b'\\' => Escape::BegunAfter(high),
            Escape::BegunAfter(high) if *byte == b'u' => Escape::hex(Some(high)),
            // The same byte goes on with what follows the lone surrogate.
            Escape::HighSurrogate(_) => return self.lone_surrogate().map(|()| (Escape::None, rest)),
            Escape::BegunAfter(_) => return self.lone_surrogate().map(|()| (Escape::Begun, rest)),
            Escape::Hex { high, unit, digits } => {
                let digit = char::from(*byte).to_digit(16).ok_or(Unreadable::Invalid)?;
                let unit = unit << 4 | digit;
                if digits < 3 {
                    Escape::Hex { high, unit, digits: digits + 1 }
                } else {
                    self.end_hex(high, unit)?
                }
            }
        };
        Ok((next, after))
    }

    /// Keeps the character of an escape, to which a surrogate may belong that preceded it.
    fn end_hex(&mut self, high: Option<u32>, unit: u32) -> Result<Escape, Unreadable> {
        let code = match (high, unit) {
            (Some(high), 0xdc00..=0xdfff) => 0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00),
            (_, 0xd800..=0xdbff) => {
                high.map_or(Ok(()), |_| self.lone_surrogate())?;
                return Ok(Escape::HighSurrogate(unit));
            }
            (_, unit) => {
                high.map_or(Ok(()), |_| self.lone_surrogate())?;
                unit
            }
        };
        match char::from_u32(code) {
            Some(letter) => self.keep(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.lone_surrogate()?,
        }
        Ok(Escape::None)
    }

    /// A surrogate without its other half is no character: some decoders reject it, others replace it. Where no field is, it is left to
    /// the upstream. Text that was cut within a character has one.
    const fn lone_surrogate(&self) -> Result<(), Unreadable> {
        if self.max_text == 0 { Ok(()) } else { Err(Unreadable::Invalid) }
    }
}
