//! The processes that replace the one that a test has started.

use std::process::Command;

use serde_json::Value;

use super::{Weir, wait};

impl Weir {
    /// Returns the processes that have replaced the first one.
    pub(crate) fn successors(&self) -> Vec<u32> {
        let log = self.log();
        let events = log.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let messages = ["replaced by another process: draining", "another process serves"];
        let replaced = events.filter(|event| messages.iter().any(|message| event["message"] == *message));
        replaced.filter_map(|event| u32::try_from(event["process"].as_u64()?).ok()).collect()
    }

    /// Returns the process that serves.
    pub(crate) fn serving_pid(&self) -> u32 {
        self.successors().last().copied().unwrap_or_else(|| self.pid())
    }

    /// Replaces the process, and waits until the new one serves.
    pub(crate) fn replace(&self) {
        self.await_replacement(|| signal(self.serving_pid(), "USR2"));
    }

    /// Replaces the configuration file by one that only another process can apply, and waits until it has.
    pub(crate) fn reload_at_start(&self, yaml: &str) {
        self.await_replacement(|| self.replace_file(yaml));
    }

    fn await_replacement(&self, cause: impl FnOnce()) {
        let before = self.successors().len();
        cause();
        wait::until_true("the new process", || self.successors().len() > before);
    }

    /// Waits until the processes that were replaced have nothing left to do.
    pub(crate) fn until_old_has_ended(&self) {
        wait::until_true("the end of the old process", || {
            let log = self.log();
            let ended = log.iter().filter(|line| line.contains("\"the old process has ended\"")).count();
            ended >= self.successors().len()
        });
    }

    /// Returns whether a line of the log contains `text`.
    pub(crate) fn has_logged(&self, text: &str) -> bool {
        self.log().iter().any(|line| line.contains(text))
    }

    /// Kills the processes that have replaced the first one.
    pub(super) fn kill_successors(&self) {
        self.successors().into_iter().for_each(|pid| signal(pid, "KILL"));
    }
}

/// Sends a signal, if there is such a process.
pub(crate) fn signal(pid: u32, name: &str) {
    let kill = format!("kill -{name} {pid} 2>&-");
    Command::new("sh").args(["-c", &kill]).status().unwrap();
}
