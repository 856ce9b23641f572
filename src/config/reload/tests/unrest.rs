//! Files that never stop changing, are read half-written, or end too early.

use std::io::Write as _;
use std::sync::atomic::AtomicBool;

use super::*;

/// A pace at which a file that `while_written` writes is never quiet.
const NEVER_QUIET: Pace = Pace {
    settling: debounce::DebounceTimes {
        max_wait: Duration::from_millis(800),
        // A writer may lose its CPU between the truncation and the write.
        confirm: Duration::from_millis(60),
        ..settling(600)
    },
    poll: Duration::from_secs(3600),
};

/// Calls `write` with increasing numbers every 150 ms, until `done` accepts an applied configuration.
fn while_written(running: &Running, write: impl Fn(u32) + Sync, mut done: impl FnMut(&Config) -> bool) {
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 2;
            while !ends.load(Ordering::Relaxed) {
                write(number);
                number += 1;
                thread::park_timeout(Duration::from_millis(150));
            }
        });
        let all_done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            loop {
                match running.next() {
                    Reload::Applied { config, .. } if done(&config) => return,
                    Reload::Rejected { problems } => panic!("an incomplete file was read: {problems:?}"),
                    _ => {}
                }
            }
        }));
        ends.store(true, Ordering::Relaxed);
        all_done.unwrap();
    });
}

fn write_in_place(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
}

