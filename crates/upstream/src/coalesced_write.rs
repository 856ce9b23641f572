//! Writes small messages with a single buffer.
//!
//! HTTP writes a message's header section and body from two buffers. For a few hundred bytes, copying them is cheaper
//! than a vectored write; for large ones it is the other way round.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// Maximum total size of buffers that are copied, in bytes.
const SMALL: usize = 1024;

/// Writes all or the first part of `parts`, with the cheaper of the two methods.
pub fn poll_write_coalesced(
    stream: Pin<&mut impl AsyncWrite>,
    cx: &mut Context<'_>,
    parts: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [only] = parts {
        return stream.poll_write(cx, only);
    }
    let total: usize = parts.iter().map(|part| part.len()).sum();
    if total > SMALL {
        return stream.poll_write_vectored(cx, parts);
    }
    let mut together = [0; SMALL];
    let mut filled = 0;
    for part in parts {
        together[filled..filled + part.len()].copy_from_slice(part);
        filled += part.len();
    }
    stream.poll_write(cx, &together[..filled])
}
