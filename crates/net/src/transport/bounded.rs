//! A stream from which a bounded number of bytes is read for each exchange.
//!
//! The limit of a body does not count what the HTTP library skips, such as interim responses, which a server could
//! send without end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that may still be read from a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadAllowance(Arc<AtomicUsize>);

impl ReadAllowance {
    /// Allows this number of bytes from now on.
    pub(super) fn renew(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Ordering::Relaxed).checked_sub(bytes);
        let left = left.ok_or_else(|| io::Error::other("the response is too large"))?;
        self.0.store(left, Ordering::Relaxed);
        Ok(())
    }
}

/// A stream whose reads spend an allowance.
#[derive(Debug)]
pub(super) struct BoundedStream<T> {
    stream: T,
    allowance: ReadAllowance,
}

impl<T> BoundedStream<T> {
    pub(super) fn new(stream: T, allowance: &ReadAllowance) -> Self {
        Self { stream, allowance: allowance.clone() }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for BoundedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.allowance.spend(buffer.filled().len() - before))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for BoundedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn reading_fails_once_the_allowance_is_spent() {
        let allowance = ReadAllowance::default();
        allowance.renew(10);
        let (mut server, client) = tokio::io::duplex(100);
        let mut client = BoundedStream::new(client, &allowance);
        server.write_all(&[0; 100]).await.unwrap();
        let mut read = [0; 10];
        client.read_exact(&mut read).await.unwrap();
        assert!(client.read_u8().await.is_err());
        allowance.renew(10);
        assert!(client.read_u8().await.is_ok(), "the next exchange");
    }
}
