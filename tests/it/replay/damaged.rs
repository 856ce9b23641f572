//! Logs with damage: cut off, padded, or with unreadable beginnings.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use super::{Workplace, burst, line, read_json, replay, text};
use crate::support::gzip;

const RULES: &str = "  - { name: per-ip, key: client_ip, limit: 3/min }\n";

#[test]
fn truncated_log_is_reported_up_to_its_end() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", RULES);
    let lines: String =
        (0..3000).map(|index| line(index, &format!("192.0.2.{}", index % 250), "GET /", 200)).collect();
    let mut cut = gzip(&lines);
    cut.truncate(cut.len() - 2000);
    for contents in [cut, gzip(burst())[..60].to_vec()] {
        let log = place.write("access.log.gz", &contents);
        let whole = place.write("whole", burst());
        let json = place.path("report.json");
        let output = replay(&["-c", &rules, "--json", json.to_str().unwrap(), &log, &whole]);
        let (printed, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{errors}");
        if !errors.contains("cannot be read to its end") {
            assert!(errors.contains("access.log.gz: cannot be read"), "{errors}");
            continue;
        }
        assert!(printed.contains("access.log.gz: cannot be read to its end"), "{printed}");
        let report = read_json(&json);
        let requests = report["requests"].as_u64().unwrap();
        assert!((6..3006).contains(&requests), "{requests}");
        assert_eq!((&report["usable"], &report["counts"]["unreadable"]), (&true.into(), &0.into()));
        assert!(report["logs"][0]["error"].is_string());
    }
}

#[test]
fn format_is_detected_from_the_first_readable_lines() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", RULES);
    let banner = "starting\n".repeat(120);
    let long = format!("{}\n", "x".repeat(300_000));
    for (before, unreadable) in
        [("\0".repeat(300_000), 0), (long, 1), (banner, 120), ("\u{feff}".to_owned(), 0)]
    {
        let log = place.write("log", before + &burst());
        let report = place.replay(&["-c", &rules, &log]);
        assert_eq!((&report["requests"], &report["counts"]["unreadable"]), (&6.into(), &unreadable.into()));
    }
}

#[test]
fn standard_input_is_read_once() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", RULES);
    let output = replay(&["-c", &rules, "-", "-"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("only once"), "{}", text(&output.stderr));
    let padded = [&gzip(burst())[..], &[0; 5000]].concat();
    let log = place.write("log.gz", padded);
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["replay", "-c", &rules, "-"])
        .stdin(Stdio::from(File::open(&log).unwrap()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("requests 6"), "{}", text(&output.stdout));
    fs::remove_file(log).unwrap();
}
