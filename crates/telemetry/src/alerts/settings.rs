//! Settings of alerts, and the set of conditions that can be alerted on.

use std::collections::BTreeMap;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use weir_net::http_client::HttpTarget;

/// Settings of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertSettings {
    /// Receiver of the notifications, with the headers of each, including the authentication.
    pub webhook: HttpTarget,
    /// Alerts that are evaluated.
    pub kinds: AlertKindSet,
    /// Time after which a firing alert is sent again.
    pub repeat_interval: Duration,
    /// Labels of every alert, in addition to its own.
    pub labels: BTreeMap<String, String>,
    /// URL at which the documentation is served, without a slash at the end.
    pub runbook_url: Option<Box<str>>,
}

/// A condition that can be alerted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AlertKind {
    /// A rule rejects many more requests than it did in the last hour.
    RejectionSpike,
    /// Clients of one country are rejected much more often than in the last hour.
    CountrySpike,
    /// The store of shared limits does not respond.
    StoreLost,
    /// The last configuration is invalid.
    ReloadFailed,
    /// The counter table is full.
    TableFull,
    /// A certificate expires soon, or has expired.
    CertificateExpiring,
    /// Some endpoints of an upstream are unhealthy.
    UpstreamUnhealthy,
    /// All endpoints of an upstream are unhealthy.
    UpstreamDown,
}

/// A set of alert kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlertKindSet(u16);

/// Urgency of an alert, as its label `severity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlertSeverity {
    /// To be looked at in working hours.
    Warning,
    /// Clients are affected, or will be soon.
    Critical,
}

impl AlertKind {
    /// Every kind, in order of declaration.
    pub const ALL: [Self; 8] = [
        Self::RejectionSpike,
        Self::CountrySpike,
        Self::StoreLost,
        Self::ReloadFailed,
        Self::TableFull,
        Self::CertificateExpiring,
        Self::UpstreamUnhealthy,
        Self::UpstreamDown,
    ];

    /// Returns the label `alertname`. The Prometheus rules have an alert of the same name.
    pub const fn alert_name(self) -> &'static str {
        match self {
            Self::RejectionSpike => "WeirRejectionSpike",
            Self::CountrySpike => "WeirCountryRejectionSpike",
            Self::StoreLost => "WeirStoreLost",
            Self::ReloadFailed => "WeirReloadFailed",
            Self::TableFull => "WeirTableFull",
            Self::CertificateExpiring => "WeirCertificateExpiring",
            Self::UpstreamUnhealthy => "WeirUpstreamUnhealthy",
            Self::UpstreamDown => "WeirUpstreamDown",
        }
    }

    /// Returns the label that names what an alert is about; `None` if there is only one.
    pub(super) const fn subject_label(self) -> Option<&'static str> {
        match self {
            Self::RejectionSpike => Some("rule"),
            Self::CountrySpike => Some("country"),
            Self::CertificateExpiring => Some("certificate"),
            Self::UpstreamUnhealthy | Self::UpstreamDown => Some("upstream"),
            Self::StoreLost | Self::ReloadFailed | Self::TableFull => None,
        }
    }

    /// Returns how long a condition must hold before it is an alert. A minute of rejections is already in the rate; a
    /// reload, a full table and a date are no flickering measurements.
    pub(super) const fn hold_time(self) -> Duration {
        match self {
            Self::RejectionSpike | Self::CountrySpike | Self::ReloadFailed | Self::TableFull => {
                Duration::ZERO
            }
            // Many programs renew a certificate when exactly a third of its validity is left.
            Self::CertificateExpiring => Duration::from_secs(300),
            Self::StoreLost => Duration::from_secs(30),
            Self::UpstreamUnhealthy => Duration::from_secs(60),
            Self::UpstreamDown => Duration::from_secs(15),
        }
    }

    /// Returns how long an alert keeps firing after its condition has ended, so that one that comes and goes is one
    /// alert.
    pub(super) const fn keep_firing_time(self) -> Duration {
        match self {
            Self::RejectionSpike | Self::CountrySpike | Self::TableFull => Duration::from_secs(300),
            Self::StoreLost | Self::UpstreamUnhealthy | Self::UpstreamDown => Duration::from_secs(60),
            Self::ReloadFailed | Self::CertificateExpiring => Duration::ZERO,
        }
    }
}

impl AlertKindSet {
    /// All kinds.
    pub const ALL: Self = Self((1 << AlertKind::ALL.len()) - 1);

    /// Whether the set contains `kind`.
    pub const fn contains(self, kind: AlertKind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }
}

impl FromIterator<AlertKind> for AlertKindSet {
    fn from_iter<I: IntoIterator<Item = AlertKind>>(kinds: I) -> Self {
        Self(kinds.into_iter().fold(0, |set, kind| set | 1 << kind as u16))
    }
}

impl AlertSeverity {
    /// Returns the label value.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_set_contains_exactly_its_kinds() {
        for kind in AlertKind::ALL {
            let only: AlertKindSet = [kind].into_iter().collect();
            assert!(AlertKind::ALL.iter().all(|other| only.contains(*other) == (*other == kind)));
            assert!(AlertKindSet::ALL.contains(kind));
        }
    }
}
