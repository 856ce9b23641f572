//! Signals of the process: one thread reads them, and no handler runs.
//!
//! A handler ends with its program, and with it what it has noted, when the process goes on as the supervisor. A signal that
//! nothing has read yet stays pending instead, and the supervisor gets it. Requests to reload wait during the start as well.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use tokio::sync::Notify;

use super::AppError;
use super::replacement::Relay;
use super::thread;
use weir_net::thread::StartedThread;

/// Time for the thread to pass on what it has just read.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread that reads signals.
#[derive(Debug)]
pub(super) struct SignalThread {
    thread: StartedThread,
    /// Closed for the thread to end.
    stop: Mutex<Option<UnixStream>>,
}

/// Signals that were read. Those of one kind are one until they are handled.
#[derive(Debug, Default)]
pub(super) struct ReceivedSignals {
    terminate: Notify,
    interrupt: Notify,
    pub(super) hangup: Notify,
    pub(super) user: Notify,
    pub(super) replace: Notify,
    /// Whether a signal that ends the process is handled. Until then it has its default effect.
    is_end_handled: AtomicBool,
}

/// Whether the signal ends the process.
pub(super) fn is_termination(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT)
}

/// Ends this process as if the signal had no handler. Returns only if that fails.
fn end_by(signal: Signal) {
    let _ = SigSet::from(signal).thread_unblock().and_then(|()| raise(signal));
}

/// Returns the signals that are read.
pub(super) fn handled() -> SigSet {
    use Signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2].into_iter().collect()
}

impl SignalThread {
    /// Blocks the signals in this thread and all that start from here on, and starts to read them. Each goes to `relay` first.
    ///
    /// # Errors
    /// If the system refuses a mask, a descriptor or a thread.
    pub(super) fn start(relay: &Arc<Relay>) -> Result<(Self, Arc<ReceivedSignals>), AppError> {
        let open = || -> io::Result<_> {
            handled().thread_block()?;
            Ok((SignalFd::with_flags(&handled(), SfdFlags::SFD_CLOEXEC)?, UnixStream::pair()?))
        };
        let (signals, (stop, stopped)) = open().map_err(AppError::system("cannot listen for signals"))?;
        let received = Arc::new(ReceivedSignals::default());
        let (relay, notified) = (Arc::clone(relay), Arc::clone(&received));
        let read = move || {
            while let Some(signal) = next(&signals, &stopped) {
                if is_termination(signal) && !notified.is_end_handled.load(Ordering::Relaxed) {
                    end_by(signal);
                }
                relay.pass(signal);
                notified.notify(signal);
            }
        };
        let thread = thread::start("signals", read)?;
        Ok((Self { thread, stop: Mutex::new(Some(stop)) }, received))
    }

    /// Stops reading. What was read has been passed on then; what was not stays pending.
    pub(super) fn stop(&self) {
        drop(self.stop.lock().take());
        self.thread.wait_for_end(STOP_TIMEOUT);
    }
}

/// Waits for a signal; `None` once the other end of `stopped` is closed.
fn next(signals: &SignalFd, stopped: &UnixStream) -> Option<Signal> {
    loop {
        let mut descriptors =
            [PollFd::new(signals, PollFlags::IN), PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN)];
        retry_on_intr(|| poll(&mut descriptors, None)).ok()?;
        if !descriptors[1].revents().is_empty() {
            return None;
        }
        // Others cannot arrive.
        let read = signals.read_signal().ok()??;
        if let Some(signal) =
            i32::try_from(read.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok())
        {
            return Some(signal);
        }
    }
}

impl ReceivedSignals {
    fn notify(&self, signal: Signal) {
        let notify = match signal {
            Signal::SIGTERM => &self.terminate,
            Signal::SIGINT => &self.interrupt,
            Signal::SIGHUP => &self.hangup,
            Signal::SIGUSR1 => &self.user,
            Signal::SIGUSR2 => &self.replace,
            _ => return,
        };
        notify.notify_one();
    }

    /// From here on, a signal that ends the process waits until it is handled.
    pub(super) fn handle_end(&self) {
        self.is_end_handled.store(true, Ordering::Relaxed);
    }

    /// Waits for a signal that ends the process, and returns its name.
    pub(super) async fn termination(&self) -> &'static str {
        tokio::select! {
            () = self.terminate.notified() => "SIGTERM",
            () = self.interrupt.notified() => "SIGINT",
        }
    }
}
