//! The table: the provider's rejections, use of its limit, waits and fairness, by kind of limit, limit, number of
//! instances and demand.

use crate::callers::Group;
use crate::callers::outcomes::GroupReport;
use crate::callers::schedule::Demand;
use crate::experiment::{Experiment, Laboratory, Results};
use crate::figures::{Quantiles, jain};
use crate::provider::enforcement::Kind;
use crate::provider::{ProviderSettings, Signals};
use crate::rule::{Rule, Treatment};

/// Maximum number of calls that wait at once. It bounds the maximum wait of high limits.
const MAX_WAITING: f64 = 4000.0;
/// Maximum wait, in seconds.
const MAX_WAIT: f64 = 2.0;
const TENANTS: usize = 8;
/// Callers that find the capacity of the machine.
const CAPACITY_CALLERS: usize = 64;

/// Demand on the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// At random, 90 % of the limit.
    Steady,
    /// The same mean, all of it in the first quarter of each second.
    Bursty,
    /// At random, twice the limit.
    Double,
    /// More callers than the limit can serve. Each makes its next call when the last one has returned.
    Closed,
    /// Tenants with unequal demand, first come first served: one with as much as the limit, seven with a quarter of it.
    Tenants,
    /// The same tenants take turns.
    FairTenants,
}

impl Shape {
    pub(crate) const ALL: [(&'static str, Self); 6] = [
        ("steady", Self::Steady),
        ("bursty", Self::Bursty),
        ("double", Self::Double),
        ("closed", Self::Closed),
        ("tenants", Self::Tenants),
        ("fair-tenants", Self::FairTenants),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, shape)| *shape == self).map_or("", |(name, _)| name)
    }

    fn groups(self, limit: f64) -> Vec<Group> {
        let group = |number: usize, demand| Group { tenant: format!("tenant-{number}"), demand };
        match self {
            Self::Steady => vec![group(0, Demand::Random(0.9 * limit))],
            Self::Bursty => vec![group(0, Demand::Bursts(0.9 * limit))],
            Self::Double => vec![group(0, Demand::Random(2.0 * limit))],
            Self::Closed => {
                let callers = limit * max_wait(limit) / 2.0;
                vec![group(0, Demand::Closed(callers.ceil() as usize))]
            }
            Self::Tenants | Self::FairTenants => {
                let part = |number: usize| if number == 0 { 1.0 } else { 0.25 };
                (0..TENANTS).map(|number| group(number, Demand::Random(part(number) * limit))).collect()
            }
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) limit: u64,
    pub(crate) instances: usize,
    pub(crate) shape: Shape,
    /// Limit of the rule as a share of the provider's.
    pub(crate) share: f64,
    pub(crate) treatment: Treatment,
    pub(crate) pace: Option<&'static str>,
    /// Measured time of limits from 100 on, in seconds.
    pub(crate) seconds: f64,
}

/// Head of the table.
pub(crate) const HEAD: &str = "| provider | limit/s | instances | demand | calls/s | admitted/s | use | rejected by the provider \
     | rejected by Weir | failed | wait p50 ms | wait p99 ms | most in a second | Jain's index |\n\
     |---|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Returns the maximum wait for a limit, in seconds.
pub(crate) fn max_wait(limit: f64) -> f64 {
    (MAX_WAITING / limit).min(MAX_WAIT)
}

/// Returns the burst of a rule: half of what its limit leaves of the provider's.
pub(crate) fn burst(limit: u64, share: f64) -> u64 {
    (limit as f64 * (1.0 - share) / 2.0).max(1.0) as u64
}

impl Row {
    /// Runs the row and returns it as a line of Markdown. The error is what Weir says about the configuration.
    pub(crate) fn run(&self, laboratory: &mut Laboratory) -> Result<String, String> {
        let results = laboratory.run(&self.experiment(), |_, _| {})?;
        Ok(self.line(&results))
    }

    fn experiment(&self) -> Experiment {
        let limit = self.limit as f64;
        Experiment {
            provider: ProviderSettings {
                kind: self.kind.name().to_owned(),
                limit: self.limit,
                signals: Signals::RetryAfter,
                service_time: 0,
                threads: 1,
            },
            rule: Some(Rule {
                rate: limit * self.share,
                // An even pace has no burst.
                burst: (self.pace != Some("even")).then(|| burst(self.limit, self.share)),
                algorithm: "gcra",
                treatment: self.treatment,
                max_wait: (max_wait(limit) * 1e3) as u64,
                queue: 100_000,
                order: (self.shape == Shape::FairTenants).then_some("{ fair: { header: x-tenant } }"),
                pace: self.pace,
                is_shared: self.instances > 1,
                has_feedback: false,
            }),
            instances: self.instances,
            groups: self.shape.groups(limit),
            warm_up: 3.0,
            // One call is then at most half a percent.
            measured: self.seconds.max(200.0 / limit),
        }
    }

    fn line(&self, results: &Results) -> String {
        let provider = &results.provider;
        let mut calls = GroupReport::total(&results.callers);
        let Quantiles { p50, p99, .. } = calls.quantiles();
        let seconds = provider.seconds;
        let possible = self.limit as f64 * seconds;
        // Less demand than the limit is served completely.
        let demand = match self.shape {
            Shape::Steady | Shape::Bursty => possible.min(calls.offered as f64),
            Shape::Double | Shape::Closed | Shape::Tenants | Shape::FairTenants => possible,
        };
        let by_tenant: Vec<f64> = provider.tenants.values().map(|count| count.admitted as f64).collect();
        let fairness =
            if by_tenant.len() > 1 { format!("{:.3}", jain(&by_tenant)) } else { "–".to_owned() };
        format!(
            "| {} | {} | {} | {} | {:.0} | {:.1} | {:.1} % | {} | {} | {} | {:.1} | {:.1} | {} | {fairness} |",
            self.kind.name(),
            self.limit,
            self.instances,
            self.shape.name(),
            calls.offered as f64 / seconds,
            provider.admitted as f64 / seconds,
            100.0 * provider.admitted as f64 / demand,
            provider.rejected,
            calls.rejected_by_weir,
            calls.failed + calls.unsent,
            p50 as f64 / 1e3,
            p99 as f64 / 1e3,
            provider.most_in_a_second,
        )
    }
}

/// Returns the calls a second that the callers, the instances and the provider can do together on this machine.
pub(crate) fn capacity(laboratory: &mut Laboratory, instances: usize, seconds: f64) -> Result<f64, String> {
    let experiment = Experiment {
        provider: ProviderSettings {
            kind: Kind::Fixed.name().to_owned(),
            limit: u64::MAX,
            signals: Signals::RetryAfter,
            service_time: 0,
            threads: 1,
        },
        rule: None,
        instances,
        groups: vec![Group { tenant: "tenant-0".to_owned(), demand: Demand::Closed(CAPACITY_CALLERS) }],
        warm_up: 2.0,
        measured: seconds,
    };
    let results = laboratory.run(&experiment, |_, _| {})?;
    Ok(results.provider.admitted as f64 / results.provider.seconds)
}