#[test]
fn a_file_that_is_written_all_the_time_is_applied_again_and_again() {
    for write in [replace, write_in_place] {
        let (_directory, path) = in_new_directory();
        let running = Running::start(&path, NEVER_QUIET);
        let mut left = 3;
        while_written(
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
fn a_list_that_is_written_all_the_time_is_applied_whole() {
    const NETWORKS: u32 = 2000;
    let list = |number: u32| -> String {
        (0..NETWORKS).map(|n| format!("10.{}.{}.{}\n", number % 256, n / 256, n % 256)).collect()
    };
    for write in [replace, write_in_place] {
        let (directory, path) = in_new_directory_with_a_list(&list(1));
        let running = Running::start(&path, NEVER_QUIET);
        let file = directory.path().join("list.txt");
        let mut left = 3;
        while_written(
            &running,
            |number| write(&file, &list(number)),
            |config| {
                let holds =
                    |n: u32| (0..256).any(|b| holds_for(config, &format!("10.{b}.{}.{}", n / 256, n % 256)));
                assert!(holds(0) && holds(NETWORKS - 1), "an incomplete list was applied");
                left -= 1;
                left == 0
            },
        );
    }
}

/// A file that a slow writer still has open is not complete, even if each of its lines is.
#[test]
fn a_file_that_is_open_for_writing_is_waited_for() {
    let (directory, path) = in_new_directory_with_a_list("10.0.0.0/8\n");
    let running = Running::start(&path, NEVER_QUIET);
    let mut file = fs::File::create(directory.path().join("list.txt")).unwrap();
    for n in 0..60 {
        writeln!(file, "11.0.0.{n}").unwrap();
        thread::park_timeout(Duration::from_millis(20));
    }
    assert!(running.said.try_recv().is_err(), "an incomplete list was read");
    drop(file);
    let config = next_config(&running);
    assert!(holds_for(&config, "11.0.0.0") && holds_for(&config, "11.0.0.59"));
}

#[test]
fn reloads_take_a_quarter_of_a_cpu_at_most() {
    const BUSY: Duration = Duration::from_millis(100);
    let (_directory, path) = in_new_directory();
    let (_, reloader) =
        Reloader::with(Origin::File(path.clone()), None, FileWatch::for_file(&path), BY_EVENTS).unwrap();
    let (handle, sender) = (reloader.handle(), channel::<(Duration, Duration)>());
    let clock = Stopwatch::start();
    let thread = thread::spawn(move || {
        reloader.run(
            || Timestamp::EPOCH,
            |_| {
                let began = clock.elapsed();
                while clock.elapsed() < began + BUSY {
                    thread::park_timeout(BUSY);
                }
                sender.0.send((began, clock.elapsed())).unwrap();
            },
        );
    });
    let mut spans = Vec::new();
    for number in 2.. {
        replace(&path, &text(&format!("{number}/s")));
        spans.extend(sender.1.recv_timeout(Duration::from_millis(5)));
        if spans.len() == 3 {
            break;
        }
        assert!(clock.elapsed() < LONGEST, "{spans:?}");
    }
    handle.stop();
    thread.join().unwrap();
    assert!(spans.windows(2).all(|pair| pair[1].0 - pair[0].1 >= BUSY * 3), "{spans:?}");
}

fn two_rules() -> String {
    text("1/s") + "  - name: b\n    limit: 2/s\n"
}

fn start_with_two_rules() -> (TempDir, PathBuf, Running) {
    let (directory, path) = in_new_directory();
    fs::write(&path, two_rules()).unwrap();
    let running = Running::start(&path, BY_EVENTS);
    (directory, path, running)
}

#[test]
fn a_file_that_ends_early_is_applied_with_a_warning_unless_it_was_put_in_place_whole() {
    let (_directory, path, running) = start_with_two_rules();
    write_in_place(&path, &text("1/s"));
    let Reload::Applied { config, warnings, .. } = running.next() else { panic!("not applied") };
    assert_eq!((config.policy.rules.len(), warnings.len()), (1, 1));
    assert!(warnings[0].contains("lacks the last 2 lines"), "{warnings:?}");
    assert_eq!(running.status_after(ReloadOutcome::Applied).last.unwrap().warnings, warnings);

    replace(&path, &two_rules());
    assert!(matches!(running.next(), Reload::Applied { warnings, .. } if warnings.is_empty()));
    replace(&path, &text("1/s"));
    assert!(matches!(running.next(), Reload::Applied { warnings, .. } if warnings.is_empty()));
}

#[test]
fn a_file_that_ends_early_and_goes_on_within_a_second_is_never_applied_short() {
    let pace = Pace {
        settling: debounce::DebounceTimes { max_wait: Duration::from_secs(2), ..settling(20) },
        ..BY_EVENTS
    };
    let (_directory, path) = in_new_directory();
    fs::write(&path, two_rules()).unwrap();
    let running = Running::start(&path, pace);
    write_in_place(&path, &text("1/s"));
    // Long enough for the file to settle.
    assert!(running.said.recv_timeout(Duration::from_millis(500)).is_err(), "applied too early");
    write_in_place(&path, &two_rules().replace("2/s", "3/s"));
    let Reload::Applied { config, .. } = running.next() else { panic!("not applied") };
    assert_eq!(config.policy.rules.len(), 2);
}

#[test]
fn after_a_file_that_ends_with_the_end_marker_one_without_it_is_rejected_as_cut_off() {
    let (_directory, path) = in_new_directory();
    let whole = two_rules() + "...\n";
    fs::write(&path, &whole).unwrap();
    let running = Running::start(&path, BY_EVENTS);
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
fn a_bad_text_is_reported_once_although_a_data_file_has_changed_with_it() {
    let (directory, path) = in_new_directory_with_a_list("10.0.0.0/8\n");
    let good = fs::read_to_string(&path).unwrap();
    let running = Running::start(&path, BY_POLLING);
    fs::write(directory.path().join("list.txt"), "11.0.0.0/8\n").unwrap();
    replace(&path, "listeners: [\n");
    while running.next().outcome() != ReloadOutcome::Rejected {}
    assert!(running.said.recv_timeout(20 * BY_POLLING.poll).is_err(), "it was reported already");
    replace(&path, &good);
    // The list may have been read before the text became invalid.
    running.handle.request();
    assert!(running.next().outcome() != ReloadOutcome::Rejected);
}
