//! Messages with file descriptors between two processes (`unix(7)`, `SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};

/// Maximum file descriptors of a message. The kernel's is 253.
pub const MAX_FDS: usize = 200;

/// Maximum bytes of a message about a connection, with what the client has sent.
pub const MAX_CONNECTION_MESSAGE: usize = 96 * 1024;

/// Time for which a worker may wait until the other process takes a connection.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends `bytes`, at least one, and `fds` over a Unix stream. The descriptors arrive with the first byte.
///
/// # Errors
/// The error of the system.
pub fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many file descriptors in a message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives at most `buffer.len()` bytes, and appends the descriptors that arrive with them to `fds`. Returns the number of
/// bytes; 0 if the other side has closed.
///
/// # Errors
/// The error of the system.
pub fn receive_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok(received.bytes)
}

/// Sends connections to the other process.
#[derive(Debug)]
pub struct ConnectionSender(OwnedFd);

/// Receives connections of the other process.
#[derive(Debug)]
pub struct ConnectionReceiver(OwnedFd);

/// Returns both ends of a channel for connections.
///
/// # Errors
/// The error of the system.
pub fn connection_channel() -> io::Result<(ConnectionSender, ConnectionReceiver)> {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&one, sockopt::Timeout::Send, Some(SEND_TIMEOUT))?;
    Ok((ConnectionSender(one), ConnectionReceiver(other)))
}

impl ConnectionSender {
    /// Sends a connection, described by `message`.
    ///
    /// # Errors
    /// The error of the system; `WouldBlock` if the other process has not taken it in time.
    pub fn send(&self, message: &[u8], connection: BorrowedFd<'_>) -> io::Result<()> {
        send_with_fds(self.0.as_fd(), message, &[connection]).map(drop)
    }
}

impl ConnectionReceiver {
    /// Waits for the next connection; `None` once the other process has closed the channel.
    ///
    /// # Errors
    /// The error of the system.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> io::Result<Option<OwnedFd>> {
        let mut fds = Vec::new();
        buffer.resize(MAX_CONNECTION_MESSAGE, 0);
        let length = receive_with_fds(self.0.as_fd(), buffer, &mut fds)?;
        buffer.truncate(length);
        match (length, fds.pop()) {
            (0, _) => Ok(None),
            (_, Some(connection)) => Ok(Some(connection)),
            (_, None) => {
                Err(io::Error::other("a message without its connection, for lack of file descriptors"))
            }
        }
    }
}

impl AsFd for ConnectionReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for ConnectionReceiver {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn connections_arrive_one_by_one_with_their_messages() {
        let (sender, receiver) = connection_channel().unwrap();
        let (mut client, server) = UnixStream::pair().unwrap();
        sender.send(b"first", server.as_fd()).unwrap();
        sender.send(b"second", client.as_fd()).unwrap();
        drop((sender, server));
        let mut message = Vec::new();
        let mut moved = UnixStream::from(receiver.receive(&mut message).unwrap().unwrap());
        assert_eq!(message, b"first");
        client.write_all(b"hello").unwrap();
        let mut received = [0; 5];
        moved.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"hello");
        assert!(receiver.receive(&mut message).unwrap().is_some());
        assert_eq!(message, b"second");
        assert!(receiver.receive(&mut message).unwrap().is_none(), "the channel is closed");
    }

    #[test]
    fn many_descriptors_arrive_with_their_bytes() {
        let (one, other) = UnixStream::pair().unwrap();
        let fds = vec![one.as_fd(); MAX_FDS];
        assert_eq!(send_with_fds(one.as_fd(), b"x", &fds).unwrap(), 1);
        let mut received = Vec::new();
        assert_eq!(receive_with_fds(other.as_fd(), &mut [0; 8], &mut received).unwrap(), 1);
        assert_eq!(received.len(), MAX_FDS);
    }
}
