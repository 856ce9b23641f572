//! HPACK: compression of header blocks in HTTP/2 (RFC 7541).
//!
//! A connection has one [`HpackDecoder`] and one [`HpackEncoder`]. Each holds a dynamic table, which both peers keep in step:
//! every block must be decoded, in order, even if its message is rejected.

mod common_values;
mod decode_error;
mod decoder;
mod encode_table;
mod encoder;
mod field;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod huffman;
mod integer;
mod static_table;
mod table;

pub use self::decode_error::DecodeError;
pub use self::decoder::{FieldSink, HpackDecoder};
pub use self::encoder::HpackEncoder;
pub use self::field::{HeaderField, InvalidProtocol, Protocol};

/// Initial maximum size of a dynamic table, in bytes (RFC 9113, section 6.5.2). Neither table of Weir ever exceeds it.
pub const MAX_TABLE_SIZE: u32 = 4096;

/// Size of a field beyond its name and value, in bytes (RFC 7541, section 4.1).
const FIELD_OVERHEAD: usize = 32;
