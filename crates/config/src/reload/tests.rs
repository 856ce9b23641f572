use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};

use tempfile::TempDir;

use super::*;
use weir_telemetry::metrics::ReloadOutcome;

mod unstable_files;

/// Timeout that only a failing test reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Polls so rarely that only events can cause a reload.
const BY_EVENTS: ReloadTiming =
    ReloadTiming { debounce: debounce_times(20), poll_interval: Duration::from_secs(3600) };

const BY_POLLING: ReloadTiming =
    ReloadTiming { debounce: debounce_times(2), poll_interval: Duration::from_millis(5) };

const fn debounce_times(quiet: u64) -> debounce::DebounceTimes {
    debounce::DebounceTimes {
        quiet: Duration::from_millis(quiet),
        max_wait: Duration::from_millis(10 * quiet),
        confirm: Duration::from_millis(15),
        max_open_wait: Duration::from_secs(10),
    }
}

fn text(limit: &str) -> String {
    format!(
        "listeners: 127.0.0.1:8080\nupstream: echo\nworkers: 1\nrules:\n  - name: a\n    limit: {limit}\n"
    )
}

/// A running reloader and its outcomes.
struct RunningReloader {
    handle: ReloadHandle,
    reloads: Receiver<Reload>,
    thread: Option<JoinHandle<()>>,
}

impl RunningReloader {
    fn start(path: &Path, pace: ReloadTiming) -> Self {
        let watch = if pace.poll_interval < TEST_TIMEOUT {
            FileWatch::without_events()
        } else {
            FileWatch::for_file(path)
        };
        let (_, reloader) =
            Reloader::start_from(ReloadOrigin::File(path.to_owned()), None, watch, pace).unwrap();
        let handle = reloader.handle();
        let (sender, said) = channel();
        let thread = thread::spawn(move || {
            reloader.run(
                || Timestamp::from_secs(7),
                |_, _| Ok(Preparation::Ready),
                |reload| {
                    let _ = sender.send(reload);
                },
                || {},
            );
        });
        Self { handle, reloads: said, thread: Some(thread) }
    }

    /// Returns the next outcome.
    fn next(&self) -> Reload {
        self.reloads.recv_timeout(TEST_TIMEOUT).unwrap()
    }

    /// Returns the limit of the next applied configuration, ignoring rejected ones.
    fn next_limit(&self) -> String {
        loop {
            if let Reload::Applied { config, .. } = self.next() {
                return config.policy.rules[0].limits()[0].quota.limit().to_string();
            }
        }
    }

    /// Returns the status once it shows `outcome`.
    fn status_after(&self, outcome: ReloadOutcome) -> ReloadStatus {
        loop {
            let status = self.handle.status();
            if status.last_attempt.as_ref().is_some_and(|last| last.outcome == outcome) {
                return status;
            }
            thread::yield_now();
        }
    }
}

impl Drop for RunningReloader {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn new_config_file() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.yaml");
    fs::write(&path, text("1/s")).unwrap();
    (directory, path)
}

fn replace(path: &Path, text: &str) {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, text).unwrap();
    fs::rename(&temporary, path).unwrap();
}

#[test]
fn reload_applies_every_file_renamed_over_the_config() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    for limit in ["2/s", "3/s", "4/s"] {
        replace(&path, &text(limit));
        assert_eq!(running.next_limit(), limit);
    }
    assert_eq!(running.status_after(ReloadOutcome::Applied).file, path);
}

#[test]
fn reload_never_applies_a_partially_written_file() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    let whole = text("2/s");
    for end in [0, 10, whole.find("rules").unwrap(), whole.len()] {
        fs::write(&path, &whole[..end]).unwrap();
    }
    assert_eq!(running.next_limit(), "2/s");
}

/// Updates the files as the kubelet does: a new directory, and a link that is replaced by renaming.
#[test]
fn reload_follows_config_map_symlinks() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let publish = |version: &str, limit: &str| {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("weir.yaml"), text(limit)).unwrap();
        symlink(version, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    };
    publish("..2026_01", "1/s");
    symlink("..data/weir.yaml", root.join("weir.yaml")).unwrap();
    let running = RunningReloader::start(&root.join("weir.yaml"), BY_EVENTS);
    publish("..2026_02", "2/s");
    fs::remove_dir_all(root.join("..2026_01")).unwrap();
    assert_eq!(running.next_limit(), "2/s");
    publish("..2026_03", "3/s");
    assert_eq!(running.next_limit(), "3/s");
}

