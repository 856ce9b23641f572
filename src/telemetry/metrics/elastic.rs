//! How far limits stretch, and why.

use super::exporter::Registry;
use super::families;
use crate::limiter::elastic::controller::Assessment;

/// Elastic limits at one moment.
#[derive(Clone, Debug, Default)]
pub struct Elastic {
    /// What the controller thinks.
    pub assessment: Assessment,
    /// How many times the written limit each elastic rule allows, by name.
    pub factors: Vec<(Box<str>, f64)>,
}

impl Elastic {
    pub(super) fn register(&self, registry: &Registry) {
        registry.set(&families::ELASTIC_HEADROOM, &[], self.assessment.headroom.fraction());
        for (rule, factor) in &self.factors {
            registry.set(&families::ELASTIC_FACTOR, &[("rule", rule)], *factor);
        }
        for level in self.assessment.levels.iter().flatten() {
            let signal = level.signal.to_string();
            registry.set(&families::ELASTIC_SIGNAL, &[("signal", &signal)], level.value);
            registry.set(&families::ELASTIC_THRESHOLD, &[("signal", &signal)], level.threshold);
        }
    }
}
