//! Errors of the decoder.

/// An invalid header block. The table of the decoder is unusable then, so it is a connection error of type
/// `COMPRESSION_ERROR` (RFC 9113, section 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The block ends within a field.
    #[error("header block ends within a field")]
    Truncated,
    /// An integer exceeds 32 bits (RFC 7541, section 5.1).
    #[error("integer in a header block exceeds 32 bits")]
    IntegerTooLarge,
    /// An index refers to no entry of either table (RFC 7541, section 2.3.3).
    #[error("header block refers to entry {0}, which does not exist")]
    InvalidIndex(u32),
    /// A string contains EOS or has invalid padding (RFC 7541, section 5.2).
    #[error("invalid Huffman code in a header block")]
    InvalidHuffman,
    /// A size update exceeds the advertised size of the table (RFC 7541, section 6.3).
    #[error("update of the table size to {0} bytes, more than advertised")]
    TableTooLarge(u32),
    /// A size update follows a field (RFC 7541, section 4.2).
    #[error("update of the table size after the first field of a header block")]
    LateSizeUpdate,
}
