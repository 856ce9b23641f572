//! Bodies that the system moves from one socket to another through a pipe, without a copy in this process (`splice(2)`).
//!
//! What waits in a pipe is memory of the system, as what waits in a socket. So the pipes in use, and what each holds, are
//! bounded. A body that gets no pipe is copied.

use std::cell::{Cell, RefCell};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice};
use tokio::io::AsyncWrite;

/// Maximum bytes that a pipe holds. It may hold fewer: each part of a packet takes as much room as a page.
const MAX_SPLICED: usize = 256 * 1024;
/// Minimum room of a pipe. A user with many pipes gets smaller ones from the system (`pipe(7)`), which are not used.
const MIN_ROOM: usize = 64 * 1024;
/// Bodies of which fewer bytes are left are copied, which takes fewer system calls.
pub(super) const MIN_SPLICED: u64 = 16 * 1024;
/// Maximum pipes in use on a thread.
const MAX_PIPES: usize = 256;
/// Maximum empty pipes that a thread keeps for later.
const MAX_FREE_PIPES: usize = 16;

const FLAGS: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);

/// Pipes in use in the process.
static IN_PROCESS: AtomicUsize = AtomicUsize::new(0);
/// Maximum of [`IN_PROCESS`].
static MAX_IN_PROCESS: AtomicUsize = AtomicUsize::new(usize::MAX);

type FreePipes = Vec<Box<Pipe>>;

thread_local! {
    static ON_THREAD: Cell<usize> = const { Cell::new(0) };
    static FREE: RefCell<FreePipes> = const { RefCell::new(Vec::new()) };
}

/// Sets the maximum of pipes in use in the process. Each takes two file descriptors.
pub fn set_max_pipes(max: usize) {
    MAX_IN_PROCESS.store(max, Ordering::Relaxed);
}

#[derive(Debug)]
struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Bytes in the pipe.
    held: usize,
}

impl Pipe {
    fn create() -> io::Result<Box<Self>> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Not every user may have larger pipes than the usual ones.
        let _ = fcntl_setpipe_size(&writer, MAX_SPLICED);
        match fcntl_getpipe_size(&writer)? {
            MIN_ROOM.. => Ok(Box::new(Self { reader, writer, held: 0 })),
            _ => Err(io::ErrorKind::QuotaExceeded.into()),
        }
    }
}

/// A pipe in use. Boxed, because few messages need one.
#[derive(Debug)]
pub struct SplicePipe(
    /// `None` only before it is created, and during the drop.
    Option<Box<Pipe>>,
);

impl SplicePipe {
    /// Returns an empty pipe; `None` if too many are in use, or the system has none or does not splice.
    pub fn acquire() -> Option<Self> {
        if is_supported() { Self::acquire_unprobed() } else { None }
    }

    fn acquire_unprobed() -> Option<Self> {
        if ON_THREAD.get() >= MAX_PIPES {
            return None;
        }
        ON_THREAD.set(ON_THREAD.get() + 1);
        let in_process = IN_PROCESS.fetch_add(1, Ordering::Relaxed);
        // From here on, a drop takes back both counts.
        let mut pipe = Self(FREE.with_borrow_mut(Vec::pop));
        if in_process >= MAX_IN_PROCESS.load(Ordering::Relaxed) {
            return None;
        }
        if pipe.0.is_none() {
            pipe.0 = Some(Pipe::create().ok()?);
        }
        Some(pipe)
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
        self.drain_up_to(usize::MAX, socket)
    }

    fn drain_up_to(&mut self, max: usize, socket: &impl AsFd) -> io::Result<usize> {
        let Pipe { reader, held, .. } = self.pipe()?;
        let moved = splice(reader, None, socket, None, max.min(*held), FLAGS)?;
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

impl Drop for SplicePipe {
    fn drop(&mut self) {
        IN_PROCESS.fetch_sub(1, Ordering::Relaxed);
        // The thread may be ending, and its variables with it.
        let _ = ON_THREAD.try_with(|count| count.set(count.get().saturating_sub(1)));
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

/// Whether the system splices. Sandboxes that replace the system's calls may not have this one.
fn is_supported() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    let find_out = || match moves_a_byte() {
        Ok(()) => Some(true),
        Err(error) if is_unsupported(&error) => Some(false),
        // No descriptors, or no memory: found out at another time.
        Err(_) => None,
    };
    let known = KNOWN.get().copied().or_else(|| find_out().map(|found| *KNOWN.get_or_init(|| found)));
    known.unwrap_or(false)
}

/// Whether an error of [`SplicePipe::fill`] says that the system does not splice from such a socket.
pub fn is_unsupported(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported)
}

fn moves_a_byte() -> io::Result<()> {
    let (mut sender, source) = UnixStream::pair()?;
    let (target, _receiver) = UnixStream::pair()?;
    sender.write_all(b"?")?;
    let mut pipe = SplicePipe::acquire_unprobed().ok_or(io::ErrorKind::WouldBlock)?;
    pipe.fill(&source, 1)?;
    pipe.drain(&target).map(drop)
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
