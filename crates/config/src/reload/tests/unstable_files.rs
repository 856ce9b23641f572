//! Files that never stop changing, are read half-written, or end too early.

use std::io::Write as _;
use std::sync::atomic::AtomicBool;

use super::*;

/// Timing with which a file that `write_until_applied` writes is never quiet.
const NEVER_QUIET: ReloadTiming = ReloadTiming {
    debounce: debounce::DebounceTimes {
        max_wait: Duration::from_millis(800),
        // A writer may lose its CPU between the truncation and the write.
        confirm: Duration::from_millis(60),
        ..debounce_times(600)
    },
    poll_interval: Duration::from_secs(3600),
};

/// Calls `write` with increasing numbers every 150 ms, until `is_done` accepts an applied configuration.
fn write_until_applied(
    running: &RunningReloader,
    write: impl Fn(u32) + Sync,
    mut is_done: impl FnMut(&Config) -> bool,
) {
    let is_finished = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 2;
            while !is_finished.load(Ordering::Relaxed) {
                write(number);
                number += 1;
                thread::park_timeout(Duration::from_millis(150));
            }
        });
        let all_done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loop {
                match running.next() {
                    Reload::Applied { config, .. } if is_done(&config) => return,
                    Reload::Rejected { problems } => panic!("an incomplete file was read: {problems:?}"),
                    _ => {}
                }
            }
        }));
        is_finished.store(true, Ordering::Relaxed);
        all_done.unwrap();
    });
}

