//! Notifications in the format of Alertmanager's webhooks, version 4, so that its receivers work without changes.
//!
//! Format: <https://prometheus.io/docs/alerting/latest/configuration/#webhook_config>.

use std::collections::BTreeMap;

use serde::Serialize;

use super::tracker::Notification;
use crate::rfc3339;
use weir_limiter::timestamp::Timestamp;

/// Alertmanager's time for "not yet".
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Label by which receivers tell processes apart.
pub(super) const INSTANCE: &str = "instance";

type AlertLabels = BTreeMap<String, String>;

/// What every alert of the instance has, in addition to what is its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<'a> {
    pub(super) labels: &'a AlertLabels,
    /// URL at which the documentation is served, without a slash at the end.
    pub(super) runbook_url: Option<&'a str>,
}

/// The conversion from the clock of the limits to wall-clock time: both at the same moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Timestamp,
    pub(super) wall_clock: Timestamp,
}

/// Body of a notification.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WebhookMessage {
    version: &'static str,
    group_key: String,
    truncated_alerts: usize,
    status: &'static str,
    receiver: &'static str,
    group_labels: AlertLabels,
    common_labels: AlertLabels,
    common_annotations: AlertLabels,
    #[serde(rename = "externalURL")]
    external_url: &'static str,
    alerts: Vec<WebhookAlert>,
}

/// One alert of a notification.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WebhookAlert {
    status: &'static str,
    labels: AlertLabels,
    annotations: AlertLabels,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: &'static str,
    fingerprint: String,
}

/// Returns the body of a request with these notifications. `truncated` is the number of further alerts.
pub(super) fn message(
    notifications: &[Notification],
    shared: Common<'_>,
    truncated: usize,
    at: Moment,
) -> serde_json::Result<Vec<u8>> {
    let alerts: Vec<WebhookAlert> =
        notifications.iter().map(|notification| alert(notification, shared, at)).collect();
    let is_firing = notifications.iter().any(|notification| notification.ended_at.is_none());
    let group = shared.labels.iter().filter(|(name, _)| *name == INSTANCE);
    let group: AlertLabels = group.map(|(name, value)| (name.clone(), value.clone())).collect();
    let instance = group.get(INSTANCE).map_or("", String::as_str);
    serde_json::to_vec(&WebhookMessage {
        version: "4",
        group_key: format!("{{}}:{{{INSTANCE}={instance:?}}}"),
        truncated_alerts: truncated,
        status: status(is_firing),
        receiver: "weir",
        common_labels: common(alerts.iter().map(|alert| &alert.labels)),
        common_annotations: common(alerts.iter().map(|alert| &alert.annotations)),
        group_labels: group,
        external_url: "",
        alerts,
    })
}

fn alert(notification: &Notification, shared: Common<'_>, at: Moment) -> WebhookAlert {
    let id = &notification.id;
    let mut labels = shared.labels.clone();
    labels.insert("alertname".to_owned(), id.kind.alert_name().to_owned());
    labels.insert("severity".to_owned(), id.severity.as_str().to_owned());
    if let Some(name) = id.kind.subject_label() {
        labels.insert(name.to_owned(), id.subject.to_string());
    }
    let page = format!("operations/alerts.html#{}", id.kind.alert_name().to_lowercase());
    // As in the rules for Prometheus. A relative path is no URL, so it has another name.
    let runbook = match shared.runbook_url {
        Some(base) => ("runbook_url", format!("{base}/{page}")),
        None => ("runbook", page),
    };
    let annotations = [
        ("summary", notification.summary.clone()),
        ("description", notification.description.clone()),
        runbook,
    ];
    WebhookAlert {
        status: status(notification.ended_at.is_none()),
        fingerprint: format!("{:016x}", fingerprint(&labels)),
        labels,
        annotations: annotations.into_iter().map(|(name, text)| (name.to_owned(), text)).collect(),
        starts_at: rfc3339(at.wall_clock_at(notification.started_at)),
        ends_at: notification.ended_at.map_or_else(|| NEVER.to_owned(), |end| rfc3339(at.wall_clock_at(end))),
        generator_url: "",
    }
}

impl Moment {
    fn wall_clock_at(self, time: Timestamp) -> Timestamp {
        self.wall_clock.saturating_sub(self.now.since(time))
    }
}

