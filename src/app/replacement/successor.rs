//! The old process: starts the new one and hands over to it.

mod hand_over;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use super::channel::{Channel, MessageKind, has_ended};
use super::state::Hello;
use super::supervisor::{self, Relay};
use super::{OWN_BINARY, VARIABLE, VERSION};
use crate::app::{RunningApp, service_manager};
use weir_limiter::transfer::LateChargeMessage;
use weir_net::fd_channel::{ConnectionSender, connection_channel};
use weir_net::replacement::ReplacementPhase;

/// Interval at which the old process looks whether the new one still runs.
const LATE_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum processes that are started because the new one has ended at once.
const MAX_RESTARTS: u32 = 3;

/// Replaces this process when it is asked to.
pub(in crate::app) struct Replacer {
    running: Arc<RunningApp>,
    /// Path of the binary when the first process has started. Another file may lie there by now.
    program: Option<PathBuf>,
    is_active: AtomicBool,
    /// Whether the process ends, so that no further charge comes late.
    is_finished: AtomicBool,
    /// Whether this process was told to end, and those that replace it.
    is_stopping: AtomicBool,
    /// The process that is being started; 0 if there is none.
    starting: AtomicU32,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Passes signals on to the new process, if no service manager follows it.
    relay: OnceLock<Relay>,
}

/// A new process that serves.
struct Serving {
    child: Child,
    channel: Channel,
    late: Receiver<LateChargeMessage>,
    /// What its sockets are bound for.
    purposes: Vec<Box<str>>,
}

impl Replacer {
    pub(in crate::app) fn new(running: &Arc<RunningApp>) -> Arc<Self> {
        Arc::new(Self {
            running: Arc::clone(running),
            program: std::env::var_os(VARIABLE).map(PathBuf::from).or_else(|| std::env::current_exe().ok()),
            is_active: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            starting: AtomicU32::new(0),
            thread: Mutex::default(),
            relay: OnceLock::new(),
        })
    }

    /// Starts the binary that lies at this process's path, and hands over to it, on a thread of its own.
    pub(in crate::app) fn start(self: &Arc<Self>) {
        if self.is_replaced() {
            // The signal is for the new process.
            return;
        }
        let Some(program) = self.program.clone() else {
            tracing::error!("this process is not replaced: the path of its binary is not known");
            return;
        };
        if self.is_active.swap(true, Ordering::Relaxed) {
            tracing::warn!("this process is being replaced already");
            return;
        }
        let replacer = Arc::clone(self);
        let replace = move || match replacer.replace(&program) {
            Ok(serving) => {
                replacer.leave(&serving);
                replacer.follow(serving);
            }
            Err(error) => {
                tracing::error!(%error, "this process is not replaced, and goes on");
                replacer.is_active.store(false, Ordering::Relaxed);
            }
        };
        if let Err(error) = self.run_on_thread(replace) {
            tracing::error!(%error, "this process is not replaced: cannot start a thread");
            self.is_active.store(false, Ordering::Relaxed);
        }
    }

    /// Starts the binary of this process, which reads the configuration as it is now, and hands over to it. Returns once that
    /// serves.
    ///
    /// # Errors
    /// Why this process goes on.
    pub(in crate::app) fn start_with_new_configuration(self: &Arc<Self>) -> io::Result<()> {
        if self.is_active.swap(true, Ordering::Relaxed) {
            return Err(io::Error::other("this process is being replaced already"));
        }
        let replaced = self.replace(Path::new(OWN_BINARY));
        let serving = replaced.inspect_err(|_| self.is_active.store(false, Ordering::Relaxed))?;
        self.leave(&serving);
        let replacer = Arc::clone(self);
        if let Err(error) = self.run_on_thread(move || replacer.follow(serving)) {
            tracing::error!(%error, "cannot start a thread: what requests in flight charge is lost");
        }
        Ok(())
    }

