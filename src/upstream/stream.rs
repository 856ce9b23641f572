//! Handing small messages to the kernel in one piece.
//!
//! HTTP writes a message's head and body from two places. Gathering them in the kernel costs more than copying
//! a few hundred bytes here; for large ones it is the other way round.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

/// What is copied together rather than gathered.
const SMALL: usize = 1024;

/// Writes what `parts` hold, or the beginning of it, with the cheaper of the two calls.
pub fn poll_write_together(
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
