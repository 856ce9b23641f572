//! How far limits stretch, and why.
//!
//! Written beside the recorder, which would keep showing what is gone: a rule, or a signal that fell silent.

use super::exporter::{escaped, header};
use super::families::{self, Family};
use crate::limiter::elastic::controller::Assessment;
use crate::limiter::elastic::signal::Level;

/// Elastic limits at one moment.
#[derive(Clone, Debug, Default)]
pub struct Elastic {
    /// What the controller thinks.
    pub assessment: Assessment,
    /// How many times the written limit each elastic rule allows, by name.
    pub factors: Vec<(Box<str>, f64)>,
}

impl Elastic {
    /// The families, each with its series.
    pub(super) fn families(&self) -> [String; 4] {
        let headroom = self.assessment.headroom.fraction();
        let of_rule = |(rule, factor): &(Box<str>, f64)| {
            format!("{}{{rule=\"{}\"}} {factor}\n", families::ELASTIC_FACTOR.name, escaped(rule))
        };
        [
            format!(
                "{}{} {headroom}\n",
                header(&families::ELASTIC_HEADROOM),
                families::ELASTIC_HEADROOM.name
            ),
            header(&families::ELASTIC_FACTOR) + &self.factors.iter().map(of_rule).collect::<String>(),
            self.levels(&families::ELASTIC_SIGNAL, |level| level.value),
            self.levels(&families::ELASTIC_THRESHOLD, |level| level.threshold),
        ]
    }

    fn levels(&self, family: &Family, number: fn(&Level) -> f64) -> String {
        let line =
            |level: &Level| format!("{}{{signal=\"{}\"}} {}\n", family.name, level.signal, number(level));
        header(family) + &self.assessment.levels.iter().flatten().map(line).collect::<String>()
    }
}
