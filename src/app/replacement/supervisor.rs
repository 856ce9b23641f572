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

use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitOptions, WaitStatus, set_child_subreaper, wait};

use super::relay::Relay;
use super::{OWN_BINARY, VARIABLE};
use crate::app::signals::{self, SignalReader, is_termination, send};

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

/// Runs as the supervisor, if this process is one.
pub fn run() -> Option<ExitCode> {
    let supervises = std::env::var_os(SUPERVISES);
    if supervises.is_some() || std::env::var_os(VARIABLE).is_some() {
        // A process that was executed from `/proc` would be listed as `exe`. The name is only for people.
        let _ = rustix::thread::set_name(c"weir");
    }
    let told = supervises?.to_str().and_then(|told| told.parse().ok());
    Some(supervise(told).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Passes signals on until there is no child. Returns the exit code of the last one. If processes are to end, `told` is the
/// one that knows it, or zero.
fn supervise(told: Option<i32>) -> io::Result<u8> {
    let mut signals = signals::handled();
    signals.add(Signal::SIGCHLD);
    let reader = SignalReader::open(&signals)?;
    let mut last = 0;
    let mut is_terminating = told.is_some();
    // Those that were told to end. One that was being replaced leaves a child, which has to end too.
    let mut told: BTreeSet<_> = told.into_iter().collect();
    let mut received = None;
    while reap(&mut last) {
        is_terminating |= received.is_some_and(is_termination);
        for process in descendants() {
            let is_late = is_terminating && told.insert(process.as_raw_pid());
            if let Some(signal) = received {
                send(process, signal);
            }
            if is_late && !received.is_some_and(is_termination) {
                send(process, Signal::SIGTERM);
            }
        }
        let read = reader.read(Some(INTERVAL), None)?;
        received = read.map(|read| read.signal).filter(|signal| *signal != Signal::SIGCHLD);
    }
    Ok(last)
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

/// Whether a process is left that has replaced this one.
pub(super) fn has_children() -> bool {
    !children("self").is_empty()
}

/// Returns all processes below this one. A process that drains has the one that replaces it as its child.
fn descendants() -> Vec<Pid> {
    let mut found = children("self");
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children(&process.as_raw_pid().to_string()));
        next += 1;
    }
    found
}

/// Returns the children of a process, which is named as in `/proc`.
fn children(process: &str) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let numbers = lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    numbers.filter_map(|number| number.parse().ok().and_then(Pid::from_raw)).collect()
}
