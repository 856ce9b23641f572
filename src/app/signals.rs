//! Signals of the process: one thread reads them, and no handler runs.
//!
//! A handler ends with its program, and with it what it has noted, when the process goes on as the supervisor. A signal that
//! nothing has read yet stays pending instead, and the supervisor gets it. Requests to reload wait during the start as well.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, getppid, kill_process};
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
    stop: UnixStream,
}

/// Reads the signals that are blocked in all threads.
#[derive(Debug)]
pub(super) struct SignalReader(SignalFd);

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
    ends: Mutex<EndSignals>,
}

/// Signals to end, by where they come from. A signal for a whole group of processes also comes from the parent, which passes
/// it on: both are one.
#[derive(Debug, Default)]
struct EndSignals {
    from_parent: u32,
    from_others: u32,
}

/// A signal that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadSignal {
    pub(super) signal: Signal,
    is_from_parent: bool,
}

/// Returns the signals that Weir handles.
pub(super) fn handled() -> SigSet {
    use Signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
    [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2].into_iter().collect()
}

/// Whether the signal ends the process.
pub(super) fn is_termination(signal: Signal) -> bool {
    matches!(signal, Signal::SIGTERM | Signal::SIGINT)
}

/// Sends a signal. That fails only if the process has ended.
pub(super) fn send(process: Pid, signal: Signal) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
        let _ = kill_process(process, signal);
    }
}

/// Ends this process as if the signal had no handler. Returns if that is without effect, as for process 1.
fn end_by(signal: Signal) {
    let mask = SigSet::from(signal);
    let _ = mask.thread_unblock().and_then(|()| raise(signal)).and_then(|()| mask.thread_block());
}

impl SignalReader {
    /// Blocks these signals in this thread and all that start from here on, to read them.
    ///
    /// # Errors
    /// If the system refuses the mask or a descriptor.
    pub(super) fn open(signals: &SigSet) -> io::Result<Self> {
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC)?))
    }

    /// Waits for a signal, at most for `timeout`; `None` if there is none, or once the other end of `stopped` is closed.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn read(
        &self,
        timeout: Option<Duration>,
        stopped: Option<&UnixStream>,
    ) -> io::Result<Option<ReadSignal>> {
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let of_reader = PollFd::new(&self.0, PollFlags::IN);
        let of_stop = stopped.map(|stopped| PollFd::from_borrowed_fd(stopped.as_fd(), PollFlags::IN));
        let mut descriptors: Vec<_> = [of_reader].into_iter().chain(of_stop).collect();
        retry_on_intr(|| poll(&mut descriptors, timeout.as_ref()))?;
        let is_stopped = descriptors.get(1).is_some_and(|stop| !stop.revents().is_empty());
        if is_stopped || descriptors[0].revents().is_empty() {
            return Ok(None);
        }
        let Some(read) = self.0.read_signal()? else { return Ok(None) };
        let signal = Signal::try_from(i32::try_from(read.ssi_signo).unwrap_or_default())?;
        let sender = i32::try_from(read.ssi_pid).ok().and_then(Pid::from_raw);
        Ok(Some(ReadSignal { signal, is_from_parent: sender.is_some() && sender == getppid() }))
    }
}

impl SignalThread {
    /// Starts to read the signals that are handled. Each goes to `relay` first.
    ///
    /// # Errors
    /// If the system refuses a mask, a descriptor or a thread.
    pub(super) fn start(relay: &Arc<Relay>) -> Result<(Self, Arc<ReceivedSignals>), AppError> {
        let open = || -> io::Result<_> { Ok((SignalReader::open(&handled())?, UnixStream::pair()?)) };
        let (reader, (stop, stopped)) = open().map_err(AppError::system("cannot listen for signals"))?;
        let received = Arc::new(ReceivedSignals::default());
        let (relay, notified) = (Arc::clone(relay), Arc::clone(&received));
        let read = move || loop {
            match reader.read(None, Some(&stopped)) {
                Ok(Some(read)) => notified.handle(read, &relay),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read signals: only SIGKILL ends this process");
                    return;
                }
            }
        };
        let thread = thread::start("signals", read)?;
        Ok((Self { thread, stop }, received))
    }

    /// Stops reading. What was read has been passed on then; what was not stays pending.
    pub(super) fn stop(self) {
        drop(self.stop);
        self.thread.wait_for_end(STOP_TIMEOUT);
    }
}

impl ReceivedSignals {
    fn handle(&self, read: ReadSignal, relay: &Relay) {
        if is_termination(read.signal) && !self.is_end_handled.load(Ordering::Relaxed) {
            end_by(read.signal);
        }
        if !is_termination(read.signal) || self.ends.lock().is_another(read.is_from_parent) {
            relay.pass(read.signal);
            self.notify(read.signal);
        }
    }

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

impl EndSignals {
    /// Counts a signal, and returns whether it is not one that has come the other way already.
    fn is_another(&mut self, is_from_parent: bool) -> bool {
        let before = self.from_parent.max(self.from_others);
        let count = if is_from_parent { &mut self.from_parent } else { &mut self.from_others };
        *count = count.saturating_add(1);
        *count > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_that_comes_both_ways_counts_once() {
        let mut ends = EndSignals::default();
        assert_eq!(
            [true, false, false, true].map(|from_parent| ends.is_another(from_parent)),
            [true, false, true, false]
        );
        let mut ends = EndSignals::default();
        assert_eq!([true, true, false].map(|from_parent| ends.is_another(from_parent)), [true, true, false]);
    }
}
