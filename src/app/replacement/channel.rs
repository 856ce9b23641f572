//! The private socket: messages of a byte that names them, a length and a content, some with file descriptors.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use weir_net::fd_channel::{MAX_FDS, receive_with_fds, send_with_fds};

/// Time after which the other process counts as stuck if it reads nothing.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

/// Bytes before the content.
const HEADER_SIZE: usize = 5;

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// Old to new: what it is, and descriptions of its sockets, which follow.
    Hello = 1,
    /// Old to new: file descriptors, in the order of their descriptions.
    Descriptors = 2,
    /// Old to new: counters at the beginning, in case that it ends before the others.
    Counters = 3,
    /// New to old: it can serve.
    Prepared = 4,
    /// Old to new: reservations of requests in flight. The counters follow.
    Holds = 5,
    /// Old to new: overrides of operators, and limits that were learned.
    Learned = 6,
    /// New to old: it serves.
    Serving = 7,
    /// Old to new: a charge that has come late.
    Late = 8,
    /// Old to new: a response that is stored for a fallback. Its body follows.
    Stored = 9,
    /// Old to new: the body of a stored response.
    Body = 10,
    /// New to old: it drains, so the listeners of both have to close.
    Ending = 11,
}

/// One end of the private socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    /// Descriptors that have arrived.
    pub(super) descriptors: Vec<OwnedFd>,
}

impl MessageKind {
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Descriptors,
        Self::Counters,
        Self::Prepared,
        Self::Holds,
        Self::Learned,
        Self::Serving,
        Self::Late,
        Self::Stored,
        Self::Body,
        Self::Ending,
    ];

    fn from_byte(byte: u8) -> io::Result<Self> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u8 == byte);
        known.ok_or_else(|| io::Error::other(format!("unknown message {byte}")))
    }
}

impl Channel {
    /// # Errors
    /// The error of the system.
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
        Ok(Self { socket, descriptors: Vec::new() })
    }

    /// Returns another handle of this end.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Self::new(self.socket.try_clone()?)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, kind: MessageKind, content: &[u8]) -> io::Result<()> {
        let written =
            self.socket.write_all(&header(kind, content)?).and_then(|()| self.socket.write_all(content));
        written.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Sends file descriptors, in as many messages as they need.
    pub(super) fn send_descriptors(&mut self, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        for some in descriptors.chunks(MAX_FDS) {
            let header = header(MessageKind::Descriptors, &[])?;
            let sent = send_with_fds(self.socket.as_fd(), &header, some)?;
            self.socket.write_all(&header[sent..])?;
        }
        Ok(())
    }

    /// Waits for a message of this kind, and returns its content.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other process has ended, or what else is wrong.
    pub(super) fn expect(&mut self, kind: MessageKind, timeout: Duration) -> io::Result<Vec<u8>> {
        self.socket.set_read_timeout(Some(timeout))?;
        match self.receive()? {
            Some((received, content)) if received == kind => Ok(content),
            Some((other, _)) => Err(io::Error::other(format!("expected {kind:?}, received {other:?}"))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether a message has arrived, or the other process has ended.
    pub(super) fn has_message(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.socket, PollFlags::IN)];
        matches!(poll(&mut descriptors, Some(&Timespec::default())), Ok(ready) if ready > 0)
    }

    /// Waits for the next message without a limit; `None` if the other process has ended.
    pub(super) fn next(&mut self) -> io::Result<Option<(MessageKind, Vec<u8>)>> {
        self.socket.set_read_timeout(None)?;
        self.receive()
    }

    fn receive(&mut self) -> io::Result<Option<(MessageKind, Vec<u8>)>> {
        let mut header = [0; HEADER_SIZE];
        if !self.fill(&mut header)? {
            return Ok(None);
        }
        let [kind, length @ ..] = header;
        let mut content = vec![0; u32::from_le_bytes(length) as usize];
        match self.fill(&mut content)? {
            true => Ok(Some((MessageKind::from_byte(kind)?, content))),
            false => Ok(None),
        }
    }

    /// Fills `bytes`; returns false if the other process has ended before.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            match receive_with_fds(self.socket.as_fd(), &mut bytes[filled..], &mut self.descriptors) {
                Ok(0) => return Ok(false),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The other process has ended with unread messages.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

/// Whether an error of the channel is that the other process has ended.
pub(super) fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn header(kind: MessageKind, content: &[u8]) -> io::Result<[u8; HEADER_SIZE]> {
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    let [a, b, c, d] = length.to_le_bytes();
    Ok([kind as u8, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn messages_arrive_in_order_with_all_descriptors() {
        let (old, new) = UnixStream::pair().unwrap();
        let (mut old, mut new) = (Channel::new(old).unwrap(), Channel::new(new).unwrap());
        let many = vec![0_u8; 1 << 20];
        let sending = std::thread::spawn(move || {
            let (one, _other) = UnixStream::pair().unwrap();
            old.send(MessageKind::Hello, b"{}").unwrap();
            old.send_descriptors(&vec![one.as_fd(); MAX_FDS + 50]).unwrap();
            old.send(MessageKind::Counters, &many).unwrap();
        });
        assert_eq!(new.expect(MessageKind::Hello, TIMEOUT).unwrap(), b"{}");
        assert!(new.expect(MessageKind::Descriptors, TIMEOUT).unwrap().is_empty());
        assert!(new.expect(MessageKind::Descriptors, TIMEOUT).unwrap().is_empty());
        assert_eq!(new.expect(MessageKind::Counters, TIMEOUT).unwrap().len(), 1 << 20);
        assert_eq!(new.descriptors.len(), MAX_FDS + 50);
        sending.join().unwrap();
        let ended = new.expect(MessageKind::Holds, TIMEOUT).unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn process_that_does_not_answer_is_given_up() {
        let (old, _new) = UnixStream::pair().unwrap();
        let waited = Channel::new(old).unwrap().expect(MessageKind::Prepared, Duration::from_millis(1));
        assert_eq!(waited.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
