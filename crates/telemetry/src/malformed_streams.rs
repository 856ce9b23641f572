//! HTTP/2 streams that were reset because a peer broke the protocol, of all connections of this process.
//!
//! Such a stream has no request that could be logged. A peer that always sends malformed requests would otherwise only see
//! resets, and an operator nothing. Each kind is logged when its count reaches 1, 10, 100 and so on, so a peer cannot fill
//! the log.

use std::fmt::Display;

use super::atomic_counter::AtomicCounter;
use super::log_interval::reaches_power_of_ten;
use weir_http::http2::{Malformation, MalformedStreams};

/// Which peer has sent the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedSide {
    /// A client of a listener.
    Client,
    Upstream,
    /// A client of the rate limit service.
    Rls,
}

impl MalformedSide {
    const ALL: [Self; 3] = [Self::Client, Self::Upstream, Self::Rls];

    /// Returns the label's value.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Upstream => "upstream",
            Self::Rls => "rate_limit_service",
        }
    }
}

/// Process-wide, since these events are rare. By side and kind.
static COUNTS: [[AtomicCounter; Malformation::ALL.len()]; MalformedSide::ALL.len()] =
    [const { [const { AtomicCounter::new() }; Malformation::ALL.len()] }; MalformedSide::ALL.len()];

/// Counts the malformed streams of a connection, and logs them unless many were logged before.
pub fn record(side: MalformedSide, peer: impl Display, streams: &MalformedStreams) {
    for (what, count) in streams.counts() {
        let total = COUNTS[side as usize][what as usize].add_and_get(u64::from(count));
        if reaches_power_of_ten(total, u64::from(count)) {
            let (peer_kind, malformed) = (side.as_str(), what.as_str());
            tracing::warn!(
                peer_kind, %peer, malformed, total,
                "HTTP/2 stream reset: its message is malformed; the next line of this kind follows at ten times the total"
            );
        }
    }
}

/// Returns the number of streams by side and kind, without those that have not occurred.
pub fn counts() -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    MalformedSide::ALL
        .into_iter()
        .flat_map(|side| {
            let counts = Malformation::ALL.into_iter().zip(&COUNTS[side as usize]);
            counts.map(move |(what, count)| (side.as_str(), what.as_str(), count.get()))
        })
        .filter(|(_, _, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_counted_by_side_and_kind() {
        let mut streams = MalformedStreams::default();
        streams.record(Malformation::Trailers);
        streams.record(Malformation::Trailers);
        record(MalformedSide::Upstream, "10.0.0.1:80", &streams);
        assert!(counts().any(|(side, what, count)| (side, what) == ("upstream", "trailers") && count >= 2));
        assert!(counts().all(|(_, _, count)| count > 0));
    }
}
