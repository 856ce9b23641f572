//! The provider halves its limit while calls are made, and restores it.

use std::fs;
use std::path::Path;

use crate::callers::Group;
use crate::callers::outcomes::GroupReport;
use crate::callers::schedule::Demand;
use crate::experiment::{Experiment, Laboratory, Results, Running};
use crate::plot::{self, Panel, Series};
use crate::provider::enforcement::Kind;
use crate::provider::{ProviderSettings, Signals};
use crate::rule::{Rule, Treatment};
use crate::sidecar::Sidecar;
use crate::table;

/// When the limit is halved, in seconds.
const HALVED_AT: f64 = 10.0;
/// When it is restored.
const RESTORED_AT: f64 = 25.0;
/// End of the run.
const END: f64 = 45.0;
/// Time after a change in which the limit may adapt, in seconds.
const SETTLING: f64 = 5.0;
/// Limit of the rule as a share of the provider's.
const SHARE: f64 = 0.99;
/// Length of the buckets of admissions and rejections, in seconds.
const STEP: f64 = 0.5;
/// Gauge of the limit in force, as a share of the rule's.
const SHARE_IN_FORCE: &str = "weir_feedback_share";
/// Gauge of the time until a paused limit admits calls again.
const PAUSED: &str = "weir_feedback_paused_seconds";

/// Parameters of the runs.
#[derive(Clone, Debug)]
pub(crate) struct HalvedOptions<'a> {
    pub(crate) limit: u64,
    pub(crate) instances: usize,
    pub(crate) treatment: Treatment,
    /// Directory of the charts.
    pub(crate) svg: Option<&'a Path>,
}

/// What a provider and its instances of Weir do.
#[derive(Clone, Copy, Debug)]
struct Variant {
    name: &'static str,
    file: &'static str,
    signals: Signals,
    has_feedback: bool,
}

const VARIANTS: [Variant; 3] = [
    Variant {
        name: "without feedback",
        file: "without-feedback",
        signals: Signals::RetryAfter,
        has_feedback: false,
    },
    Variant {
        name: "feedback from rejections with retry-after",
        file: "rejections",
        signals: Signals::RetryAfter,
        has_feedback: true,
    },
    Variant {
        name: "feedback from x-ratelimit headers",
        file: "headers",
        signals: Signals::Headers,
        has_feedback: true,
    },
];

/// Head of the table.
pub(crate) const HEAD: &str = "| instances | variant | time | use | rejected by the provider | rejected by Weir, whole run \
     | wait p50 ms, whole run | wait p99 ms, whole run |\n|---|---|---|---|---|---|---|---|";

/// Runs all variants. Prints a line for each part of a run, and writes the charts.
#[expect(clippy::print_stdout, reason = "prints its results")]
pub(crate) fn run(laboratory: &mut Laboratory, options: &HalvedOptions<'_>) {
    for variant in VARIANTS {
        let mut in_force = Vec::new();
        let mut provider_limit = options.limit;
        let observe = |second: f64, running: &Running| {
            let limit = limit_at(options.limit, second);
            if limit != provider_limit {
                running.provider.set_limit(limit);
                provider_limit = limit;
            }
            let limit = running.sidecars.first().and_then(|sidecar| limit_in_force(options, sidecar));
            limit.into_iter().for_each(|limit| in_force.push((second, limit)));
        };
        match laboratory.run(&experiment(options, variant), observe) {
            Ok(results) => {
                print_parts(options, variant, &results);
                if let Some(directory) = options.svg {
                    let file = directory.join(format!("halved-{}-{}.svg", variant.file, options.instances));
                    fs::create_dir_all(directory).unwrap();
                    fs::write(file, chart(options, variant, &results, in_force)).unwrap();
                }
            }
            Err(error) => println!("{}: {error}", variant.name),
        }
    }
}

/// Returns the limit in force at an instance, 0 during a pause. `None` without feedback.
fn limit_in_force(options: &HalvedOptions<'_>, sidecar: &Sidecar) -> Option<f64> {
    let share = sidecar.metric(SHARE_IN_FORCE)?;
    let is_paused = sidecar.metric(PAUSED).is_some_and(|seconds| seconds > 0.0);
    Some(if is_paused { 0.0 } else { share * SHARE * options.limit as f64 })
}

