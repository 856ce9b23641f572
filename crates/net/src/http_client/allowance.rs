//! What may be read of a connection for one request, including what the HTTP library skips.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::transport::ReadBound;

/// Bytes that may still be read. All clones are one allowance.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadAllowance(Arc<AtomicUsize>);

impl ReadAllowance {
    /// Allows this number of bytes from now on.
    pub(super) fn renew(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

impl ReadBound for ReadAllowance {
    fn count(&mut self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Ordering::Relaxed).checked_sub(bytes);
        let left = left.ok_or_else(|| io::Error::other("the response is too large"))?;
        self.0.store(left, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::transport::BoundedStream;

    #[tokio::test]
    async fn reading_fails_once_the_allowance_is_spent() {
        let allowance = ReadAllowance::default();
        allowance.renew(10);
        let (mut server, client) = tokio::io::duplex(100);
        let mut client = BoundedStream::new(client, allowance.clone());
        server.write_all(&[0; 100]).await.unwrap();
        let mut read = [0; 10];
        client.read_exact(&mut read).await.unwrap();
        assert!(client.read_u8().await.is_err());
        allowance.renew(10);
        assert!(client.read_u8().await.is_ok(), "the next exchange");
    }
}
