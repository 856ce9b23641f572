//! Limits inside a stream: on the messages of a WebSocket or a gRPC call, and on the bytes of bodies and tunnels.
//!
//! They reject nothing. What exceeds them is read and forwarded later, so that flow control slows the sender down.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use weir_limiter::check_options::{CounterRole, DelayPolicy};
use weir_limiter::quota::{Limit, Quota};

/// Name of the key by which each stream is counted apart.
pub const STREAM_KEY: &str = "stream";

/// Maximum number of parts of a stream's data that wait for one counter. Each stream waits with one at a time.
const MAX_QUEUED: u32 = u32::MAX - 1;

/// The limits inside streams of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamLimits {
    pub limits: Box<[StreamLimit]>,
    /// Whether each stream is counted apart, and not each key.
    pub is_per_stream: bool,
}

/// A limit on what a stream transfers.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamLimit {
    pub quota: Quota,
    /// What its units are.
    pub measure: StreamMeasure,
}

/// What a limit inside a stream counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamMeasure {
    /// Messages, each of this number of units.
    Messages(StreamDirection, NonZeroU32),
    /// Bytes, each of one unit.
    Bytes(StreamDirection),
}

/// Which side sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamDirection {
    /// The client.
    Request,
    /// The upstream.
    Response,
}

impl StreamMeasure {
    /// All measures, with messages of one unit.
    pub const ALL: [Self; 4] = [
        Self::Messages(StreamDirection::Request, NonZeroU32::MIN),
        Self::Messages(StreamDirection::Response, NonZeroU32::MIN),
        Self::Bytes(StreamDirection::Request),
        Self::Bytes(StreamDirection::Response),
    ];

    pub const fn direction(self) -> StreamDirection {
        match self {
            Self::Messages(direction, _) | Self::Bytes(direction) => direction,
        }
    }

    /// Returns what is counted, in the plural.
    pub fn unit(self) -> String {
        self.as_str().replace('_', " ")
    }

    /// Returns the units of what is counted: of a message, or of a byte.
    pub const fn units(self) -> u32 {
        match self {
            Self::Messages(_, units) => units.get(),
            Self::Bytes(_) => 1,
        }
    }

    /// Returns its position in [`Self::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Messages(StreamDirection::Request, _) => 0,
            Self::Messages(StreamDirection::Response, _) => 1,
            Self::Bytes(StreamDirection::Request) => 2,
            Self::Bytes(StreamDirection::Response) => 3,
        }
    }

    /// Returns the name in metrics and on the admin port.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Messages(StreamDirection::Request, _) => "messages",
            Self::Messages(StreamDirection::Response, _) => "response_messages",
            Self::Bytes(StreamDirection::Request) => "request_bytes",
            Self::Bytes(StreamDirection::Response) => "response_bytes",
        }
    }
}

impl StreamLimit {
    /// Returns how parts of streams wait. Where the algorithm can delay, a part is charged at once, and its departure is fixed
    /// then. The wait has no maximum: each stream waits with one part. Otherwise the stream tries again.
    pub(super) fn counter_role(&self) -> CounterRole {
        match self.quota.algorithm().can_delay() {
            true => CounterRole::Delay(DelayPolicy::new(Duration::MAX, Some(MAX_QUEUED))),
            false => CounterRole::Limit,
        }
    }
}

impl fmt::Display for StreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limit { count, period } = self.quota.limit();
        write!(f, "{count} {}/{period}", self.measure.unit())
    }
}