fn write_in_place(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

/// Replaces the content of a file by one of the same length, without truncation.
fn overwrite(path: &Path, text: &str) {
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

#[test]
fn reload_applies_config_that_never_stops_changing() {
    for write in [replace, write_in_place] {
        let (_directory, path) = new_config_file();
        let running = RunningReloader::start(&path, NEVER_QUIET);
        let mut left = 3;
        write_until_applied(
            &running,
            |number| write(&path, &text(&format!("{number}/s"))),
            |_| {
                left -= 1;
                left == 0
            },
        );
    }
}

#[test]
fn reload_applies_constantly_written_list_completely() {
    const NETWORKS: u32 = 2000;
    let list = |number: u32| -> String {
        (0..NETWORKS).map(|n| format!("10.{}.{}.{}\n", 100 + number % 100, n / 256, n % 256)).collect()
    };
    for write in [replace, overwrite, write_in_place] {
        let (directory, path) = new_config_file_with_list(&list(1));
        let running = RunningReloader::start(&path, NEVER_QUIET);
        let file = directory.path().join("list.txt");
        let mut left = 3;
        write_until_applied(
            &running,
            |number| write(&file, &list(number)),
            |config| {
                let holds =
                    |b: u32, n: u32| matches_client_ip(config, &format!("10.{b}.{}.{}", n / 256, n % 256));
                let is_complete = (100..200).any(|b| holds(b, 0) && holds(b, NETWORKS - 1));
                assert!(is_complete, "parts of two lists were applied");
                left -= 1;
                left == 0
            },
        );
    }
}

/// A list that was emptied in place is applied only if it stays empty: a truncating writer may write later.
#[test]
fn reload_waits_for_the_content_of_an_emptied_list() {
    let pace = ReloadTiming {
        debounce: debounce::DebounceTimes { max_wait: Duration::from_secs(2), ..debounce_times(20) },
        ..BY_EVENTS
    };
    let (directory, path) = new_config_file_with_list("10.0.0.0/8\n");
    let running = RunningReloader::start(&path, pace);
    let list = directory.path().join("list.txt");
    write_in_place(&list, "");
    // Long enough for the file to settle.
    assert!(running.reloads.recv_timeout(Duration::from_millis(500)).is_err(), "applied too early");
    write_in_place(&list, "11.0.0.0/8\n");
    assert!(matches_client_ip(&next_config(&running), "11.0.0.1"));

    write_in_place(&list, "");
    assert!(!matches_client_ip(&next_config(&running), "11.0.0.1"), "a list that stays empty is applied");
}

/// A file that a slow writer still has open is not complete, even if each of its lines is.
#[test]
fn reload_waits_for_file_open_for_writing() {
    let (directory, path) = new_config_file_with_list("10.0.0.0/8\n");
    let running = RunningReloader::start(&path, NEVER_QUIET);
    let mut file = fs::File::create(directory.path().join("list.txt")).unwrap();
    for n in 0..60 {
        writeln!(file, "11.0.0.{n}").unwrap();
        thread::park_timeout(Duration::from_millis(20));
    }
    assert!(running.reloads.try_recv().is_err(), "an incomplete list was read");
    drop(file);
    let config = next_config(&running);
    assert!(matches_client_ip(&config, "11.0.0.0") && matches_client_ip(&config, "11.0.0.59"));
}

#[test]
fn reload_uses_at_most_a_quarter_of_a_cpu() {
    const BUSY: Duration = Duration::from_millis(100);
    let (_directory, path) = new_config_file();
    let (_, reloader) =
        Reloader::start_from(ReloadOrigin::File(path.clone()), None, FileWatch::for_file(&path), BY_EVENTS)
            .unwrap();
    let (handle, sender) = (reloader.handle(), channel::<(Duration, Duration)>());
    let clock = Stopwatch::start();
    let thread = thread::spawn(move || {
        reloader.run(
            || Timestamp::EPOCH,
            |_, _| Ok(Preparation::Ready),
            |_| {
                let began = clock.elapsed();
                while clock.elapsed() < began + BUSY {
                    thread::park_timeout(BUSY);
                }
                sender.0.send((began, clock.elapsed())).unwrap();
            },
            || {},
        );
    });
    let mut spans = Vec::new();
    for number in 2.. {
        replace(&path, &text(&format!("{number}/s")));
        spans.extend(sender.1.recv_timeout(Duration::from_millis(5)));
        if spans.len() == 3 {
            break;
        }
        assert!(clock.elapsed() < TEST_TIMEOUT, "{spans:?}");
    }
    handle.stop();
    thread.join().unwrap();
    assert!(spans.windows(2).all(|pair| pair[1].0 - pair[0].1 >= BUSY * 3), "{spans:?}");
}

fn two_rules() -> String {
    text("1/s") + "  - name: b\n    limit: 2/s\n"
}

fn start_with_two_rules() -> (TempDir, PathBuf, RunningReloader) {
    let (directory, path) = new_config_file();
    fs::write(&path, two_rules()).unwrap();
    let running = RunningReloader::start(&path, BY_EVENTS);
    (directory, path, running)
}

#[test]
fn reload_warns_about_truncated_file_unless_it_was_replaced() {
    let (_directory, path, running) = start_with_two_rules();
    write_in_place(&path, &text("1/s"));
    let Reload::Applied { config, warnings, .. } = running.next() else { panic!("not applied") };
    assert_eq!((config.policy.rules.len(), warnings.len()), (1, 1));
    assert!(warnings[0].contains("lacks the last 2 lines"), "{warnings:?}");
    assert_eq!(running.status_after(ReloadOutcome::Applied).last_attempt.unwrap().warnings, warnings);

    replace(&path, &two_rules());
    assert!(matches!(running.next(), Reload::Applied { warnings, .. } if warnings.is_empty()));
    replace(&path, &text("1/s"));
    assert!(matches!(running.next(), Reload::Applied { warnings, .. } if warnings.is_empty()));
}

#[test]
fn reload_waits_for_the_remainder_of_a_truncated_file() {
    let pace = ReloadTiming {
        debounce: debounce::DebounceTimes { max_wait: Duration::from_secs(2), ..debounce_times(20) },
        ..BY_EVENTS
    };
    let (_directory, path) = new_config_file();
    fs::write(&path, two_rules()).unwrap();
    let running = RunningReloader::start(&path, pace);
    write_in_place(&path, &text("1/s"));
    // Long enough for the file to settle.
    assert!(running.reloads.recv_timeout(Duration::from_millis(500)).is_err(), "applied too early");
    write_in_place(&path, &two_rules().replace("2/s", "3/s"));
    let Reload::Applied { config, .. } = running.next() else { panic!("not applied") };
    assert_eq!(config.policy.rules.len(), 2);
}

#[test]
fn reload_rejects_file_without_expected_end_marker() {
    let (_directory, path) = new_config_file();
    let whole = two_rules() + "...\n";
    fs::write(&path, &whole).unwrap();
    let running = RunningReloader::start(&path, BY_EVENTS);
    for write in [write_in_place, replace] {
        write(&path, &text("1/s"));
        let Reload::Rejected { problems } = running.next() else { panic!("an incomplete file was applied") };
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.starts_with("truncated"), "{}", problems[0]);
        write(&path, &whole);
        assert_eq!(running.next().outcome(), ReloadOutcome::Unchanged);
    }
    replace(&path, &(text("5/s") + "...\n"));
    assert_eq!(running.next_limit(), "5/s");
}

#[test]
fn reload_reports_invalid_text_once_if_data_file_also_changed() {
    let (directory, path) = new_config_file_with_list("10.0.0.0/8\n");
    let good = fs::read_to_string(&path).unwrap();
    let running = RunningReloader::start(&path, BY_POLLING);
    fs::write(directory.path().join("list.txt"), "11.0.0.0/8\n").unwrap();
    replace(&path, "listeners: [\n");
    while running.next().outcome() != ReloadOutcome::Rejected {}
    assert!(running.reloads.recv_timeout(20 * BY_POLLING.poll_interval).is_err(), "it was reported already");
    replace(&path, &good);
    // The list may have been read before the text became invalid.
    running.handle.request_reload();
    assert!(running.next().outcome() != ReloadOutcome::Rejected);
}
