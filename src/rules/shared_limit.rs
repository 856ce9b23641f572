//! A limit that all instances share: how units of it reach an instance, and what holds while the store is away.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::limiter::claims::Sharing;

/// The lowest priority; 0 is the highest.
pub const MAX_PRIORITY: u8 = 3;

/// A rule's limit over all instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// How units reach an instance.
    pub mode: Mode,
    /// How long a request may wait for a response of the store; zero if it never waits.
    pub wait: Duration,
    /// What an instance allows while it has no connection to the store.
    pub on_store_loss: OnStoreLoss,
    /// How units are shared out when instances demand more than there are.
    pub fairness: Fairness,
    /// From 0, served first, to [`MAX_PRIORITY`].
    pub priority: u8,
    /// The number of instances that the limit is divided by; always there in [`Mode::Split`], else never.
    pub instances: Option<Instances>,
}

/// How units of a shared limit reach an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Claimed from the store by demand, beside requests.
    #[default]
    Lease,
    /// The limit divided by the number of instances.
    Split,
    /// The store counts each request.
    Exact,
}

/// What an instance allows while it has no connection to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnStoreLoss {
    /// The limit divided by the last known number of instances.
    #[default]
    Split,
    /// Nothing.
    Deny,
    /// Everything, counted and marked.
    Allow,
    /// The whole limit, in each instance.
    Local,
}

/// How units are shared out when instances demand more than there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fairness {
    /// In proportion to demand.
    #[default]
    Proportional,
    /// Small demands in full, the others alike.
    MaxMin,
}

/// Where the number of instances comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instances {
    /// The configuration.
    Count(NonZeroU32),
    /// The number of addresses of a name, such as that of a headless service.
    Dns(Box<str>),
    /// The store, where each instance registers.
    Members,
}

impl SharedLimit {
    /// The same as the limiter has it.
    pub fn sharing(&self) -> Sharing {
        Sharing {
            is_exact: self.mode == Mode::Exact,
            waits: !self.wait.is_zero(),
            priority: self.priority,
            is_max_min: self.fairness == Fairness::MaxMin,
        }
    }

    /// Whether it needs a store.
    pub const fn needs_store(&self) -> bool {
        matches!((self.mode, &self.instances), (Mode::Lease | Mode::Exact, _) | (_, Some(Instances::Members)))
    }
}

impl fmt::Display for SharedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, wait, on_store_loss, fairness, priority, instances } = self;
        let (mode, loss, fairness) = (mode.as_str(), on_store_loss.as_str(), fairness.as_str());
        write!(f, "shared {mode}, wait {wait:?}, on_store_loss {loss}, {fairness}, priority {priority}")?;
        instances.as_ref().map_or(Ok(()), |instances| write!(f, ", instances {instances}"))
    }
}

impl Mode {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Split => "split",
            Self::Exact => "exact",
        }
    }
}

impl OnStoreLoss {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Local => "local",
        }
    }
}

impl Fairness {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proportional => "proportional",
            Self::MaxMin => "max_min",
        }
    }
}

impl fmt::Display for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Dns(host) => write!(f, "dns {host}"),
            Self::Members => f.write_str("auto"),
        }
    }
}
