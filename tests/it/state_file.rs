//! The state file: counters survive a restart after any kind of exit, and no problem with the file prevents serving.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Client, Request, Weir, config, wait};

/// A directory with a configuration whose state file is in the same directory.
struct StateDirectory {
    directory: TempDir,
}

impl StateDirectory {
    fn new(interval: &str, limit: &str) -> Self {
        let kept = Self { directory: tempfile::tempdir().unwrap() };
        kept.configure(interval, limit, "");
        kept
    }

    fn configure(&self, interval: &str, limit: &str, rest: &str) {
        let rules = format!("rules: [{{ name: per-key, key: [{{ header: x-key }}], limit: {limit} }}]");
        let state = format!("state: {{ file: counters, interval: {interval} }}\n{rest}");
        fs::write(self.path("weir.yaml"), config("echo", &format!("{state}{rules}\n"))).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start(&self) -> Weir {
        Weir::start_file(&self.path("weir.yaml"))
    }

    fn file_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// Sends requests of one key until one is rejected. Returns how many were admitted.
fn exhaust(weir: &Weir, key: &str) -> usize {
    let mut client = Client::connect(weir.address());
    let request = Request::get("/").header("x-key", key);
    (0..100).take_while(|_| client.fetch(&request).status == 200).count()
}

fn terminate(mut weir: Weir) {
    weir.terminate();
    assert_eq!(weir.wait_exit().code(), Some(0));
}

/// Returns the log messages of this level.
fn log_events(weir: &Weir, level: &str) -> Vec<Value> {
    let lines = weir.log();
    let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["level"] == level).collect()
}

fn is_owner_only(path: &Path) -> bool {
    fs::metadata(path).unwrap().permissions().mode() & 0o777 == 0o600
}

#[test]
fn counters_survive_a_restart() {
    let kept = StateDirectory::new("1h", "3/d");
    let weir = kept.start();
    assert_eq!((exhaust(&weir, "used"), exhaust(&weir, "other")), (3, 3));
    terminate(weir);
    assert!(is_owner_only(&kept.path("counters")));
    assert_eq!(kept.file_names(), ["counters", "counters.lock", "weir.yaml"]);
    let weir = kept.start();
    assert_eq!((exhaust(&weir, "used"), exhaust(&weir, "new")), (0, 3));
    assert_eq!(weir.admin_json("/limits")["state"]["restored"], 2);
    terminate(weir);
    let weir = kept.start();
    assert_eq!((exhaust(&weir, "other"), exhaust(&weir, "new")), (0, 0), "kept by a second restart");
}

#[test]
fn counters_saved_before_a_crash_are_restored() {
    let kept = StateDirectory::new("50ms", "3/d");
    let mut weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 3);
    // A save that was already running may lack the counter, but the next one has it.
    let enough = weir.metric("weir_state_saves_total", &[("outcome", "saved")]) + 2.0;
    wait::until_true("two saves", || {
        weir.metric("weir_state_saves_total", &[("outcome", "saved")]) >= enough
    });
    assert_eq!(weir.metric("weir_state_counters", &[]), 1.0);
    assert!(weir.metric("weir_state_bytes", &[]) > 0.0);
    weir.signal("KILL");
    weir.wait_exit();
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 0);
}

#[test]
fn used_units_are_retained_if_the_limit_is_raised_meanwhile() {
    let kept = StateDirectory::new("1h", "3/d");
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 3);
    terminate(weir);
    kept.configure("1h", "10/d", "");
    assert_eq!(exhaust(&kept.start(), "used"), 7);
}

#[test]
fn damaged_file_is_set_aside_and_counters_start_empty() {
    let kept = StateDirectory::new("1h", "3/d");
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 3);
    terminate(weir);
    let mut bytes = fs::read(kept.path("counters")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(kept.path("counters"), &bytes).unwrap();
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 3);
    assert_eq!(fs::read(kept.path("counters.damaged")).unwrap(), bytes);
    let warnings = log_events(&weir, "WARN");
    let warned = warnings.iter().any(|event| {
        event["message"] == "invalid state file renamed: starting with empty counters"
            && event["problem"].as_str().is_some_and(|problem| problem.ends_with("is damaged"))
    });
    assert!(warned, "{warnings:?}");
    terminate(weir);
    assert_eq!(exhaust(&kept.start(), "used"), 0, "the new state file is valid");
}

#[test]
fn unwritable_path_is_warned_about_and_requests_are_served() {
    let kept = StateDirectory::new("1h", "3/d");
    fs::create_dir(kept.path("counters")).unwrap();
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "used"), 3);
    let note =
        log_events(&weir, "WARN").iter().any(|event| event["message"].to_string().contains("state.file"));
    assert!(note, "{:?}", log_events(&weir, "WARN"));
    terminate(weir);
}

#[test]
fn second_process_with_the_same_file_does_not_write() {
    let kept = StateDirectory::new("50ms", "3/d");
    let first = kept.start();
    assert_eq!(exhaust(&first, "used"), 3);
    let second = kept.start();
    wait::until_true("a failed save", || {
        second.metric("weir_state_saves_total", &[("outcome", "failed")]) >= 1.0
    });
    assert_eq!(second.metric("weir_state_saves_total", &[("outcome", "saved")]), 0.0);
    assert_eq!(second.admin_json("/limits")["state"]["problem"], "another process has locked it");
    assert_eq!(first.metric("weir_state_saves_total", &[("outcome", "failed")]), 0.0);
    terminate(first);
    wait::until_true("the file to be taken over", || {
        second.metric("weir_state_saves_total", &[("outcome", "saved")]) >= 1.0
    });
}

#[test]
fn changed_state_settings_take_effect_at_a_reload() {
    let kept = StateDirectory::new("1h", "3/d");
    let weir = kept.start();
    assert_eq!(exhaust(&weir, "key"), 3);
    kept.configure("20ms", "3/d", "");
    wait::until_true("saves", || weir.metric("weir_state_saves_total", &[("outcome", "saved")]) >= 2.0);
    assert_eq!(exhaust(&weir, "key"), 0);
    terminate(weir);
    assert_eq!(exhaust(&kept.start(), "key"), 0);
}
