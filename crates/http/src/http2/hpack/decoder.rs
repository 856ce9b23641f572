//! HpackDecoder of header blocks.

use super::decode_error::DecodeError;
use super::field::{HeaderField, Name, Parsed, size};
use super::table::{DecodedEntry, Table};
use super::{MAX_TABLE_SIZE, huffman, integer, static_table};

/// Literals up to this length, in bytes after decompression, need no allocation while they are decompressed.
const INLINE_SCRATCH: usize = 256;

/// Receives the fields of a block in their order.
pub trait FieldSink {
    /// Called before each field with its size in bytes: name, value, and 32 (RFC 7541, section 4.1). If it returns
    /// false, the field is neither cloned nor pushed. Decoding continues, since the table must stay in step.
    fn accepts(&mut self, size: usize) -> bool;

    /// Receives a field.
    fn push(&mut self, field: HeaderField);

    /// Whether the section is unusable, so that the decoder need not look into its other fields, except into those that
    /// enter the table.
    fn has_failed(&self) -> bool {
        false
    }
}

/// Decodes the header blocks of one direction of a connection.
///
/// Its table has the default maximum of 4096 bytes; no other one may be advertised to the peer.
///
/// The work is linear in the bytes of the blocks: a string is decompressed, parsed and copied once, when it arrives. A
/// reference to it, of one to three bytes, shares the result, valid or not.
#[derive(Debug)]
pub struct HpackDecoder {
    table: Table,
}

/// A field that is not, or not entirely, in a table.
struct Literal<'a> {
    name: Name,
    value: &'a [u8],
}

impl HpackDecoder {
    /// Returns a decoder with an empty table, which allocates nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { table: Table::new() }
    }

    /// Decodes a complete header block.
    ///
    /// # Errors
    /// Fails if the block is invalid, which is a connection error of type `COMPRESSION_ERROR`. Fields before the error
    /// may have been pushed. The decoder must not be used any more.
    pub fn decode(&mut self, block: &[u8], sink: &mut impl FieldSink) -> Result<(), DecodeError> {
        let mut rest = self.update_size(block)?;
        let mut scratch = Scratch::new();
        while let Some(first) = rest.first() {
            rest = match first {
                0x80.. => self.indexed(rest, sink)?,
                0x40.. => self.incremental(rest, &mut scratch, sink)?,
                0x20.. => return Err(DecodeError::LateSizeUpdate),
                _ if sink.has_failed() => self.skip_unindexed(rest)?,
                _ => self.unindexed(rest, &mut scratch, sink)?,
            };
        }
        Ok(())
    }

    /// Applies the size updates at the start of a block. Returns the rest.
    fn update_size<'a>(&mut self, mut block: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        while let Some(0x20..0x40) = block.first() {
            let (bytes, rest) = integer::decode(block, 5)?;
            if bytes > MAX_TABLE_SIZE {
                return Err(DecodeError::TableTooLarge(bytes));
            }
            self.table.set_max_size(bytes);
            block = rest;
        }
        Ok(block)
    }

    /// Indexed field (RFC 7541, section 6.1).
    #[inline]
    fn indexed<'a>(&self, input: &'a [u8], sink: &mut impl FieldSink) -> Result<&'a [u8], DecodeError> {
        let (index, rest) = integer::decode(input, 7)?;
        let entry = self.entry(index)?;
        if sink.accepts(entry.size()) {
            sink.push(entry.field());
        }
        Ok(rest)
    }

    /// Literal field with incremental indexing (RFC 7541, section 6.2.1).
    fn incremental<'a>(
        &mut self,
        input: &'a [u8],
        scratch: &mut Scratch,
        sink: &mut impl FieldSink,
    ) -> Result<&'a [u8], DecodeError> {
        let (literal, rest) = self.literal(input, 6, scratch)?;
        let entry = DecodedEntry::new(literal.name, literal.value);
        if sink.accepts(entry.size()) {
            sink.push(entry.field());
        }
        self.table.insert(entry);
        Ok(rest)
    }

    /// Literal field without indexing, or never indexed (RFC 7541, sections 6.2.2 and 6.2.3).
    fn unindexed<'a>(
        &self,
        input: &'a [u8],
        scratch: &mut Scratch,
        sink: &mut impl FieldSink,
    ) -> Result<&'a [u8], DecodeError> {
        let is_sensitive = input.first().is_some_and(|first| first & 0x10 != 0);
        let (literal, rest) = self.literal(input, 4, scratch)?;
        if sink.accepts(size(literal.name.as_bytes(), literal.value)) {
            sink.push(Parsed::new(literal.name, literal.value, is_sensitive).into_field());
        }
        Ok(rest)
    }

    /// Skips a literal field that does not enter the table. Its strings are not decompressed.
    fn skip_unindexed<'a>(&self, input: &'a [u8]) -> Result<&'a [u8], DecodeError> {
        let (index, rest) = integer::decode(input, 4)?;
        let rest = if index == 0 { raw_string(rest)?.1 } else { self.entry(index).map(|_| rest)? };
        Ok(raw_string(rest)?.1)
    }

    fn literal<'a: 'b, 'b>(
        &self,
        input: &'a [u8],
        prefix: u32,
        scratch: &'b mut Scratch,
    ) -> Result<(Literal<'b>, &'a [u8]), DecodeError> {
        let (index, rest) = integer::decode(input, prefix)?;
        let (name, rest) = if index == 0 {
            let (name, rest) = string(rest, scratch)?;
            (Name::parse(name), rest)
        } else {
            (self.entry(index)?.name(), rest)
        };
        let (value, rest) = string(rest, scratch)?;
        Ok((Literal { name, value }, rest))
    }

    #[inline]
    fn entry(&self, index: u32) -> Result<&DecodedEntry, DecodeError> {
        let place = index as usize;
        let entry = if place <= static_table::LEN {
            static_table::get(place)
        } else {
            self.table.get(place - static_table::LEN - 1)
        };
        entry.ok_or(DecodeError::InvalidIndex(index))
    }

    /// Sum of the sizes of all entries, and its current bound.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn table_size(&self) -> (usize, u32) {
        (self.table.counted_size(), self.table.max_size())
    }
}

