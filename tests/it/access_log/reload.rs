//! Reloads of the access log.

use std::fs;

use super::AccessLogFile;
use crate::support::weir::command;
use crate::support::{Client, Weir, config, get, wait};

fn with_log(log: &AccessLogFile, format: &str) -> String {
    config("echo", &format!("access_log: {{ path: {}, format: {format} }}\n", log.path.display()))
}

#[test]
fn access_log_is_enabled_changed_and_disabled_without_a_restart() {
    let (one, two) = (AccessLogFile::new(), AccessLogFile::new());
    let weir = Weir::start(&config("echo", ""));
    get(weir.address(), "/before");
    weir.reload(&with_log(&one, "envoy"));
    get(weir.address(), "/first");
    weir.reload(&with_log(&one, "json"));
    get(weir.address(), "/second");
    weir.reload(&with_log(&two, "json"));
    get(weir.address(), "/third");
    weir.reload(&config("echo", ""));
    get(weir.address(), "/after");
    let lines = one.lines(2);
    assert!(lines.len() == 2 && lines[0].contains("GET /first HTTP/1.1"), "{lines:?}");
    assert!(lines[1].starts_with('{') && lines[1].contains("/second"), "{lines:?}");
    let lines = two.lines(1);
    assert!(lines.len() == 1 && lines[0].contains("/third"), "{lines:?}");
}

#[test]
fn no_line_is_lost_when_the_destination_changes_under_load() {
    const REQUESTS: usize = 1500;
    let logs = [AccessLogFile::new(), AccessLogFile::new()];
    let weir = Weir::start(&with_log(&logs[0], "envoy"));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = Client::connect(weir.address());
            (0..REQUESTS).for_each(|_| drop(client.get("/")));
        });
        for turn in (0..2).cycle().skip(1) {
            if load.is_finished() {
                break;
            }
            weir.reload(&with_log(&logs[turn], "envoy"));
        }
    });
    let count = || {
        logs.iter()
            .map(|log| fs::read_to_string(&log.path).unwrap_or_default().lines().count())
            .sum::<usize>()
    };
    wait::until_true("all lines", || count() == REQUESTS);
    assert_eq!(weir.metric("weir_access_log_dropped_total", &[]), 0.0);
}

#[test]
fn log_that_cannot_be_opened_leaves_the_previous_one_in_force() {
    let log = AccessLogFile::new();
    let weir = Weir::start(&with_log(&log, "envoy"));
    let unusable = "access_log: /no/such/access.log\nrules: [{ name: new, action: deny }]\n";
    weir.assert_reload_rejected(&config("echo", unusable));
    for page in ["/server_info", "/limits"] {
        let problem = "access_log: cannot open /no/such/access.log: No such file or directory";
        assert!(weir.admin_get(page).body.text().contains(problem), "{page} does not show the problem");
    }
    assert_eq!(get(weir.address(), "/still").status, 200, "no part of the new configuration is in force");
    assert!(log.lines(1)[0].contains("/still"));
}

#[test]
fn start_names_the_log_that_it_cannot_open() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weir.yaml");
    fs::write(&file, config("echo", "access_log: /no/such/access.log\n")).unwrap();
    let ended = command(["run", "-c"]).arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success()
            && errors.contains("cannot use `access_log`: cannot open /no/such/access.log: No such file"),
        "{errors}"
    );
}
