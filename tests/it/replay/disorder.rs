//! Logs that are not in order of time, and lines whose time cannot be right.

use super::{Workplace, line, read_json, replay, text};

const RULES: &str = "  - { name: per-ip, key: client_ip, limit: 30/min }\n";

/// Returns a log of 20 000 requests in an hour, of which no rule rejects one.
fn calm_log() -> Vec<String> {
    let at = |index: u32| line(index * 18 / 100, &format!("192.0.2.{}", index % 250), "GET /", 200);
    (0..20_000).map(at).collect()
}

#[test]
fn logs_in_the_wrong_order_are_not_usable() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", RULES);
    let calm = calm_log();
    let swapped = [&calm[10_000..], &calm[..10_000]].concat().concat();
    let reversed: String = calm.iter().rev().map(String::as_str).collect();
    for log in [swapped, reversed] {
        let log = place.write("log", log);
        let json = place.path("report.json");
        let output = replay(&["-c", &rules, "--json", json.to_str().unwrap(), &log]);
        assert_eq!(output.status.code(), Some(1));
        let printed = text(&output.stdout);
        let (problem, totals) = (printed.find("results are not usable: "), printed.find("requests 20 000"));
        assert!(problem.is_some() && problem < totals, "{printed}");
        assert!(printed.contains("Pass the logs as separate files"), "{printed}");
        assert!(text(&output.stderr).contains("results are not usable: "), "{}", text(&output.stderr));
        let report = read_json(&json);
        assert_eq!(report["usable"], false);
        assert!(report["problems"][0].as_str().unwrap().contains("late"), "{report}");
    }
    let halves = [&calm[10_000..], &calm[..10_000]].map(<[String]>::concat);
    let (late, early) = (place.write("access.log", &halves[0]), place.write("access.log.1", &halves[1]));
    let report = place.replay(&["-c", &rules, &late, &early]);
    assert_eq!((&report["rejected"], &report["late"]), (&0.into(), &0.into()));
    assert_eq!((&report["usable"], report["problems"].as_array().unwrap().len()), (&true.into(), 0));
}

#[test]
fn lines_dated_far_ahead_are_set_aside() {
    let place = Workplace::new();
    let rules = place.rules("weir.yaml", RULES);
    let mut lines = calm_log();
    for (at, year) in [(10_000, "2099"), (10_001, "2100"), (0, "2099")] {
        lines.insert(at, lines[at].replace("2026", year));
    }
    let log = place.write("log", lines.concat());
    let report = place.replay(&["-c", &rules, &log]);
    assert_eq!((&report["rejected"], &report["late"]), (&0.into(), &0.into()));
    assert_eq!((&report["counts"]["implausible_time"], &report["requests"]), (&3.into(), &20_000.into()));
    let shown = &report["logs"][0]["implausible_examples"];
    assert_eq!(
        (&shown[0]["line"], &shown[1]["line"], &shown[2]["line"]),
        (&1.into(), &10_002.into(), &10_003.into())
    );
    assert!(shown[1]["text"].as_str().unwrap().contains("/2099:"), "{shown}");
    assert_eq!(report["to"], "2026-11-23T20:59:59.000Z");
    let printed = replay(&["-c", &rules, &log]);
    assert!(text(&printed.stdout).contains("3 lines are set aside"), "{}", text(&printed.stdout));
}
