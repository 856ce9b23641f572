//! Fuzz target for the decoder of header blocks.

use std::iter;

use super::decoder::{FieldSink, HpackDecoder};
use super::encoder::HpackEncoder;
use super::field::HeaderField;
use super::{FIELD_OVERHEAD, MAX_TABLE_SIZE};

/// Bytes of fields, as their sizes are counted, that a block is decoded to at most.
const MAX_FIELDS_SIZE: usize = 64 * 1024;

/// Fields of a block.
#[derive(Debug, Default)]
pub struct Fields {
    pub(super) accepted: Vec<HeaderField>,
    size: usize,
}

impl FieldSink for Fields {
    fn accepts(&mut self, size: usize) -> bool {
        assert!(size >= FIELD_OVERHEAD, "size {size} of a field");
        self.size += size;
        self.size <= MAX_FIELDS_SIZE
    }

    fn push(&mut self, field: HeaderField) {
        self.accepted.push(field);
    }
}

/// Accepts no field.
struct Nothing;

impl FieldSink for Nothing {
    fn accepts(&mut self, _: usize) -> bool {
        false
    }

    fn push(&mut self, field: HeaderField) {
        panic!("{field:?} was not accepted");
    }
}

/// Checks that header blocks leave a table within its bounds, that fields which are not accepted change nothing else,
/// and that decoded fields can be encoded and decoded again.
///
/// `data` consists of the blocks of one connection, separated by the bytes 0xff 0x00.
pub fn header_blocks(data: &[u8]) {
    let (mut decoder, mut skipping) = (HpackDecoder::new(), HpackDecoder::new());
    let (mut encoder, mut again) = (HpackEncoder::new(), HpackDecoder::new());
    for block in blocks(data) {
        let mut fields = Fields::default();
        let result = decoder.decode(block, &mut fields);
        assert_eq!(skipping.decode(block, &mut Nothing), result, "the result depends on what is accepted");
        let (size, max) = decoder.table_size();
        assert!(size <= max as usize && max <= MAX_TABLE_SIZE, "{size} bytes in a table of {max}");
        assert_eq!(skipping.table_size(), (size, max), "the table depends on what is accepted");
        fields.accepted.retain(has_encoding);
        assert_eq!(encode_and_decode(&fields.accepted, &mut encoder, &mut again), fields.accepted);
        if result.is_err() {
            return;
        }
    }
}

/// Splits `data` at 0xff 0x00. A block that contains these bytes itself is lost, which does no harm.
fn blocks(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let end = data.windows(2).position(|pair| pair == [0xff, 0]);
        let (block, rest) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
        data = rest;
        Some(block)
    })
}

fn encode_and_decode(
    fields: &[HeaderField],
    encoder: &mut HpackEncoder,
    decoder: &mut HpackDecoder,
) -> Vec<HeaderField> {
    let mut block = Vec::new();
    encoder.begin(&mut block);
    for field in fields {
        encode(field, encoder, &mut block);
    }
    let mut decoded = Fields::default();
    decoder.decode(&block, &mut decoded).expect("an encoded block is valid");
    decoded.accepted
}

/// Whether a field is kept with its value.
const fn has_encoding(field: &HeaderField) -> bool {
    !matches!(field, HeaderField::Malformed(_) | HeaderField::OtherScheme | HeaderField::OtherAuthority)
}

/// Appends a field that [`has_encoding`].
pub fn encode(field: &HeaderField, encoder: &mut HpackEncoder, out: &mut Vec<u8>) {
    match field {
        HeaderField::Method(method) => encoder.method(method, out),
        HeaderField::Scheme(scheme) => encoder.scheme(scheme, out),
        HeaderField::Authority(authority) => encoder.authority(authority.as_str(), out),
        HeaderField::Path(path) => encoder.path(path.as_str(), out),
        HeaderField::Protocol(protocol) => encoder.protocol(protocol, out),
        HeaderField::Status(status) => encoder.status(*status, out),
        HeaderField::Header(name, value) => encoder.header(name, value, out),
        HeaderField::Malformed(_) | HeaderField::OtherScheme | HeaderField::OtherAuthority => {
            panic!("{field:?} has no encoding")
        }
    }
}