impl Default for HpackDecoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Decodes a string (RFC 7541, section 5.2). Returns it, in `scratch` if it was compressed, with the input after it.
#[inline]
fn string<'a: 'b, 'b>(
    input: &'a [u8],
    scratch: &'b mut Scratch,
) -> Result<(&'b [u8], &'a [u8]), DecodeError> {
    let is_compressed = input.first().is_some_and(|first| first & 0x80 != 0);
    let (string, rest) = raw_string(input)?;
    if !is_compressed {
        return Ok((string, rest));
    }
    let scratch = scratch.slice(huffman::max_decoded_len(string.len()));
    let len = huffman::decode(string, scratch)?;
    Ok((&scratch[..len], rest))
}

/// Splits off a string as it is, compressed or not, from the input after it.
#[inline]
fn raw_string(input: &[u8]) -> Result<(&[u8], &[u8]), DecodeError> {
    let (len, rest) = integer::decode(input, 7)?;
    rest.split_at_checked(len as usize).ok_or(DecodeError::Truncated)
}

/// Memory for one decompressed string.
struct Scratch {
    inline: [u8; INLINE_SCRATCH],
    heap: Vec<u8>,
}

impl Scratch {
    const fn new() -> Self {
        Self { inline: [0; INLINE_SCRATCH], heap: Vec::new() }
    }

    /// Returns at least `len` bytes with any content.
    fn slice(&mut self, len: usize) -> &mut [u8] {
        if len <= INLINE_SCRATCH {
            return &mut self.inline;
        }
        if len > self.heap.len() {
            self.heap.resize(len, 0);
        }
        &mut self.heap
    }
}

#[cfg(test)]
mod tests;