#[test]
fn reload_rejects_invalid_file_until_it_is_corrected() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    replace(&path, &text("2/fortnight"));
    let Reload::Rejected { problems } = running.next() else { panic!("an invalid file was applied") };
    assert_eq!(problems.len(), 1);
    let status = running.status_after(ReloadOutcome::Rejected);
    assert_eq!(status.generation, 1);
    let last = status.last_attempt.unwrap();
    assert_eq!(last.time, Timestamp::from_secs(7));
    assert!(last.problems[0].ends_with("expected one of ms, s, min, h, d, w, month, year"));

    replace(&path, &text("3/s"));
    assert_eq!(running.next_limit(), "3/s");
    let status = running.status_after(ReloadOutcome::Applied);
    assert_eq!((status.generation, status.last_attempt.unwrap().problems.len()), (2, 0));
}

#[test]
fn reload_rejects_deleted_file_and_its_return_is_unchanged() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    let before = running.handle.status();
    fs::remove_file(&path).unwrap();
    let Reload::Rejected { problems } = running.next() else { panic!("a missing file was applied") };
    assert_eq!(problems[0].message, "no such file");
    replace(&path, &text("1/s"));
    assert_eq!(running.next().outcome(), ReloadOutcome::Unchanged);
    let after = running.status_after(ReloadOutcome::Unchanged);
    assert_eq!((after.generation, after.text_hash), (before.generation, before.text_hash));
}

#[test]
fn reload_polls_without_file_events() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_POLLING);
    replace(&path, &text("2/s"));
    assert_eq!(running.next_limit(), "2/s");
}

#[test]
fn reload_reports_the_same_invalid_text_once() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_POLLING);
    replace(&path, &text("soon"));
    assert_eq!(running.next().outcome(), ReloadOutcome::Rejected);
    // Many polls later there is no other outcome.
    assert!(running.reloads.recv_timeout(20 * BY_POLLING.poll_interval).is_err());
    running.handle.request_reload();
    assert_eq!(running.next().outcome(), ReloadOutcome::Rejected);
}

