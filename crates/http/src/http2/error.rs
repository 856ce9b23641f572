//! Errors of connections and streams.

use std::fmt;
use std::io;

/// Error code of RFC 9113 section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub u32);

impl Reason {
    /// No error: a graceful end.
    pub const NO_ERROR: Self = Self(0);
    /// Violation of the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1);
    /// Unexpected internal error.
    pub const INTERNAL_ERROR: Self = Self(2);
    /// Violation of flow control.
    pub const FLOW_CONTROL_ERROR: Self = Self(3);
    /// The peer has not sent its settings in time.
    pub const SETTINGS_TIMEOUT: Self = Self(4);
    /// A frame for a stream that has ended.
    pub const STREAM_CLOSED: Self = Self(5);
    /// Invalid size of a frame.
    pub const FRAME_SIZE_ERROR: Self = Self(6);
    /// The stream was not processed.
    pub const REFUSED_STREAM: Self = Self(7);
    /// The stream is not needed any more.
    pub const CANCEL: Self = Self(8);
    /// Invalid compression of a header section.
    pub const COMPRESSION_ERROR: Self = Self(9);
    /// Excessive load.
    pub const ENHANCE_YOUR_CALM: Self = Self(11);

    /// Returns the name in the RFC, if the code has one.
    const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0 => "NO_ERROR",
            1 => "PROTOCOL_ERROR",
            2 => "INTERNAL_ERROR",
            3 => "FLOW_CONTROL_ERROR",
            4 => "SETTINGS_TIMEOUT",
            5 => "STREAM_CLOSED",
            6 => "FRAME_SIZE_ERROR",
            7 => "REFUSED_STREAM",
            8 => "CANCEL",
            9 => "COMPRESSION_ERROR",
            10 => "CONNECT_ERROR",
            11 => "ENHANCE_YOUR_CALM",
            12 => "INADEQUATE_SECURITY",
            13 => "HTTP_1_1_REQUIRED",
            _ => return None,
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "error code {}", self.0),
        }
    }
}

/// Why a stream or a connection has ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Http2Error {
    /// The peer has reset the stream.
    #[error("stream was reset by the peer: {0}")]
    ResetByPeer(Reason),
    /// The stream was reset here, because the peer has violated the protocol.
    #[error("stream was reset: {0}")]
    Malformed(Reason),
    /// The peer has closed the connection, and has not processed the stream.
    #[error("connection was closed by the peer: {0}")]
    GoneAway(Reason),
    /// The connection was closed here, because the peer has violated the protocol.
    #[error("connection was closed: {0}")]
    Violation(Reason),
    /// The stream was reset here.
    #[error("stream was cancelled: {0}")]
    Cancelled(Reason),
    /// The stream was reset here, because its client does not read the responses.
    #[error("stream was reset: the client does not read")]
    Unread,
    /// The connection has failed or has ended.
    #[error("connection ended: {0}")]
    Io(io::ErrorKind),
}

impl Http2Error {
    /// Returns the error code, if there is one.
    pub const fn reason(&self) -> Option<Reason> {
        match self {
            Self::ResetByPeer(reason)
            | Self::Malformed(reason)
            | Self::GoneAway(reason)
            | Self::Violation(reason)
            | Self::Cancelled(reason) => Some(*reason),
            Self::Unread => Some(Reason::ENHANCE_YOUR_CALM),
            Self::Io(_) => None,
        }
    }

    /// Whether the peer has violated the protocol.
    pub const fn is_violation(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::Violation(_))
    }

    /// Whether the peer has declared that it has not processed the stream (RFC 9113 section 8.7).
    pub fn is_unprocessed(&self) -> bool {
        match self {
            Self::ResetByPeer(reason) => *reason == Reason::REFUSED_STREAM,
            Self::GoneAway(_) => true,
            Self::Malformed(_) | Self::Violation(_) | Self::Cancelled(_) | Self::Unread | Self::Io(_) => {
                false
            }
        }
    }
}

impl From<io::Error> for Http2Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

impl From<Http2Error> for io::Error {
    fn from(error: Http2Error) -> Self {
        match error {
            Http2Error::Io(kind) => kind.into(),
            other => Self::other(other),
        }
    }
}