    fn run_on_thread(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut thread = self.thread.lock();
        *thread = Some(std::thread::Builder::new().name("replacement".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Passes the last charges on. No request may be in flight.
    pub(in crate::app) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.lock().take().filter(|_| self.is_replaced()) {
            let _ = thread.join();
        }
    }

    /// Ends a process that is being started: the service is to end.
    pub(in crate::app) fn stop(&self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        signal(self.starting.load(Ordering::SeqCst), Signal::KILL);
    }

    /// Stays as the parent of the processes that follow, if that is needed.
    pub(in crate::app) fn supervise(&self) {
        if let Some(relay) = self.relay.get() {
            let error = relay.become_supervisor();
            tracing::error!(%error, "cannot stay as the parent of the new process");
        }
    }

    fn is_replaced(&self) -> bool {
        self.running.shared.replacement.phase() == ReplacementPhase::Replaced
    }

    /// Starts `program` and hands over to it. If that fails, this process goes on.
    fn replace(&self, program: &Path) -> io::Result<Serving> {
        let replacement = &self.running.shared.replacement;
        if replacement.has_predecessor() {
            tracing::info!("this process is replaced once the one before has ended");
            replacement.wait_for_predecessor();
        }
        tracing::info!(program = %program.display(), "starting the process that replaces this one");
        if supervisor::is_needed() {
            supervisor::adopt_successors();
        }
        let (mut child, mut channel) = self.spawn(program)?;
        self.starting.store(child.id(), Ordering::SeqCst);
        let handed_over = match self.is_stopping.load(Ordering::SeqCst) {
            true => Err(io::Error::other("this process ends")),
            false => {
                let greeted = self.greet(&mut channel);
                greeted.and_then(|sender| self.hand_over(&mut channel, sender))
            }
        };
        self.starting.store(0, Ordering::SeqCst);
        match handed_over {
            Ok((late, purposes)) => Ok(Serving { child, channel, late, purposes }),
            Err(error) => {
                let _ = child.kill();
                let status = child.wait()?;
                Err(match error.kind() {
                    _ if has_ended(&error) => {
                        io::Error::other(format!("the new process has ended: {status}"))
                    }
                    io::ErrorKind::TimedOut => io::Error::other("the new process does not get ready"),
                    _ => error,
                })
            }
        }
    }

    /// Starts `program`, with a private socket as its standard input.
    fn spawn(&self, program: &Path) -> io::Result<(Child, Channel)> {
        let (ours, theirs) = UnixStream::pair()?;
        let channel = Channel::new(ours)?;
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program);
        command.arg0(arguments.next().unwrap_or_else(|| program.into())).args(arguments);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        command.env(VARIABLE, self.program.as_deref().unwrap_or(program));
        // These name this process.
        ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"].iter().for_each(|name| {
            command.env_remove(name);
        });
        Ok((command.spawn()?, channel))
    }

    /// Passes the listening sockets to the new process, and the channel for connections.
    fn greet(&self, channel: &mut Channel) -> io::Result<ConnectionSender> {
        let sockets = self.running.sockets.export()?;
        let (sender, receiver) = connection_channel()?;
        let (descriptions, descriptors): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
        let hello = Hello { version: VERSION, sockets: descriptions };
        channel.send(MessageKind::Hello, &serde_json::to_vec(&hello)?)?;
        let descriptors: Vec<_> = std::iter::once(receiver.as_fd())
            .chain(descriptors.iter().map(|socket| socket.as_fd()))
            .collect();
        channel.send_descriptors(&descriptors)?;
        Ok(sender)
    }

    /// Passes on what requests of this process still charge. If the new process ends before, starts another one from the
    /// binary of this process.
    fn follow(&self, mut serving: Serving) {
        let mut restarts = 0;
        while let Err(error) = self.pass_on(&mut serving) {
            let was_told_to_end = self.relay.get().is_some_and(Relay::is_terminating);
            if was_told_to_end || self.is_stopping.load(Ordering::SeqCst) {
                return;
            }
            let status = serving.child.wait().map(|status| status.to_string()).unwrap_or_default();
            tracing::error!(%error, status, "the new process has ended: starting another from the binary of this one");
            if restarts == MAX_RESTARTS {
                tracing::error!("no process accepts connections any longer");
                return;
            }
            restarts += 1;
            match self.replace(Path::new(OWN_BINARY)) {
                Ok(next) => serving = next,
                Err(error) => {
                    tracing::error!(%error, "cannot start another process");
                    continue;
                }
            }
            tracing::info!(process = serving.child.id(), "another process serves");
            self.follow_with_signals(serving.child.id());
        }
    }

    /// Lets signals reach the process that serves.
    fn follow_with_signals(&self, process: u32) {
        service_manager::replaced_by(process);
        if let Some(relay) = self.relay.get() {
            relay.redirect(process);
        } else if supervisor::is_needed() {
            match Relay::start(process) {
                Ok(relay) => drop(self.relay.set(relay)),
                Err(error) => tracing::error!(?error, "signals are not passed on to the new process"),
            }
        }
    }

    /// Ends this process in order.
    fn leave(&self, Serving { child, purposes, .. }: &Serving) {
        let running = &self.running;
        self.follow_with_signals(child.id());
        if self.is_stopping.load(Ordering::SeqCst) {
            // The signal has come while the new process took over.
            signal(child.id(), Signal::TERM);
        }
        running.sockets.leave(purposes);
        self.set_phase(ReplacementPhase::Replaced);
        running.reload.stop();
        running.shared.drain.replace();
        running.shared.store.iter().for_each(|store| store.give_up_leases());
        running.state_saver.iter().for_each(|saver| saver.hand_over());
        tracing::info!(process = child.id(), "replaced by another process: draining");
    }

    /// Passes stored responses on, and late charges until this process ends.
    ///
    /// # Errors
    /// If the new process has failed.
    fn pass_on(&self, serving: &mut Serving) -> io::Result<()> {
        let mut has_reported = false;
        let mut is_lost = self.pass_responses_on(&mut serving.channel).is_err();
        loop {
            match serving.late.recv_timeout(LATE_INTERVAL) {
                Ok(charge) if !is_lost => {
                    is_lost = serving.channel.send(MessageKind::Late, &charge.to_bytes()).is_err();
                }
                Ok(_) => {}
                Err(_) if self.is_finished.load(Ordering::Relaxed) => return Ok(()),
                Err(_) => match serving.child.try_wait()? {
                    Some(status) if status.success() => {
                        tracing::info!("the new process has ended in order");
                        self.relay.get().iter().for_each(|relay| relay.redirect(0));
                        return Ok(());
                    }
                    Some(status) => return Err(io::Error::other(status.to_string())),
                    None if is_lost && !std::mem::replace(&mut has_reported, true) => {
                        tracing::error!(
                            "the new process does not listen: what requests in flight charge is lost"
                        );
                    }
                    None => {}
                },
            }
        }
    }

    /// Passes the stored responses of fallbacks on.
    fn pass_responses_on(&self, channel: &mut Channel) -> io::Result<()> {
        let fallbacks = Arc::clone(&self.running.shared.generation.load().fallbacks);
        for (head, body) in fallbacks.stored(self.running.shared.clock.now()) {
            channel.send(MessageKind::Stored, &serde_json::to_vec(&head)?)?;
            channel.send(MessageKind::Body, &body)?;
        }
        Ok(())
    }
}

/// Sends a signal to the process, unless it has ended. Zero is no process.
fn signal(process: u32, signal: Signal) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        let _ = kill_process(process, signal);
    }
}
