//! Settings of a limit that several instances share.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use weir_limiter::leases::LeasePolicy;

/// Number of the lowest priority. The highest is 0.
pub const MAX_PRIORITY: u8 = 3;

/// Time that a stored call waits for the store, unless its rule has a maximum of its own. No client waits for it.
const DEFAULT_STORED_WAIT: Duration = Duration::from_secs(1);

/// Settings of a rule's limit over all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// How the instances share the limit.
    pub mode: Mode,
    /// Maximum time a request waits for a response of the store; zero if it never waits, `None` for as long as the latency
    /// of the store needs.
    pub wait: Option<Duration>,
    /// What an instance admits while the store is unreachable.
    pub on_store_loss: OnStoreLoss,
    /// How units are divided when instances demand more than there are.
    pub fairness: Fairness,
    /// Priority, from 0 (served first) to [`MAX_PRIORITY`].
    pub priority: u8,
    /// Source of the number of instances that divides the limit. Always set in [`Mode::Split`], never otherwise.
    pub instances: Option<InstanceSource>,
}

/// How instances share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The store grants leases according to demand, outside the request path.
    #[default]
    Lease,
    /// The limit is divided by the number of instances.
    Split,
    /// The store counts each request.
    Exact,
}

/// What an instance admits while the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnStoreLoss {
    /// The limit divided by the last known number of instances.
    #[default]
    Split,
    /// Its part by the last known demand, which the store holds back meanwhile.
    StrictSplit,
    /// Nothing.
    Deny,
    /// Everything; requests that exceed the limit are marked.
    Allow,
    /// The whole limit, in each instance.
    Local,
}

/// How units are divided when instances demand more than there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Fairness {
    /// In proportion to demand.
    #[default]
    Proportional,
    /// Max-min fair: small demands in full, the others equally.
    MaxMin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstanceSource {
    /// A number in the configuration.
    Count(NonZeroU32),
    /// The number of addresses of a DNS name, such as that of a headless service.
    Dns(Box<str>),
    /// The store, where each instance registers.
    Members,
}

impl SharedLimit {
    /// Returns the settings that the limiter needs. `sends_stored` is whether the rule sends stored calls.
    pub fn lease_policy(&self, sends_stored: bool) -> LeasePolicy {
        LeasePolicy {
            is_exact: self.mode == Mode::Exact,
            max_wait: self.max_wait(sends_stored),
            priority: self.priority,
            is_max_min: self.fairness == Fairness::MaxMin,
            has_parts: self.on_store_loss == OnStoreLoss::StrictSplit,
        }
    }

    /// Returns the maximum time that a request waits for a response of the store; `None` for as long as the latency of the
    /// store needs.
    pub fn max_wait(&self, sends_stored: bool) -> Option<Duration> {
        self.wait.or_else(|| sends_stored.then_some(DEFAULT_STORED_WAIT))
    }

    pub const fn needs_store(&self) -> bool {
        matches!(
            (self.mode, &self.instances),
            (Mode::Lease | Mode::Exact, _) | (_, Some(InstanceSource::Members))
        )
    }
}

impl fmt::Display for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, wait, on_store_loss, fairness, priority, instances } = self;
        let (mode, loss, fairness) = (mode.as_str(), on_store_loss.as_str(), fairness.as_str());
        write!(f, "shared {mode}, ")?;
        match wait {
            Some(wait) => write!(f, "wait {wait:?}")?,
            None => f.write_str("wait auto")?,
        }
        write!(f, ", on_store_loss {loss}, {fairness}, priority {priority}")?;
        instances.as_ref().map_or(Ok(()), |instances| write!(f, ", instances {instances}"))
    }
}

impl Mode {
    /// Returns the keyword in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Split => "split",
            Self::Exact => "exact",
        }
    }
}

impl OnStoreLoss {
    /// Returns the keyword in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::StrictSplit => "strict_split",
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Local => "local",
        }
    }
}

impl Fairness {
    /// Returns the keyword in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proportional => "proportional",
            Self::MaxMin => "max_min",
        }
    }
}

impl fmt::Display for InstanceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Dns(host) => write!(f, "dns {host}"),
            Self::Members => f.write_str("auto"),
        }
    }
}