#[test]
fn reload_request_has_an_outcome_if_unchanged() {
    let (_directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    running.handle.request_reload();
    assert_eq!(running.next().outcome(), ReloadOutcome::Unchanged);
    assert_eq!(running.status_after(ReloadOutcome::Unchanged).generation, 1);
}

#[test]
fn reload_applies_change_made_before_run() {
    let (_directory, path) = new_config_file();
    let (_, reloader) =
        Reloader::start_from(ReloadOrigin::File(path.clone()), None, FileWatch::for_file(&path), BY_EVENTS)
            .unwrap();
    replace(&path, &text("2/s"));
    let handle = reloader.handle();
    reloader.run(
        || Timestamp::EPOCH,
        |_, _| Ok(Preparation::Ready),
        |reload| {
            assert_eq!(reload.outcome(), ReloadOutcome::Applied);
            handle.stop();
        },
        || {},
    );
}

#[test]
fn configuration_that_cannot_be_prepared_is_rejected_until_it_can() {
    let (_directory, path) = new_config_file();
    let watch = FileWatch::for_file(&path);
    let origin = ReloadOrigin::File(path.clone());
    let (_, reloader) = Reloader::start_from(origin, None, watch, BY_EVENTS).unwrap();
    replace(&path, &text("2/s"));
    let (handle, mut outcomes) = (reloader.handle(), Vec::new());
    let is_usable = std::cell::Cell::new(false);
    let unusable = || UnusableSetting { key: "access_log".to_owned(), message: "cannot open /x".to_owned() };
    reloader.run(
        || Timestamp::EPOCH,
        |_, _| is_usable.get().then_some(Preparation::Ready).ok_or_else(unusable),
        |reload| {
            if let Reload::Rejected { problems } = &reload {
                let expected = format!("{}: access_log: cannot open /x", path.display());
                assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
            }
            outcomes.push(reload.outcome());
            match is_usable.replace(true) {
                false => handle.request_reload(),
                true => handle.stop(),
            }
        },
        || {},
    );
    assert_eq!(outcomes, [ReloadOutcome::Rejected, ReloadOutcome::Applied]);
}

#[test]
fn keys_that_only_a_start_applies_are_passed_on_until_another_process_takes_over() {
    let (_directory, path) = new_config_file();
    let watch = FileWatch::for_file(&path);
    let origin = ReloadOrigin::File(path.clone());
    let (_, reloader) = Reloader::start_from(origin, None, watch, BY_EVENTS).unwrap();
    let moved = text("2/s").replace("8080", "8081");
    replace(&path, &moved);
    let (handle, mut outcomes, keys) = (reloader.handle(), Vec::new(), RefCell::new(Vec::new()));
    let status = reloader.handle();
    reloader.run(
        || Timestamp::EPOCH,
        |_, changed| {
            keys.borrow_mut().push(changed.to_vec());
            Ok(if changed.is_empty() { Preparation::Ready } else { Preparation::TakenOver })
        },
        |reload| match reload {
            Reload::Applied { .. } => {
                outcomes.push("applied");
                replace(&path, &moved.replace("workers: 1", "workers: 2"));
            }
            Reload::TakenOver => {
                outcomes.push("taken over");
                handle.stop();
            }
            other => panic!("{other:?}"),
        },
        || {},
    );
    assert_eq!(outcomes, ["applied", "taken over"]);
    assert_eq!(*keys.borrow(), [vec![], vec!["workers"]]);
    assert_eq!(status.status().generation, 2, "the other process has the new text");
    assert_eq!(status.last_attempt().unwrap().outcome, ReloadOutcome::Applied);
}

/// A configuration with a rule for the clients in `list.txt`.
fn new_config_file_with_list(list: &str) -> (TempDir, PathBuf) {
    let (directory, path) = new_config_file();
    fs::write(directory.path().join("list.txt"), list).unwrap();
    fs::write(&path, text("1/s") + "    match: { client_ip: { file: list.txt } }\n").unwrap();
    (directory, path)
}

fn matches_client_ip(config: &Config, ip: &str) -> bool {
    config.policy.rules[0].matcher.client_ip.as_ref().unwrap().contains(ip.parse().unwrap())
}

/// Returns the next applied configuration, ignoring rejected ones.
fn next_config(running: &RunningReloader) -> Box<Config> {
    loop {
        if let Reload::Applied { config, .. } = running.next() {
            return config;
        }
    }
}

#[test]
fn reload_applies_changed_data_file() {
    for pace in [BY_EVENTS, BY_POLLING] {
        let (directory, path) = new_config_file_with_list("10.0.0.0/8\n");
        let running = RunningReloader::start(&path, pace);
        let list = directory.path().join("list.txt");
        for network in ["11.0.0.0/8", "12.0.0.0/8"] {
            replace(&list, network);
            let config = next_config(&running);
            assert!(matches_client_ip(&config, network.split('/').next().unwrap()));
            assert!(!matches_client_ip(&config, "10.0.0.1"));
        }
        while running.handle.status().generation < 3 {
            thread::yield_now();
        }
    }
}

#[test]
fn reload_rejects_invalid_data_file_until_it_is_restored() {
    let (directory, path) = new_config_file_with_list("10.0.0.0/8\n");
    let running = RunningReloader::start(&path, BY_EVENTS);
    let list = directory.path().join("list.txt");
    replace(&list, "10.0.0.0/8\n10.0.0.0/x\n");
    let Reload::Rejected { problems } = running.next() else { panic!("an invalid list was applied") };
    assert_eq!((problems[0].line, &problems[0].file), (2, &list));
    fs::remove_file(&list).unwrap();
    let Reload::Rejected { problems } = running.next() else { panic!("a missing list was applied") };
    assert!(problems[0].message.starts_with("no such file"), "{}", problems[0]);
    replace(&list, "10.0.0.0/8\n");
    assert_eq!(running.next().outcome(), ReloadOutcome::Unchanged);
    assert_eq!(running.status_after(ReloadOutcome::Unchanged).generation, 1);
}

#[test]
fn reload_applies_data_file_once_it_appears() {
    let (directory, path) = new_config_file();
    let running = RunningReloader::start(&path, BY_EVENTS);
    let elsewhere = directory.path().join("lists");
    fs::create_dir(&elsewhere).unwrap();
    replace(&path, &(text("1/s") + "    match: { client_ip: { file: lists/late.txt } }\n"));
    assert_eq!(running.next().outcome(), ReloadOutcome::Rejected);
    fs::write(elsewhere.join("late.txt"), "10.0.0.0/8").unwrap();
    assert!(matches_client_ip(&next_config(&running), "10.0.0.1"));
}

#[test]
fn reload_of_reverted_text_is_unchanged() {
    let (_directory, path) = new_config_file_with_list("10.0.0.0/8\n");
    let running = RunningReloader::start(&path, BY_EVENTS);
    let before = fs::read_to_string(&path).unwrap();
    replace(&path, &before.replace("list.txt", "none.txt"));
    assert_eq!(running.next().outcome(), ReloadOutcome::Rejected);
    replace(&path, &before);
    assert_eq!(running.next().outcome(), ReloadOutcome::Unchanged);
}
