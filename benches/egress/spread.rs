//! The distribution of arrivals at the provider inside a second: without pace, even, and by the controller.

use std::fs;
use std::path::Path;

use crate::bars::{self, BarPanel};
use crate::callers::Group;
use crate::callers::outcomes::GroupReport;
use crate::callers::schedule::Demand;
use crate::experiment::{Experiment, Laboratory};
use crate::figures::coefficient_of_variation;
use crate::provider::enforcement::Kind;
use crate::provider::record::Stats;
use crate::provider::{ProviderSettings, Signals};
use crate::rule::{Rule, Treatment};

/// Number of buckets of a second.
const BUCKETS: usize = 100;
/// Maximum wait, in milliseconds.
const MAX_WAIT: u64 = 2000;

/// A way to release waiting calls.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    algorithm: &'static str,
    pace: Option<&'static str>,
}

const VARIANTS: [Variant; 4] = [
    Variant { name: "window, without pace", algorithm: "fixed_window", pace: None },
    Variant { name: "GCRA with burst, without pace", algorithm: "gcra", pace: None },
    Variant { name: "pace: even", algorithm: "gcra", pace: Some("even") },
    Variant { name: "pace: pid", algorithm: "gcra", pace: Some("pid") },
];

/// Demand that shows the difference.
#[derive(Clone, Copy, Debug)]
enum Demanded {
    Bursts,
    Excess,
}

impl Demanded {
    const ALL: [Self; 2] = [Self::Bursts, Self::Excess];

    const fn name(self) -> &'static str {
        match self {
            Self::Bursts => "0.9 of the limit, in bursts",
            Self::Excess => "1.5 times the limit",
        }
    }

    /// Returns the name in files.
    const fn file(self) -> &'static str {
        match self {
            Self::Bursts => "bursts",
            Self::Excess => "excess",
        }
    }

    fn demand(self, limit: f64) -> Demand {
        match self {
            Self::Bursts => Demand::Bursts(0.9 * limit),
            Self::Excess => Demand::Random(1.5 * limit),
        }
    }
}

/// Parameters of the runs.
#[derive(Clone, Debug)]
pub(crate) struct SpreadOptions<'a> {
    pub(crate) limit: u64,
    pub(crate) instances: usize,
    pub(crate) share: f64,
    pub(crate) treatment: Treatment,
    pub(crate) seconds: f64,
    /// Directory of the charts.
    pub(crate) svg: Option<&'a Path>,
}

/// Head of the table.
pub(crate) const HEAD: &str = "| instances | demand | released | admitted/s | use | rejected by the provider | CV per 10 ms \
     | most in 10 ms | wait p50 ms | wait p99 ms |\n|---|---|---|---|---|---|---|---|---|---|";

/// Runs all variants with each demand. Prints a line for each, and writes a chart for each demand.
#[expect(clippy::print_stdout, reason = "prints its results")]
pub(crate) fn run(laboratory: &mut Laboratory, options: &SpreadOptions<'_>) {
    for demanded in Demanded::ALL {
        let mut panels = Vec::new();
        for variant in VARIANTS {
            let experiment = experiment(options, variant, demanded.demand(options.limit as f64));
            let results = match laboratory.run(&experiment, |_, _| {}) {
                Ok(results) => results,
                Err(error) => {
                    println!("{}: {error}", variant.name);
                    continue;
                }
            };
            let stats = &results.provider;
            let variation = coefficient_of_variation(&stats.arrivals);
            let mut calls = GroupReport::total(&results.callers);
            let quantiles = calls.quantiles();
            println!(
                "| {} | {} | {} | {:.1} | {:.1} % | {} | {variation:.2} | {} | {:.1} | {:.1} |",
                options.instances,
                demanded.name(),
                variant.name,
                stats.admitted as f64 / stats.seconds,
                100.0 * stats.admitted as f64 / stats.seconds / options.limit as f64,
                stats.rejected,
                stats.arrivals.iter().max().copied().unwrap_or_default(),
                quantiles.p50 as f64 / 1e3,
                quantiles.p99 as f64 / 1e3,
            );
            panels.push(panel(variant, stats, variation));
        }
        if let Some(directory) = options.svg.filter(|_| !panels.is_empty()) {
            let title = format!(
                "Calls in every 10 ms of a second: limit {}, demand {}, instances {}",
                options.limit,
                demanded.name(),
                options.instances
            );
            let file = directory.join(format!("spread-{}-{}.svg", demanded.file(), options.instances));
            fs::create_dir_all(directory).unwrap();
            fs::write(file, bars::svg(&title, &panels)).unwrap();
        }
    }
}

fn experiment(options: &SpreadOptions<'_>, variant: Variant, demand: Demand) -> Experiment {
    let rate = options.limit as f64 * options.share;
    Experiment {
        provider: ProviderSettings {
            kind: Kind::Fixed.name().to_owned(),
            limit: options.limit,
            signals: Signals::RetryAfter,
            service_time: 0,
            threads: 1,
        },
        rule: Some(Rule {
            rate,
            burst: None,
            algorithm: variant.algorithm,
            treatment: options.treatment,
            max_wait: MAX_WAIT,
            queue: 100_000,
            order: None,
            pace: variant.pace,
            is_shared: options.instances > 1,
            has_feedback: false,
        }),
        instances: options.instances,
        groups: vec![Group { tenant: "tenant-0".to_owned(), demand }],
        warm_up: 4.0,
        measured: options.seconds,
    }
}

/// Returns the panel of the second whose variation is the median of all seconds.
fn panel(variant: Variant, stats: &Stats, variation: f64) -> BarPanel {
    let mut seconds: Vec<&[u32]> = stats.arrivals.chunks_exact(BUCKETS).collect();
    seconds.sort_by(|a, b| coefficient_of_variation(a).total_cmp(&coefficient_of_variation(b)));
    let counts = seconds.get(seconds.len() / 2).map(|counts| counts.to_vec()).unwrap_or_default();
    BarPanel {
        title: format!("{}: coefficient of variation {variation:.2}", variant.name),
        even: counts.iter().sum::<u32>() as f64 / BUCKETS as f64,
        counts,
    }
}
