//! Frames (RFC 9113 sections 4 and 6).

use std::ops::Range;

use super::error::Reason;

/// Size of a frame's header, in bytes.
pub(super) const FRAME_HEADER_SIZE: usize = 9;
/// Maximum size of a received frame's payload: the default of SETTINGS_MAX_FRAME_SIZE, which is never raised.
pub(super) const MAX_FRAME_SIZE: usize = 16 * 1024;
/// What a client sends first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Flags of frames. The same bit has different meanings for different kinds.
pub(super) mod flags {
    pub(in crate::http2) const ACK: u8 = 0x1;
    pub(in crate::http2) const END_STREAM: u8 = 0x1;
    pub(in crate::http2) const END_HEADERS: u8 = 0x4;
    pub(in crate::http2) const PADDED: u8 = 0x8;
    pub(in crate::http2) const PRIORITY: u8 = 0x20;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data,
    Headers,
    Priority,
    ResetStream,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    /// Size of the payload, in bytes.
    pub(super) length: usize,
    pub(super) kind: FrameKind,
    pub(super) flags: u8,
    /// The stream; 0 is the connection.
    pub(super) stream: u32,
}

impl FrameKind {
    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::ResetStream,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Unknown,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::Priority => 2,
            Self::ResetStream => 3,
            Self::Settings => 4,
            Self::PushPromise => 5,
            Self::Ping => 6,
            Self::GoAway => 7,
            Self::WindowUpdate => 8,
            Self::Continuation => 9,
            Self::Unknown => u8::MAX,
        }
    }
}

impl FrameHeader {
    /// Parses the first bytes of a frame.
    pub(super) fn parse(bytes: &[u8; FRAME_HEADER_SIZE]) -> Self {
        let [a, b, c, kind, flags, s, t, u, v] = *bytes;
        Self {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind: FrameKind::from_code(kind),
            flags,
            // The reserved bit is ignored.
            stream: u32::from_be_bytes([s, t, u, v]) & 0x7fff_ffff,
        }
    }

    /// Returns the bytes of the header.
    pub(super) fn encode(self) -> [u8; FRAME_HEADER_SIZE] {
        let [_, a, b, c] = u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind.code(), self.flags, s, t, u, v]
    }

    pub(super) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the part of `payload` without padding. DATA and HEADERS may be padded.
    ///
    /// # Errors
    /// PROTOCOL_ERROR if the padding is longer than the payload (RFC 9113 sections 6.1 and 6.2).
    pub(super) fn unpadded(&self, payload: &[u8]) -> Result<Range<usize>, Reason> {
        if !self.has(flags::PADDED) {
            return Ok(0..payload.len());
        }
        let Some((&padding, rest)) = payload.split_first() else { return Err(Reason::FRAME_SIZE_ERROR) };
        let length = rest.len().checked_sub(usize::from(padding)).ok_or(Reason::PROTOCOL_ERROR)?;
        Ok(1..1 + length)
    }
}

/// Returns the first four bytes as a number.
pub(super) fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|first| u32::from_be_bytes(*first))
}

/// Appends a frame with a short payload.
pub(super) fn put_frame(out: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    let header = FrameHeader { length: payload.len(), kind, flags, stream };
    out.extend_from_slice(&header.encode());
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_header_is_parsed_again() {
        let header = FrameHeader { length: 0x12_3456, kind: FrameKind::Ping, flags: 1, stream: 0x7fff_fffe };
        assert_eq!(FrameHeader::parse(&header.encode()), header);
        let mut bytes = header.encode();
        bytes[5] |= 0x80;
        assert_eq!(FrameHeader::parse(&bytes), header, "the reserved bit is ignored");
        bytes[3] = 99;
        assert_eq!(FrameHeader::parse(&bytes).kind, FrameKind::Unknown);
    }

    #[test]
    fn padding_is_at_most_the_payload() {
        let header = |flags| FrameHeader { length: 0, kind: FrameKind::Data, flags, stream: 1 };
        assert_eq!(header(0).unpadded(b"abc"), Ok(0..3));
        assert_eq!(header(flags::PADDED).unpadded(&[2, 1, 0, 0]), Ok(1..2));
        assert_eq!(header(flags::PADDED).unpadded(&[3, 0, 0, 0]), Ok(1..1));
        assert_eq!(header(flags::PADDED).unpadded(&[4, 0, 0, 0]), Err(Reason::PROTOCOL_ERROR));
        assert_eq!(header(flags::PADDED).unpadded(&[]), Err(Reason::FRAME_SIZE_ERROR));
    }
}
