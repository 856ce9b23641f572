//! Alerts, as written in the configuration.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OneOrMany, Secret, SecretOrFile, UpstreamTls};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;
use weir_telemetry::alerts::settings::AlertKind;

/// Alerts about this instance, sent to a webhook.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Alerts {
    /// URL that receives alerts by POST, in the JSON format of Alertmanager's webhooks: `http://host[:port]/path`, or
    /// the same with `https`. It may contain a token and is never shown.
    #[cfg_attr(test, schemars(required))]
    pub webhook: Option<Secret<String>>,
    /// Bearer token for the `authorization` header: a text, or a map with `file`. It is a secret and is never shown.
    pub token: Option<SecretOrFile>,
    /// Map of headers that are sent with each notification. The values are secrets and are never shown.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// TLS settings for an `alerts.webhook` that begins with `https://`, as a map. Default: the system's authorities.
    pub tls: Option<Box<UpstreamTls>>,
    /// Alerts that are sent, one or a list of `rejection_spike`, `country_spike`, `store_lost`, `reload_failed`,
    /// `table_full`, `certificate_expiring`, `upstream_unhealthy` and `upstream_down`. Default: all alerts.
    pub only: Option<OneOrMany<AlertKind>>,
    /// Time after which an alert that is still firing is sent again; at least 30s.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::ALERT_REPEAT_INTERVAL))))]
    pub interval: Option<Duration>,
    /// Map of labels that every alert gets, such as `cluster`. An `instance` replaces the name of the host in the label
    /// of that name.
    pub labels: Option<BTreeMap<String, String>>,
    /// URL at which you serve this documentation, such as `https://docs.example.com/weir`. Alerts then have the
    /// annotation `runbook_url`, the address of their runbook. Default: an annotation `runbook` with the path alone.
    pub runbook_url: Option<String>,
}
