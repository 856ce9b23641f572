//! Reloads of the access log.

use std::fs;

use super::AccessLogFile;
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
    assert_eq!(weir.metric("weir_config_restart_pending", &[]), 0.0);
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
    weir.reload(&config("echo", "access_log: /no/such/directory/access.log\n"));
    get(weir.address(), "/still");
    assert!(log.lines(1)[0].contains("/still"));
    assert!(weir.log().iter().any(|line| line.contains("cannot open the access log")));
}