fn limit_at(limit: u64, second: f64) -> u64 {
    if (HALVED_AT..RESTORED_AT).contains(&second) { limit / 2 } else { limit }
}

fn experiment(options: &HalvedOptions<'_>, variant: Variant) -> Experiment {
    let limit = options.limit as f64;
    Experiment {
        provider: ProviderSettings {
            kind: Kind::Sliding.name().to_owned(),
            limit: options.limit,
            signals: variant.signals,
            service_time: 0,
            threads: 1,
        },
        rule: Some(Rule {
            rate: SHARE * limit,
            burst: Some(table::burst(options.limit, SHARE)),
            algorithm: "gcra",
            treatment: options.treatment,
            max_wait: (table::max_wait(limit) * 1e3) as u64,
            queue: 100_000,
            order: None,
            pace: None,
            is_shared: options.instances > 1,
            has_feedback: variant.has_feedback,
        }),
        instances: options.instances,
        groups: vec![Group { tenant: "tenant-0".to_owned(), demand: Demand::Random(1.2 * limit) }],
        warm_up: 3.0,
        measured: END,
    }
}

#[expect(clippy::print_stdout, reason = "prints its results")]
fn print_parts(options: &HalvedOptions<'_>, variant: Variant, results: &Results) {
    let mut calls = GroupReport::total(&results.callers);
    let quantiles = calls.quantiles();
    let parts = [
        ("before", 0.0, HALVED_AT),
        ("halved, first seconds", HALVED_AT, HALVED_AT + SETTLING),
        ("halved", HALVED_AT + SETTLING, RESTORED_AT),
        ("restored, first seconds", RESTORED_AT, RESTORED_AT + SETTLING),
        ("restored", RESTORED_AT + SETTLING, END),
    ];
    for (name, from, until) in parts {
        let count = |buckets: &[u32]| -> u64 {
            let within = (from / STEP) as usize..(until / STEP) as usize;
            buckets.get(within).unwrap_or_default().iter().map(|count| u64::from(*count)).sum()
        };
        let possible = limit_at(options.limit, from) as f64 * (until - from);
        println!(
            "| {} | {} | {name} | {:.1} % | {} | {} | {:.1} | {:.1} |",
            options.instances,
            variant.name,
            100.0 * count(&results.provider.admissions) as f64 / possible,
            count(&results.provider.rejections),
            calls.rejected_by_weir,
            quantiles.p50 as f64 / 1e3,
            quantiles.p99 as f64 / 1e3,
        );
    }
}

fn chart(
    options: &HalvedOptions<'_>,
    variant: Variant,
    results: &Results,
    mut in_force: Vec<(f64, f64)>,
) -> String {
    let limit = options.limit as f64;
    if in_force.is_empty() {
        in_force = [0.0, END].map(|second| (second, SHARE * limit)).to_vec();
    }
    let per_second = |buckets: &[u32]| {
        let points = buckets.iter().enumerate();
        points.map(|(index, count)| ((index as f64 + 0.5) * STEP, f64::from(*count) / STEP)).collect()
    };
    let steps = [0.0, HALVED_AT, HALVED_AT, RESTORED_AT, RESTORED_AT, END];
    let values = [limit, limit, limit / 2.0, limit / 2.0, limit, limit];
    let series = |name, points| Series { name, points };
    let panel = |max, series| Panel { unit: "per second", min: 0.0, max, series };
    let panels = [
        panel(
            1.2 * limit,
            vec![
                series("limit in force at Weir", in_force),
                series("limit of the provider", steps.into_iter().zip(values).collect()),
            ],
        ),
        panel(
            1.2 * limit,
            vec![series("admitted by the provider", per_second(&results.provider.admissions))],
        ),
        panel(
            0.6 * limit,
            vec![series("rejected by the provider", per_second(&results.provider.rejections))],
        ),
    ];
    let title =
        format!("The provider halves its limit for 15 s: {}, instances {}", variant.name, options.instances);
    plot::svg(&title, &panels)
}
