//! Files that are written continuously, slowly or incompletely.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Request, Weir, config, fetch, get, wait};

/// Rules that deny the networks in `list.txt` next to the configuration.
const DENY_LIST_RULES: &str = "client_ip: { trusted_proxies: 127.0.0.1 }
rules: [{ name: blocked, match: { client_ip: { file: list.txt } }, action: deny }]";

fn is_denied(weir: &Weir, client: &str) -> bool {
    fetch(weir.address(), &Request::get("/").header("x-forwarded-for", client)).status == 403
}

/// Starts a proxy with a list, and returns the path of the list.
fn start_with_list(directory: &Path, list: &str) -> (Weir, std::path::PathBuf) {
    let file = directory.join("list.txt");
    fs::write(&file, list).unwrap();
    fs::write(directory.join("weir.yaml"), config("echo", DENY_LIST_RULES)).unwrap();
    (Weir::start_file(&directory.join("weir.yaml")), file)
}

fn write_in_place(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
}

fn replace_by_rename(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).unwrap();
    fs::rename(&next, file).unwrap();
}

#[test]
fn continuously_written_list_is_reloaded() {
    for write in [write_in_place, replace_by_rename] {
        let directory = tempfile::tempdir().unwrap();
        let (weir, file) = start_with_list(directory.path(), "203.0.113.1\n");
        let done = AtomicBool::new(false);
        let denied = thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    write(&file, &format!("# version {number}\n203.0.113.1\n203.0.113.2\n"));
                    number += 1;
                    wait::pause(Duration::from_millis(50));
                }
            });
            let denied = wait::within(wait::DEADLINE, || is_denied(&weir, "203.0.113.2").then_some(()));
            done.store(true, Ordering::Relaxed);
            denied
        });
        assert!(denied.is_some(), "a file that is written continuously is never loaded");
        assert!(is_denied(&weir, "203.0.113.1"));
        assert_eq!(weir.rejected_reloads(), 0.0);
    }
}

#[test]
fn list_open_for_writing_is_reloaded_when_closed() {
    let directory = tempfile::tempdir().unwrap();
    let (weir, file) = start_with_list(directory.path(), "203.0.113.1\n");
    let mut writer = fs::File::create(&file).unwrap();
    writer.write_all(b"203.0.113.2\n").unwrap();
    // The writes stall from time to time, as a download may.
    for _ in 0..6 {
        wait::pause(Duration::from_millis(250));
        assert!(is_denied(&weir, "203.0.113.1"), "an incomplete list was loaded");
        writer.write_all(b"# another line\n").unwrap();
    }
    writer.write_all(b"203.0.113.1\n").unwrap();
    drop(writer);
    wait::until_true("the whole list", || is_denied(&weir, "203.0.113.2"));
    assert!(is_denied(&weir, "203.0.113.1"));
}

#[test]
fn truncated_file_is_rejected_if_the_previous_one_had_an_end_marker() {
    let rule = |name: &str| format!("  - {{ name: {name}, match: {{ path: /{name} }}, action: deny }}\n");
    let one = config("echo", &format!("rules:\n{}", rule("one")));
    let weir = Weir::start(&format!("{one}{}...\n", rule("two")));
    weir.assert_reload_rejected(&one);
    let shown = weir.admin_json("/server_info")["config"]["last_reload"]["problems"].to_string();
    assert!(shown.contains("truncated: the end marker `...` is missing"), "{shown}");
    assert_eq!(get(weir.address(), "/two").status, 403);
    weir.reload(&format!("{one}...\n"));
    assert_eq!(get(weir.address(), "/two").status, 200);
}

#[test]
fn truncated_file_without_end_marker_is_applied_with_a_warning() {
    let rule = |name: &str| format!("  - {{ name: {name}, match: {{ path: /{name} }}, action: deny }}\n");
    let one = config("echo", &format!("rules:\n{}", rule("one")));
    let weir = Weir::start(&format!("{one}{}", rule("two")));
    let before = weir.generation();
    write_in_place(weir.file(), &one);
    weir.until_reloaded(before);
    let warnings = || weir.admin_json("/server_info")["config"]["last_reload"]["warnings"].to_string();
    wait::until_true("the warning", || warnings().contains("lacks the last 1 lines of its previous content"));
    assert!(weir.log().join("\n").contains("possibly truncated"));
    weir.reload(&config("echo", ""));
    wait::until_true("the warning to disappear", || warnings() == "[]");
}

#[test]
fn reordered_limits_keep_their_counters() {
    let rules = |limits: &str| config("echo", &format!("rules: [{{ name: a, key: [], limits: {limits} }}]"));
    let weir = Weir::start(&rules("[1000/h, 10/d]"));
    for _ in 0..10 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    weir.reload(&rules("[10/d, 1000/h]"));
    assert_eq!(get(weir.address(), "/").status, 429, "a limit at another position keeps its counter");
    weir.reload(&rules("[10/d]"));
    assert_eq!(get(weir.address(), "/").status, 429);
}

#[test]
fn rule_removed_and_restored_keeps_its_counters() {
    let rules = config("echo", "rules: [{ name: a, key: [], limit: 2/d }]");
    let weir = Weir::start(&rules);
    for _ in 0..2 {
        assert_eq!(get(weir.address(), "/").status, 200);
    }
    weir.reload(&config("echo", "rules: []"));
    assert_eq!(get(weir.address(), "/").status, 200);
    weir.reload(&rules);
    assert_eq!(get(weir.address(), "/").status, 429, "counters of a removed rule are kept");
}
