//! What remains of the first process once another one serves: it passes signals on, and ends with the last process.
//!
//! A container, a shell or another supervisor watches the process that it has started. So that one stays, as the parent of
//! those that follow, with the memory of a program that does nothing. systemd needs none: it learns the number of the new
//! process.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, set_child_subreaper, wait};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::relay::Relay;
use super::{OWN_BINARY, VARIABLE};
use crate::app::signals;

/// Variable that tells the program to be the supervisor. If processes are to end, its value is the number of the one that
/// knows it, or zero.
const SUPERVISES: &str = "WEIR_SUPERVISES";

/// Interval at which it looks for processes that have become its children.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether this process has to stay: it was not started by another one to be its successor, and no service manager follows
/// the process that serves.
pub(super) fn is_needed() -> bool {
    let is_first = std::env::var_os(VARIABLE).is_none();
    // A container ends with its first process, also if a service manager is notified.
    is_first && (rustix::process::getpid().is_init() || std::env::var_os("NOTIFY_SOCKET").is_none())
}

/// Makes this process the parent of all that follow, when theirs end.
pub(super) fn adopt_successors() {
    if let Err(error) = set_child_subreaper(Some(rustix::process::getpid())) {
        tracing::warn!(%error, "cannot become the parent of later processes: signals will not reach them");
    }
}

/// Replaces the program of this process by the supervisor, with what `relay` knows of the signals so far. Returns only if
/// that fails.
pub(super) fn become_supervisor(relay: &Relay) -> io::Error {
    let told = relay.told().map(|process| process.to_string());
    let mut arguments = std::env::args_os();
    let mut command = Command::new(OWN_BINARY);
    command.arg0(arguments.next().unwrap_or_else(|| "weir".into())).args(arguments);
    command.env(SUPERVISES, told.unwrap_or_default()).exec()
}

/// The signals that are passed on.
struct PassedSignals {
    terminate: Signals,
    interrupt: Signals,
    hangup: Signals,
    first: Signals,
    second: Signals,
}

impl PassedSignals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            first: signal(SignalKind::user_defined1())?,
            second: signal(SignalKind::user_defined2())?,
        })
    }

    async fn recv(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.hangup.recv() => Signal::HUP,
            _ = self.first.recv() => Signal::USR1,
            _ = self.second.recv() => Signal::USR2,
        }
    }
}

fn is_termination(signal: Signal) -> bool {
    matches!(signal, Signal::TERM | Signal::INT)
}

/// Runs as the supervisor, if this process is one.
pub fn run() -> Option<ExitCode> {
    let supervises = std::env::var_os(SUPERVISES);
    if supervises.is_some() || std::env::var_os(VARIABLE).is_some() {
        // A process that was executed from `/proc` would be listed as `exe`. The name is only for people.
        let _ = rustix::thread::set_name(c"weir");
    }
    let told = supervises?.to_str().and_then(|told| told.parse().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Some(match runtime.and_then(|runtime| runtime.block_on(supervise(told))) {
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    })
}

/// Passes signals on until there is no child. Returns the exit code of the last one. If processes are to end, `told` is the
/// one that knows it, or zero.
async fn supervise(told: Option<i32>) -> io::Result<u8> {
    let mut passed = PassedSignals::listen()?;
    let mut ended = signal(SignalKind::child())?;
    signals::handled().thread_unblock()?;
    let mut last = 0;
    let mut is_terminating = told.is_some();
    // Those that were told to end. One that was being replaced leaves a child, which has to end too.
    let mut told: BTreeSet<_> = told.into_iter().collect();
    loop {
        let passed_on = tokio::select! {
            signal = passed.recv() => Some(signal),
            _ = ended.recv() => None,
            () = tokio::time::sleep(INTERVAL) => None,
        };
        is_terminating |= passed_on.is_some_and(is_termination);
        if !reap(&mut last) {
            return Ok(last);
        }
        for child in children() {
            let is_late = is_terminating && told.insert(child.as_raw_pid());
            if let Some(signal) = passed_on.or_else(|| is_late.then_some(Signal::TERM)) {
                // Fails only if the process has ended.
                let _ = kill_process(child, signal);
            }
        }
    }
}

/// Takes note of children that have ended, and stores the exit code of the latest. Returns whether there are others.
fn reap(last: &mut u8) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((_, status))) => *last = exit_code(status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let signalled = || status.terminating_signal().map(|signal| 128 + signal);
    let code = status.exit_status().or_else(signalled).unwrap_or_default();
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Returns the children of this process.
fn children() -> impl Iterator<Item = Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers: Vec<_> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<_>>())
        .collect();
    numbers.into_iter().filter_map(Pid::from_raw)
}
