//! Bodies that the system moves from one socket to another through a pipe, without a copy in this process (`splice(2)`).
//!
//! What waits in a pipe is memory of the system, as what waits in a socket. So the pipes of a thread, and what each holds, are
//! bounded. A body that gets no pipe is copied.

use std::cell::{Cell, RefCell};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::task::{Context, Poll};

use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::AsyncWrite;

/// Maximum bytes that a pipe holds.
pub const MAX_SPLICED: usize = 256 * 1024;
/// Bodies of which fewer bytes are left are copied, which takes fewer system calls.
pub(super) const MIN_SPLICED: u64 = 16 * 1024;
/// Maximum pipes in use on a thread.
const MAX_PIPES: usize = 256;
/// Maximum empty pipes that a thread keeps for later.
const MAX_FREE_PIPES: usize = 16;

type FreePipes = Vec<Box<Pipe>>;

thread_local! {
    static IN_USE: Cell<usize> = const { Cell::new(0) };
    static FREE: RefCell<FreePipes> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
}

/// A pipe in use. Boxed, because few messages need one.
#[derive(Debug)]
pub struct SplicePipe(
    /// `None` only during the drop.
    Option<Box<Pipe>>,
);

impl SplicePipe {
    /// Returns an empty pipe; `None` if too many are in use, or the system has none or does not splice.
    pub fn acquire() -> Option<Self> {
        static IS_SUPPORTED: LazyLock<bool> = LazyLock::new(|| moves_a_byte().is_ok());
        if *IS_SUPPORTED { Self::acquire_unchecked() } else { None }
    }

    fn acquire_unchecked() -> Option<Self> {
        if IN_USE.get() >= MAX_PIPES {
            return None;
        }
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let create =
            || pipe_with(flags).ok().map(|(reader, writer)| Box::new(Pipe { reader, writer, held: 0 }));
        let pipe = FREE.with_borrow_mut(Vec::pop).or_else(create)?;
        IN_USE.set(IN_USE.get() + 1);
        Some(Self(Some(pipe)))
    }

    /// Moves at most `max` bytes that have arrived on `socket` into the pipe, which must be empty. Returns how many, 0 at the
    /// end of the stream.
    ///
    /// # Errors
    /// The error of the system, and [`io::ErrorKind::WouldBlock`] if nothing has arrived.
    pub fn fill(&mut self, socket: &impl AsFd, max: usize) -> io::Result<usize> {
        let Pipe { writer, held, .. } = self.pipe()?;
        let moved = splice(socket, None, writer, None, max.min(MAX_SPLICED), FLAGS)?;
        *held += moved;
        Ok(moved)
    }

    /// Moves as much as `socket` takes out of the pipe, which must not be empty. Returns how many bytes.
    ///
    /// # Errors
    /// The error of the system, and [`io::ErrorKind::WouldBlock`] if the socket takes nothing.
    pub fn drain(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        let Pipe { reader, held, .. } = self.pipe()?;
        let moved = splice(reader, None, socket, None, *held, FLAGS)?;
        *held = held.saturating_sub(moved);
        Ok(moved)
    }

    /// Returns the number of bytes in the pipe.
    pub fn held(&self) -> usize {
        self.0.as_ref().map_or(0, |pipe| pipe.held)
    }

    fn pipe(&mut self) -> io::Result<&mut Pipe> {
        self.0.as_deref_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

/// Moves a byte between two sockets. Sandboxes that replace the system's calls may not have this one.
fn moves_a_byte() -> io::Result<()> {
    let (mut sender, source) = UnixStream::pair()?;
    let (target, _receiver) = UnixStream::pair()?;
    sender.write_all(b"?")?;
    let mut pipe = SplicePipe::acquire_unchecked().ok_or(io::ErrorKind::Unsupported)?;
    pipe.fill(&source, 1)?;
    pipe.drain(&target).map(drop)
}

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

impl Drop for SplicePipe {
    fn drop(&mut self) {
        // The thread may be ending, and its variables with it.
        let _ = IN_USE.try_with(|count| count.set(count.get().saturating_sub(1)));
        // What is left belongs to this message, so the pipe ends with it.
        let empty = self.0.take_if(|pipe| pipe.held == 0);
        let _ = FREE.try_with(|free| {
            if let Ok(mut free) = free.try_borrow_mut()
                && free.len() < MAX_FREE_PIPES
            {
                free.extend(empty);
            }
        });
    }
}

/// Destination of a message.
pub trait SpliceTarget: AsyncWrite + Unpin {
    /// Whether the target takes bytes from a pipe.
    fn takes_pipes(&self) -> bool {
        false
    }

    /// Moves bytes out of a pipe that is not empty, and returns how many.
    ///
    /// # Errors
    /// The error of the connection.
    fn poll_drain(&mut self, _pipe: &mut SplicePipe, _cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}

/// Outcome of an attempt to splice: a pipe that is empty at the end of the stream, or `None` if the next bytes have to be
/// copied.
pub type Spliced<E> = Option<Poll<Result<SplicePipe, E>>>;

#[cfg(test)]
mod tests;
