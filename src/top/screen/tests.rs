use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::top::snapshot::ReceivedDecisions;

/// Returns a view after two snapshots, a second apart.
fn view() -> TopView {
    let snapshot = |second: u32| {
        let n = u64::from(second);
        serde_json::from_value(json!({
            "time": format!("2026-11-23T20:00:{second:02}Z"), "uptime_seconds": 10_800 + second,
            "version": "0.1.0", "generation": 4, "in_flight": 14,
            "requests": { "total": 145 * n, "by_class": { "2xx": 111 * n, "4xx": 34 * n },
                "by_outcome": { "allowed": 97 * n, "exempt": 12 * n, "delayed": 2 * n, "limited": 30 * n, "banned": 4 * n } },
            "notices": ["The store of shared limits does not respond."],
            "rules": [
                { "name": "health", "action": "allow", "decisions": { "exempt": 12 * n } },
                { "name": "per-ip", "action": "limit", "limits": ["100/s"], "throttle": "hard", "keys": 127,
                  "decisions": { "allowed": 111 * n, "limited": 30 * n, "banned": 4 * n } },
                { "name": "search", "action": "limit", "limits": ["20/s"], "throttle": "delay 500ms", "keys": 3,
                  "factor": 2.5, "decisions": { "allowed": 40 * n, "delayed": 2 * n } },
            ],
            "upstreams": [{ "name": "upstream", "requests": 111 * n, "p50_ms": 3.42, "p99_ms": 41.2, "healthy": 1, "endpoints": 2 }],
            "config": { "status": "rejected", "problems": ["weir.yaml:14:12: wrong"] },
            "top": [{ "rule": "per-ip", "keys": [
                { "key": "client_ip=203.0.113.9", "admitted": 900, "rejected": 0 },
                { "key": "client_ip=203.0.113.7", "admitted": 600, "rejected": 45, "banned": true },
            ] }],
        }))
        .unwrap()
    };
    let mut view = TopView::new("127.0.0.1:9901".to_owned());
    view.add(snapshot(1));
    view.add(snapshot(2));
    view
}

fn texts(lines: &[Line]) -> Vec<String> {
    lines.iter().map(Line::to_text).collect()
}

#[test]
fn text_shows_process_rules_and_keys() {
    let expected = [
        "weir 0.1.0  127.0.0.1:9901  serving  up 3 h 0 min  generation 4",
        "requests 145/s  rejected 34/s  delayed 2.0/s  5xx 0/s  in flight 14",
        "upstream upstream  111/s  p50 3.4 ms  p99 41 ms  healthy 1/2",
        "notice: The store of shared limits does not respond.",
        "problem: weir.yaml:14:12: wrong",
        "",
        "RULE      LIMIT                 ALLOWED/s DELAYED/s REJECTED/s    KEYS",
        "per-ip    100/s                       111         0         34     127",
        "search    20/s delay 500ms x2.5        40       2.0          0       3",
        "health    allow                        12         0          0       –",
        "",
        "HEAVIEST KEY, LAST 1-2 MIN  RULE      ADMITTED  REJECTED",
        "client_ip=203.0.113.7       per-ip         600        45  banned",
        "client_ip=203.0.113.9       per-ip         900         0",
    ];
    assert_eq!(texts(&text(&view())), expected);
}

#[test]
fn screen_fills_the_terminal_and_ends_with_the_keys_to_press() {
    let lines = draw(&view(), &ScreenSize { columns: 100, rows: 30 });
    assert_eq!(lines.len(), 30);
    assert_eq!(lines[29].to_text(), "q quit");
    let without_footer = texts(&lines[..29]).join("\n");
    assert!(without_footer.contains("per-ip") && without_footer.contains("client_ip=203.0.113.7"));
}

#[test]
fn rules_scroll_when_they_do_not_fit() {
    let mut view = view();
    if let Some(snapshot) = &mut view.snapshot {
        snapshot.rules = (0..500)
            .map(|n| ReceivedRule { name: format!("rule-{n:03}"), ..ReceivedRule::default() })
            .collect();
    }
    let size = ScreenSize { columns: 80, rows: 24 };
    assert!(texts(&draw(&view, &size)).iter().any(|line| line.starts_with("rule-000")));
    view.scroll_by(10_000);
    let shown = texts(&draw(&view, &size));
    assert!(shown.iter().any(|line| line.starts_with("rule-499")), "{shown:#?}");
    assert!(shown[23].ends_with("of 500"), "{}", shown[23]);
    view.scroll_by(-10_000);
    assert!(texts(&draw(&view, &size)).iter().any(|line| line.starts_with("rule-000")));
}

#[test]
fn lost_connection_shows_its_reason_and_the_age_of_the_data() {
    let mut view = view();
    view.set_lost("cannot connect".to_owned());
    for _ in 0..75 {
        view.tick();
    }
    let shown = texts(&draw(&view, &ScreenSize { columns: 100, rows: 30 }));
    assert_eq!(shown[1], "error: data is 1 min 15 s old, reconnecting: cannot connect");
    let mut empty = TopView::new("127.0.0.1:9901".to_owned());
    empty.set_lost("cannot connect".to_owned());
    let shown = texts(&draw(&empty, &ScreenSize { columns: 100, rows: 30 }));
    assert_eq!(shown, ["weir  127.0.0.1:9901  connecting", "error: cannot connect; reconnecting"]);
}

#[test]
fn instance_without_rules_is_named_as_such() {
    let mut view = TopView::new("127.0.0.1:9901".to_owned());
    view.add(ReceivedSnapshot::default());
    let shown = texts(&draw(&view, &ScreenSize { columns: 80, rows: 24 }));
    assert!(shown.iter().any(|line| line == "no rules: every request is forwarded"), "{shown:#?}");
}

