//! Alerts that are sent to a webhook, in the format of Alertmanager.

use std::fs;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{AfterResponse, Origin, Weir, config, wait};

/// Maximum time until the next sample has been evaluated and sent; samples are taken every 5 s.
const MAX_NOTIFICATION_TIME: Duration = Duration::from_secs(30);

const INVALID: &str = "listeners: [";

/// A receiver that accepts notifications after rejecting the first `failures` of them.
fn receiver(failures: usize) -> Origin {
    let left = Mutex::new(failures);
    Origin::start(move |request| {
        request.body()?;
        let mut left = left.lock().unwrap();
        let status = if *left > 0 { "503 Service Unavailable" } else { "204 No Content" };
        *left = left.saturating_sub(1);
        request.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    })
}

/// Waits until there are `count` notifications, and returns the last one.
fn notification(receiver: &Origin, count: usize) -> Value {
    let last = wait::within(MAX_NOTIFICATION_TIME, || {
        let complete: Vec<_> = receiver.requests().into_iter().filter(|request| request.complete).collect();
        (complete.len() >= count).then(|| complete[count - 1].body.bytes.clone())
    });
    serde_json::from_slice(&last.unwrap_or_else(|| panic!("no notification {count}"))).unwrap()
}

fn sent(weir: &Weir, outcome: &str) -> f64 {
    weir.metric("weir_alerts_notifications_total", &[("outcome", outcome)])
}

fn firing(weir: &Weir) -> f64 {
    weir.metric("weir_alerts_firing", &[("alertname", "WeirReloadFailed")])
}

#[test]
fn failed_reload_is_sent_over_tls_and_resolved_by_a_valid_one() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, receiver) = (Authority::new("authority"), receiver(0));
    let ca = authority.write(&directory.path().join("ca.crt"));
    let front = TlsFront::start(authority.server("hooks.example", &["http/1.1"], false), receiver.address());
    let token = directory.path().join("token");
    fs::write(&token, "s3cr3t-token\n").unwrap();
    let alerts = format!(
        "alerts:\n  webhook: 'https://127.0.0.1:{}/hook/s3cr3t-path?k=1'\n  token: {{ file: '{}' }}\n  \
         headers: {{ x-tenant: acme }}\n  tls: {{ ca: '{}', server_name: hooks.example }}\n  \
         labels: {{ cluster: eu-1, instance: weir-0 }}\n  runbook_url: https://docs.example/weir/\n",
        front.port(),
        token.display(),
        ca.display()
    );
    let valid = config("echo", &alerts);
    let weir = Weir::start(&valid);
    weir.assert_reload_rejected(INVALID);

    let fired = notification(&receiver, 1);
    let alert = &fired["alerts"][0];
    assert_eq!(
        (&fired["version"], &fired["status"], &alert["status"]),
        (&"4".into(), &"firing".into(), &"firing".into())
    );
    let labels = serde_json::json!({
        "alertname": "WeirReloadFailed", "cluster": "eu-1", "instance": "weir-0", "severity": "warning",
    });
    assert_eq!((&alert["labels"], &alert["endsAt"]), (&labels, &"0001-01-01T00:00:00Z".into()));
    let description = alert["annotations"]["description"].as_str().unwrap();
    assert!(
        description.starts_with("first problem: ") && description.contains("weir.yaml:2:"),
        "{description}"
    );
    let runbook = "https://docs.example/weir/operations/alerts.html#weirreloadfailed";
    assert_eq!(alert["annotations"]["runbook_url"], runbook);
    let head = receiver.last_request().head;
    assert_eq!((head.word(0), head.word(1)), ("POST", "/hook/s3cr3t-path?k=1"));
    let fields = ["authorization", "x-tenant", "content-type"].map(|name| head.get(name).unwrap_or_default());
    assert_eq!(fields, ["Bearer s3cr3t-token", "acme", "application/json"]);
    wait::until_true("the metrics", || (sent(&weir, "sent"), firing(&weir)) == (1.0, 1.0));

    let dump = weir.admin_get("/config_dump").body.text();
    assert!(!dump.contains("s3cr3t") && !weir.log().concat().contains("s3cr3t"), "{dump}");

    weir.replace_file(&format!("{valid}# valid again\n"));
    let resolved = notification(&receiver, 2);
    assert_eq!((&resolved["status"], &resolved["alerts"][0]["labels"]), (&"resolved".into(), &labels));
    assert_eq!(resolved["alerts"][0]["fingerprint"], alert["fingerprint"]);
    assert_eq!(resolved["alerts"][0]["startsAt"], alert["startsAt"]);
    wait::until_true("the metrics", || (sent(&weir, "sent"), firing(&weir)) == (2.0, 0.0));
}

#[test]
fn alerts_are_turned_on_by_a_reload_and_sent_again_after_a_failure() {
    let receiver = receiver(1);
    let weir = Weir::start(&config("echo", ""));
    assert!(!weir.admin_get("/metrics").body.text().contains("weir_alerts_"));
    weir.reload(&config("echo", &format!("alerts: {{ webhook: \"http://{}\" }}\n", receiver.address())));
    weir.assert_reload_rejected(INVALID);
    let (first, second) = (notification(&receiver, 1), notification(&receiver, 2));
    assert_eq!((&first["status"], &second["alerts"]), (&"firing".into(), &first["alerts"]));
    wait::until_true("the metrics", || (sent(&weir, "failed"), sent(&weir, "sent")) == (1.0, 1.0));
    let warning = "cannot send alerts, will retry";
    assert_eq!(weir.log().iter().filter(|line| line.contains(warning)).count(), 1);
}

#[test]
fn alerts_that_are_not_selected_are_not_sent() {
    let receiver = receiver(0);
    let settings = format!("alerts: {{ webhook: \"http://{}\", only: upstream_down }}\n", receiver.address());
    let valid = config("127.0.0.1:1", &settings);
    let weir = Weir::start(&valid);
    weir.assert_reload_rejected(INVALID);
    // An upstream without endpoints would be an alert, and this one has an endpoint.
    let samples = Duration::from_secs(11);
    wait::throughout(samples, || assert_eq!(receiver.connections(), 0));
    assert_eq!(firing(&weir), 0.0);
}