const fn status(is_firing: bool) -> &'static str {
    if is_firing { "firing" } else { "resolved" }
}

/// Returns the entries that all maps share.
fn common<'a>(mut maps: impl Iterator<Item = &'a AlertLabels>) -> AlertLabels {
    let mut shared = maps.next().cloned().unwrap_or_default();
    maps.for_each(|map| shared.retain(|name, value| map.get(name) == Some(value)));
    shared
}

/// Returns the identity of an alert by its labels: FNV-1a over names and values, each ended by 0xff, as Prometheus
/// computes it.
fn fingerprint(labels: &AlertLabels) -> u64 {
    let bytes =
        labels.iter().flat_map(|(name, value)| [name, value]).flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::conditions::AlertId;
    use super::super::settings::{AlertKind, AlertSeverity};
    use super::*;

    fn notification(rule: &str, ended_at: Option<u64>) -> Notification {
        Notification {
            id: AlertId {
                kind: AlertKind::RejectionSpike,
                severity: AlertSeverity::Warning,
                subject: rule.into(),
            },
            summary: format!("rule {rule}"),
            description: "many".to_owned(),
            started_at: Timestamp::from_secs(1_000_000),
            ended_at: ended_at.map(Timestamp::from_secs),
        }
    }

    fn sent(notifications: &[Notification]) -> Value {
        let labels = [("cluster", "eu"), ("instance", "weir-0")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        // The wall clock is ten seconds behind the clock of the limits.
        let moment =
            Moment { now: Timestamp::from_secs(1_000_100), wall_clock: Timestamp::from_secs(1_000_090) };
        let shared = Common { labels: &labels, runbook_url: None };
        serde_json::from_slice(&message(notifications, shared, 2, moment).unwrap()).unwrap()
    }

    #[test]
    fn message_has_alertmanagers_fields() {
        let expected = json!({
            "version": "4",
            "groupKey": "{}:{instance=\"weir-0\"}",
            "truncatedAlerts": 2,
            "status": "firing",
            "receiver": "weir",
            "groupLabels": {"instance": "weir-0"},
            "commonLabels": {
                "alertname": "WeirRejectionSpike", "cluster": "eu", "instance": "weir-0",
                "rule": "per-ip", "severity": "warning",
            },
            "commonAnnotations": {
                "description": "many", "runbook": "operations/alerts.html#weirrejectionspike",
                "summary": "rule per-ip",
            },
            "externalURL": "",
            "alerts": [{
                "status": "firing",
                "labels": {
                    "alertname": "WeirRejectionSpike", "cluster": "eu", "instance": "weir-0",
                    "rule": "per-ip", "severity": "warning",
                },
                "annotations": {
                    "description": "many", "runbook": "operations/alerts.html#weirrejectionspike",
                    "summary": "rule per-ip",
                },
                "startsAt": "1970-01-12T13:46:30.000Z",
                "endsAt": "0001-01-01T00:00:00Z",
                "generatorURL": "",
                "fingerprint": sent(&[notification("per-ip", None)])["alerts"][0]["fingerprint"],
            }],
        });
        assert_eq!(sent(&[notification("per-ip", None)]), expected);
    }

    #[test]
    fn message_is_resolved_only_if_all_its_alerts_are() {
        let (firing, ended) = (notification("a", None), notification("b", Some(1_000_050)));
        let both = sent(&[firing, ended.clone()]);
        assert_eq!((&both["status"], &both["alerts"][1]["status"]), (&json!("firing"), &json!("resolved")));
        assert_eq!(both["alerts"][1]["endsAt"], "1970-01-12T13:47:20.000Z");
        assert_eq!(both["commonLabels"].get("rule"), None);
        assert_ne!(both["alerts"][0]["fingerprint"], both["alerts"][1]["fingerprint"]);
        assert_eq!(sent(&[ended])["status"], "resolved");
    }

    #[test]
    fn fingerprint_is_that_of_prometheus() {
        assert_eq!(fingerprint(&AlertLabels::new()), 14_695_981_039_346_656_037);
        let labels = [("a".to_owned(), "b".to_owned())].into();
        let expected = [b'a', 0xff, b'b', 0xff].into_iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
        });
        assert_eq!(fingerprint(&labels), expected);
    }
}