#[test]
fn wide_terminal_shows_the_rates_of_the_last_seconds() {
    let mut view = view();
    for rates in [[1.0, 8.0, 4.0], [0.0, 0.0, 8.0]] {
        for (name, rate) in ["per-ip", "search", "health"].into_iter().zip(rates) {
            view.samples.entry(name.to_owned()).or_default().push_back(rate);
        }
    }
    let shown = texts(&draw(&view, &ScreenSize { columns: 120, rows: 30 }));
    assert!(shown.iter().any(|line| line.ends_with("LAST SECONDS")), "{shown:#?}");
    let health = shown.iter().find(|line| line.starts_with("health")).unwrap();
    assert!(health.ends_with("█▃▆"), "{health}");
    let narrow = texts(&draw(&view, &ScreenSize { columns: 99, rows: 30 }));
    assert!(!narrow.iter().any(|line| line.contains('█')), "{narrow:#?}");
}

#[test]
fn rejections_are_emphasised() {
    let lines = draw(&view(), &ScreenSize { columns: 100, rows: 30 });
    let row = lines.iter().find(|line| line.to_text().starts_with("per-ip")).unwrap();
    let shown = row.to_terminal(100, super::super::line::ColorChoice::Ansi);
    assert!(shown.contains("\x1b[1;31m         34\x1b[0m"), "{shown:?}");
}

#[test]
fn terminal_of_80_columns_cuts_names_and_never_rejections() {
    let mut view = view();
    if let Some(snapshot) = &mut view.snapshot {
        snapshot.rules.push(ReceivedRule {
            name: "a-rule-whose-name-has-forty-characters-ok".to_owned(),
            action: "limit".to_owned(),
            in_flight: Some(50),
            decisions: ReceivedDecisions { shadow: 1, delayed: 1, ..ReceivedDecisions::default() },
            ..ReceivedRule::default()
        });
    }
    for columns in [20, 30, 40, 60, 80] {
        let shown = draw(&view, &ScreenSize { columns, rows: 24 });
        let shown: Vec<String> = shown
            .iter()
            .map(|line| line.to_terminal(columns, super::super::line::ColorChoice::Plain))
            .collect();
        let heading = shown.iter().find(|line| line.starts_with("RULE")).unwrap();
        assert!(heading.contains("REJECTED/s"), "{columns}: {heading}");
        let row = shown.iter().find(|line| line.starts_with("per-ip")).unwrap();
        let end = heading.find("REJECTED/s").unwrap() + "REJECTED/s".len();
        assert!(row.chars().take(end).collect::<String>().ends_with(" 34"), "{columns}: {row}");
        if columns == 80 {
            for column in ["LIMIT", "ALLOWED/s", "DELAYED/s", "SHADOW/s", "KEYS"] {
                assert!(heading.contains(column), "{heading}");
            }
            let concurrency = shown.iter().find(|line| line.starts_with("a-rule-")).unwrap();
            assert!(concurrency.contains("50 in flight"), "{concurrency}");
            assert!(shown.iter().any(|line| line.contains(" banned")), "{shown:#?}");
        }
    }
}

#[test]
fn tokens_are_shown_as_tokens() {
    let mut view = view();
    let snapshot = |second: u64| {
        serde_json::from_value(json!({
            "time": format!("2026-11-23T20:00:{second:02}Z"), "uptime_seconds": second, "version": "0.1.0",
            "rules": [
                { "name": "tokens", "action": "limit", "limits": ["100000/min"], "unit": "tokens",
                  "charged_units": 700 * second, "decisions": { "allowed": second } },
                { "name": "credits", "action": "limit", "limits": ["50/d"], "unit": "units",
                  "charged_units": second, "decisions": { "allowed": second } },
                { "name": "per-ip", "action": "limit", "limits": ["10/s"], "unit": "requests" },
            ],
        }))
        .unwrap()
    };
    view.add(snapshot(10));
    view.add(snapshot(12));
    let shown = texts(&text(&view));
    let of = |name: &str| shown.iter().find(|line| line.starts_with(name)).unwrap();
    assert_eq!(of("RULE"), "RULE      LIMIT             ALLOWED/s REJECTED/s  TOKENS/s");
    assert_eq!(of("tokens"), "tokens    100000 tokens/min       1.0          0       700");
    assert_eq!(of("credits"), "credits   50 units/d              1.0          0         –");
    assert_eq!(of("per-ip"), "per-ip    10/s                      0          0         –");
}

#[test]
fn columns_without_a_number_are_left_out() {
    let heading =
        |view: &TopView| texts(&text(view)).into_iter().find(|line| line.starts_with("RULE")).unwrap();
    assert!(!heading(&view()).contains("SHADOW/s"));
    let mut view = view();
    if let Some(snapshot) = &mut view.snapshot {
        snapshot.rules[1].decisions.shadow = 1;
    }
    assert!(heading(&view).contains("SHADOW/s"));
}

proptest! {
    #[test]
    fn any_size_is_filled_and_never_exceeded(columns in 0_usize..200, rows in 0_usize..60, scroll in 0_isize..10) {
        let mut view = view();
        view.scroll_by(scroll);
        let lines = draw(&view, &ScreenSize { columns, rows });
        prop_assert_eq!(lines.len(), rows);
        for line in lines {
            prop_assert!(width(&line.to_terminal(columns, super::super::line::ColorChoice::Plain)) <= columns);
        }
    }
}
