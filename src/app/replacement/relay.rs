//! Signals of a process that has been replaced: which of them the new process gets.

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rustix::process::{Pid, kill_process};

use crate::app::signals::is_termination;

/// Passes signals on to the process that serves.
#[derive(Debug, Default)]
pub(in crate::app) struct Relay(Mutex<RelayState>);

#[derive(Debug, Default)]
struct RelayState {
    /// The process that serves or is being started, if it is another one.
    target: Option<Pid>,
    /// Whether signals go there: it serves, and no service manager sends them to it.
    is_parent: bool,
    /// Whether the service is to end.
    is_terminating: bool,
    /// The process that was told to end. A second time would cut its drain short.
    told: Option<Pid>,
}

impl Relay {
    /// Passes a signal on, if another process serves.
    pub(in crate::app) fn pass(&self, signal: Signal) {
        let mut state = self.0.lock();
        state.is_terminating |= is_termination(signal);
        let Some(target) = state.target.filter(|_| state.is_parent) else { return };
        send(target, signal);
        if is_termination(signal) {
            state.told = Some(target);
        }
    }

    /// Goes on with this process; zero is none. `is_parent` is whether later signals go there. If the service is to end, the
    /// process learns it now.
    pub(super) fn redirect(&self, process: u32, is_parent: bool) {
        let mut state = self.0.lock();
        state.target = i32::try_from(process).ok().and_then(Pid::from_raw);
        state.is_parent = is_parent;
        state.tell();
    }

    /// Ends the service, with the process that serves or is being started.
    pub(super) fn terminate(&self) {
        let mut state = self.0.lock();
        state.is_terminating = true;
        state.tell();
    }

    /// Whether the service is to end.
    pub(super) fn is_terminating(&self) -> bool {
        self.0.lock().is_terminating
    }

    /// Returns the process that was told to end, if the service is to end; zero if none was.
    pub(super) fn told(&self) -> Option<i32> {
        let state = self.0.lock();
        state.is_terminating.then(|| state.told.map_or(0, Pid::as_raw_pid))
    }
}

impl RelayState {
    fn tell(&mut self) {
        if let Some(target) = self.target.filter(|target| self.is_terminating && self.told != Some(*target)) {
            send(target, Signal::SIGTERM);
            self.told = Some(target);
        }
    }
}

/// Fails only if the process has ended.
fn send(process: Pid, signal: Signal) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal as i32) {
        let _ = kill_process(process, signal);
    }
}
