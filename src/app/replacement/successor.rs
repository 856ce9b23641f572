//! The old process: starts the new one and hands over to it.

mod hand_over;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use parking_lot::Mutex;

use super::channel::{Channel, MessageKind, has_ended};
use super::state::Hello;
use super::{OWN_BINARY, Relay, VARIABLE, VERSION, supervisor};
use crate::app::signals::SignalThread;
use crate::app::{AppError, RunningApp, service_manager};
use weir_limiter::transfer::LateChargeMessage;
use weir_net::fd_channel::{ConnectionSender, connection_channel};
use weir_net::replacement::ReplacementPhase;

/// Interval at which the old process looks whether the new one still runs.
const LATE_INTERVAL: Duration = Duration::from_millis(50);
/// Time for the rest of a message that has begun to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
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
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Passes signals on to the new process.
    relay: Arc<Relay>,
    /// How the last process has ended, if it has failed.
    failure: Mutex<Option<String>>,
}

/// A new process that serves.
struct Serving {
    child: Child,
    channel: Channel,
    late: Receiver<LateChargeMessage>,
    /// What its sockets are bound for.
    purposes: Vec<Box<str>>,
    /// Whether it drains.
    is_ending: bool,
}

impl Replacer {
    /// `program` is the path of the binary.
    pub(in crate::app) fn new(
        running: &Arc<RunningApp>,
        relay: &Arc<Relay>,
        program: Option<PathBuf>,
    ) -> Arc<Self> {
        Arc::new(Self {
            running: Arc::clone(running),
            program,
            is_active: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            thread: Mutex::default(),
            relay: Arc::clone(relay),
            failure: Mutex::default(),
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
        let relay = Arc::clone(&self.relay);
        let report = move |replaced: io::Result<()>| match replaced {
            Ok(()) => {}
            Err(error) if relay.is_terminating() => tracing::info!(%error, "this process is not replaced"),
            Err(error) => tracing::error!(%error, "this process is not replaced, and goes on"),
        };
        if let Err(error) = self.replace_on_thread(program, report) {
            tracing::error!(%error, "this process is not replaced: cannot start a thread");
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
        let (sender, outcome) = mpsc::sync_channel(1);
        self.replace_on_thread(OWN_BINARY.into(), move |replaced| _ = sender.send(replaced))?;
        outcome.recv().map_err(io::Error::other)?
    }

    /// Starts `program`, hands over to it and reports to `report`, on a thread of its own: this process ends only after it.
    fn replace_on_thread(
        self: &Arc<Self>,
        program: PathBuf,
        report: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> io::Result<()> {
        let replacer = Arc::clone(self);
        let work = move || match replacer.replace(&program) {
            Ok(serving) => {
                replacer.leave(&serving);
                report(Ok(()));
                replacer.follow(serving);
            }
            Err(error) => {
                replacer.is_active.store(false, Ordering::Relaxed);
                report(Err(error));
            }
        };
        let mut thread = self.thread.lock();
        let started = std::thread::Builder::new().name("replacement".to_owned()).spawn(work);
        *thread = Some(started.inspect_err(|_| self.is_active.store(false, Ordering::Relaxed))?);
        Ok(())
    }

    /// Passes the last charges on. No request may be in flight.
    pub(in crate::app) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
        // A thread that waits for the process before this one would go on waiting.
        let is_in_use = |_: &_| self.is_replaced() || self.relay.is_starting();
        if let Some(thread) = self.thread.lock().take().filter(is_in_use) {
            let _ = thread.join();
        }
    }

    /// Stays as the parent of the processes that follow, if that is needed.
    ///
    /// # Errors
    /// If the last process has failed.
    pub(in crate::app) fn supervise(&self, signals: SignalThread) -> Result<(), AppError> {
        if let Some(status) = self.failure.lock().take() {
            let doing = "the process that replaced this one has failed".to_owned();
            return Err(AppError::System(doing, io::Error::other(status)));
        }
        if self.is_replaced() && supervisor::is_needed() && supervisor::has_children() {
            signals.stop();
            let error = supervisor::become_supervisor(&self.relay);
            tracing::error!(%error, "cannot stay as the parent of the new process");
        }
        Ok(())
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
        if !self.relay.begin() {
            return Err(this_process_ends());
        }
        let (mut child, mut channel) = self.spawn(program).inspect_err(|_| self.relay.has_ended())?;
        self.relay.prepares(child.id());
        let greeted = self.greet(&mut channel);
        match greeted.and_then(|sender| self.hand_over(&mut channel, sender)) {
            Ok((late, purposes)) => Ok(Serving { child, channel, late, purposes, is_ending: false }),
            Err(error) => {
                let _ = child.kill();
                let status = child.wait();
                self.relay.has_ended();
                let status = status?;
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
            let status = serving.child.wait().map(|status| status.to_string()).unwrap_or_default();
            if self.relay.is_terminating() {
                return;
            }
            if serving.is_ending || restarts == MAX_RESTARTS {
                tracing::error!(status, "no process accepts connections any longer");
                self.running.sockets.leave(&[]);
                *self.failure.lock() = Some(status);
                return;
            }
            tracing::error!(%error, status, "the new process has ended: starting another from the binary of this one");
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
        self.relay.serves(process, supervisor::is_needed());
    }

    /// Ends this process in order.
    fn leave(&self, Serving { child, purposes, .. }: &Serving) {
        let running = &self.running;
        self.follow_with_signals(child.id());
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
            self.notice_end(serving);
            match serving.late.recv_timeout(LATE_INTERVAL) {
                Ok(charge) if !is_lost => {
                    is_lost = serving.channel.send(MessageKind::Late, &charge.to_bytes()).is_err();
                }
                Ok(_) => {}
                Err(_) if self.is_finished.load(Ordering::Relaxed) => return Ok(()),
                Err(_) => match serving.child.try_wait()? {
                    Some(status) if status.success() => {
                        tracing::info!("the new process has ended in order");
                        self.relay.has_ended();
                        self.running.sockets.leave(&[]);
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

    /// Closes the listeners once the new process has closed its own: connections would wait in vain in their queues.
    fn notice_end(&self, serving: &mut Serving) {
        let channel = &mut serving.channel;
        if !serving.is_ending
            && channel.has_message()
            && channel.expect(MessageKind::Ending, MESSAGE_TIMEOUT).is_ok()
        {
            serving.is_ending = true;
            self.running.sockets.release();
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

/// Why no other process is started.
fn this_process_ends() -> io::Error {
    io::Error::other("this process ends")
}
