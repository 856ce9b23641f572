//! Server-sent events: the subset of the format that `/events` uses, with a bound on the size of an event.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::timeout;

use super::AdminClientError;
use weir_net::connect::ServerAddress;

/// Maximum time without any data. Snapshots arrive once a second.
const MAX_SILENCE: Duration = Duration::from_secs(10);

/// Maximum size of one event, in bytes. A snapshot of 8000 rules has about 12 MiB.
const MAX_EVENT_SIZE: usize = 32 << 20;

/// An open stream of events.
#[derive(Debug)]
pub struct SnapshotStream {
    address: ServerAddress,
    body: Incoming,
    buffer: EventBuffer,
}

impl SnapshotStream {
    pub(super) fn new(address: ServerAddress, body: Incoming) -> Self {
        Self { address, body, buffer: EventBuffer::default() }
    }

    /// Returns the data of the next event named `snapshot`, or `None` when the server has ended the stream.
    ///
    /// # Errors
    /// See [`AdminClientError`].
    pub async fn next_snapshot(&mut self) -> Result<Option<String>, AdminClientError> {
        loop {
            if let Some(data) = self.buffer.take_snapshot() {
                return Ok(Some(data));
            }
            let frame = timeout(MAX_SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| AdminClientError::Timeout(self.address.clone()))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| {
                let address = self.address.clone();
                AdminClientError::Http { address, error }
            })?;
            self.buffer.add(&frame.into_data().unwrap_or_default())?;
        }
    }
}

/// Bytes received, from the beginning of an event.
#[derive(Debug, Default)]
struct EventBuffer {
    bytes: BytesMut,
    /// Bytes at the beginning that are known to contain no end of an event.
    searched: usize,
}

impl EventBuffer {
    fn add(&mut self, data: &[u8]) -> Result<(), AdminClientError> {
        if self.bytes.len().saturating_add(data.len()) > MAX_EVENT_SIZE {
            return Err(AdminClientError::TooLong);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Returns the data of the first complete `snapshot`; other events are discarded.
    fn take_snapshot(&mut self) -> Option<String> {
        while let Some(length) = self.event_length() {
            let event = String::from_utf8_lossy(&self.bytes[..length]).into_owned();
            self.bytes.advance(length);
            self.searched = 0;
            if let Some(data) = snapshot_data(&event) {
                return Some(data);
            }
        }
        None
    }

    /// Returns the length of the first event, with the empty line at its end.
    fn event_length(&mut self) -> Option<usize> {
        // An end may begin in what was searched: `\r\n\r\n` has four bytes.
        let from = self.searched.saturating_sub(3);
        let rest = &self.bytes[from..];
        let found = (0..rest.len()).find_map(|at| {
            let end = ["\n\n", "\r\n\r\n"].into_iter().find(|end| rest[at..].starts_with(end.as_bytes()))?;
            Some(from + at + end.len())
        });
        self.searched = self.bytes.len();
        found
    }
}

/// Returns the data of an event if it is named `snapshot`.
fn snapshot_data(event: &str) -> Option<String> {
    let values = |name: &'static str| {
        event.lines().filter_map(move |line| {
            let value = line.strip_prefix(name)?.strip_prefix(':')?;
            Some(value.strip_prefix(' ').unwrap_or(value))
        })
    };
    (values("event").next_back() == Some("snapshot")).then(|| values("data").collect::<Vec<_>>().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshots(chunks: &[&str]) -> Vec<String> {
        let mut buffer = EventBuffer::default();
        let mut found = Vec::new();
        for chunk in chunks {
            buffer.add(chunk.as_bytes()).unwrap();
            found.extend(std::iter::from_fn(|| buffer.take_snapshot()));
        }
        found
    }

    #[test]
    fn snapshots_are_found_in_any_division_of_the_stream() {
        let text = ": hello\n\nevent: snapshot\ndata: {\"a\":1}\n\nevent: other\ndata: x\n\nevent: snapshot\r\ndata:two\r\ndata: lines\r\n\r\n";
        let expected = ["{\"a\":1}", "two\nlines"];
        for size in 1..text.len() {
            let chunks: Vec<&str> =
                text.as_bytes().chunks(size).map(|chunk| std::str::from_utf8(chunk).unwrap()).collect();
            assert_eq!(snapshots(&chunks), expected, "chunks of {size}");
        }
    }

    #[test]
    fn unfinished_event_is_not_returned() {
        assert_eq!(snapshots(&["event: snapshot\ndata: {}\n"]), [""; 0]);
    }

    #[test]
    fn event_above_the_maximum_is_an_error() {
        let mut buffer = EventBuffer::default();
        let chunk = vec![b'x'; MAX_EVENT_SIZE];
        assert!(buffer.add(&chunk).is_ok());
        assert!(matches!(buffer.add(b"x"), Err(AdminClientError::TooLong)));
    }
}
