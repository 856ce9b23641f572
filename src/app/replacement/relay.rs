//! Signals beside the process that replaces this one: which of them it gets, and when.

use nix::sys::signal::Signal;
use parking_lot::Mutex;
use rustix::process::Pid;

use crate::app::signals::{is_termination, send};

/// Passes signals on to the process that serves.
#[derive(Debug, Default)]
pub(in crate::app) struct Relay(Mutex<RelayState>);

#[derive(Debug, Default)]
struct RelayState {
    stage: SuccessorStage,
    /// Whether the service is to end.
    is_terminating: bool,
    /// The process that was told to end. A second time would cut its drain short.
    told: Option<Pid>,
    /// Whether a process that does not serve yet has missed a signal to open its log again.
    has_missed_user_signal: bool,
}

/// State of the other process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SuccessorStage {
    #[default]
    None,
    /// It is being created.
    Spawning,
    /// It reads its configuration. It is killed if the service is to end.
    Preparing(Pid),
    /// It takes over, and learns of an end once it serves.
    TakingOver(Pid),
    /// It serves. Signals are passed on unless a service manager sends them there.
    Serving { process: Pid, passes_signals: bool },
}

impl Relay {
    /// Acts on a signal of this process.
    pub(in crate::app) fn pass(&self, signal: Signal) {
        let mut state = self.0.lock();
        match state.stage {
            SuccessorStage::Serving { process, passes_signals: true } => {
                send(process, signal);
                if is_termination(signal) {
                    (state.is_terminating, state.told) = (true, Some(process));
                }
            }
            _ if is_termination(signal) => state.terminate(),
            SuccessorStage::Preparing(_) | SuccessorStage::TakingOver(_) => {
                state.has_missed_user_signal |= signal == Signal::SIGUSR1;
            }
            SuccessorStage::None | SuccessorStage::Spawning | SuccessorStage::Serving { .. } => {}
        }
    }

    /// Notes that another process is about to be created; false if the service is to end.
    pub(super) fn begin(&self) -> bool {
        let mut state = self.0.lock();
        if !state.is_terminating {
            (state.stage, state.has_missed_user_signal) = (SuccessorStage::Spawning, false);
        }
        !state.is_terminating
    }

    /// Notes that the other process has been created.
    pub(super) fn prepares(&self, process: u32) {
        let mut state = self.0.lock();
        state.stage = pid(process).map_or(SuccessorStage::None, SuccessorStage::Preparing);
        if state.is_terminating {
            state.terminate();
        }
    }

    /// Notes that the other process takes over from here on; false if the service is to end.
    pub(super) fn takes_over(&self) -> bool {
        let mut state = self.0.lock();
        match state.stage {
            SuccessorStage::Preparing(process) if !state.is_terminating => {
                state.stage = SuccessorStage::TakingOver(process)
            }
            _ => return false,
        }
        true
    }

    /// Notes that the other process serves. `passes_signals` is whether no service manager sends signals there.
    pub(super) fn serves(&self, process: u32, passes_signals: bool) {
        let mut state = self.0.lock();
        let Some(process) = pid(process) else { return };
        state.stage = SuccessorStage::Serving { process, passes_signals };
        if std::mem::take(&mut state.has_missed_user_signal) && passes_signals {
            send(process, Signal::SIGUSR1);
        }
        if state.is_terminating {
            state.terminate();
        }
    }

    /// Notes that the other process has ended.
    pub(super) fn has_ended(&self) {
        self.0.lock().stage = SuccessorStage::None;
    }

    /// Ends the service: a process that is being started is killed, and one that serves drains.
    pub(in crate::app) fn terminate(&self) {
        self.0.lock().terminate();
    }

    /// Whether the service is to end.
    pub(super) fn is_terminating(&self) -> bool {
        self.0.lock().is_terminating
    }

    /// Whether the other process does not serve yet.
    pub(super) fn is_starting(&self) -> bool {
        matches!(
            self.0.lock().stage,
            SuccessorStage::Spawning | SuccessorStage::Preparing(_) | SuccessorStage::TakingOver(_)
        )
    }

    /// Returns the process that was told to end, if the service is to end; zero if none was.
    pub(super) fn told(&self) -> Option<i32> {
        let state = self.0.lock();
        state.is_terminating.then(|| state.told.map_or(0, Pid::as_raw_pid))
    }
}

impl RelayState {
    fn terminate(&mut self) {
        self.is_terminating = true;
        match self.stage {
            SuccessorStage::Preparing(process) => send(process, Signal::SIGKILL),
            SuccessorStage::Serving { process, .. } if self.told != Some(process) => {
                send(process, Signal::SIGTERM);
                self.told = Some(process);
            }
            SuccessorStage::None
            | SuccessorStage::Spawning
            | SuccessorStage::TakingOver(_)
            | SuccessorStage::Serving { .. } => {}
        }
    }
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}
