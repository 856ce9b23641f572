//! Benchmark of the elastic controller with a simulated upstream: figures and charts.
//!
//! The runs are those of `tests/elastic`. `cargo bench --bench elastic -- --svg docs/elastic` writes the charts in
//! `docs/elastic`. Without `--svg` only the figures are printed.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "elastic/plot.rs"]
mod plot;
#[path = "../tests/elastic/upstream.rs"]
mod upstream;

use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io};

use plot::{Panel, Series};
use upstream::{Scenario, TickState, run};

/// One run and how it is drawn.
struct Run {
    name: &'static str,
    title: &'static str,
    scenario: Scenario,
    /// First and last second of the span from which the figures are computed.
    steady: (f64, f64),
}

fn runs() -> Vec<Run> {
    let run = |name, title, scenario, steady| Run { name, title, scenario, steady };
    let greedy = Scenario::greedy(1);
    let slows_down = Scenario {
        slowdown: |second| if (60.0..65.0).contains(&second) { 4.0 } else { 1.0 },
        seconds: 150,
        ..greedy.clone()
    };
    let oscillates = Scenario {
        slowdown: |second| if second > 40.0 && second % 40.0 < 10.0 { 5.0 } else { 1.0 },
        seconds: 195,
        ..greedy.clone()
    };
    let burst: fn(f64) -> f64 = |second| if second < 60.0 { 20.0 } else { 500.0 };
    vec![
        run(
            "steady",
            "Demand of five times the base limits, capacity of twice the base limits",
            greedy.clone(),
            (60.0, 180.0),
        ),
        run(
            "reports",
            "The same demand, and the upstream reports its load",
            Scenario { reports_load: true, ..greedy.clone() },
            (60.0, 180.0),
        ),
        run("slows-down", "Upstream four times as slow for 5 s", slows_down, (120.0, 150.0)),
        run("oscillates", "Upstream five times as slow, 10 s of every 40 s", oscillates, (30.0, 40.0)),
        run(
            "burst",
            "Low demand for 60 s, then a burst from all clients",
            Scenario { clients: vec![burst; 4], ..greedy },
            (120.0, 180.0),
        ),
    ]
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let directory =
        arguments.iter().position(|argument| argument == "--svg").and_then(|at| arguments.get(at + 1));
    println!("run          factor  lowest highest  to base");
    for Run { name, title, scenario, steady } in runs() {
        let moments = run(&scenario);
        let factors: Vec<f64> = moments_between(&moments, steady).map(|moment| moment.factor).collect();
        let mean = factors.iter().sum::<f64>() / factors.len().max(1) as f64;
        let stray = |most: f64| (most / mean - 1.0) * 100.0;
        let (lowest, highest) =
            (factors.iter().copied().reduce(f64::min), factors.iter().copied().reduce(f64::max));
        println!(
            "{name:12} {mean:6.2} {:+6.1}% {:+6.1}%  {}",
            stray(lowest.unwrap_or(mean)),
            stray(highest.unwrap_or(mean)),
            times_to_base(&moments, scenario.slowdown)
        );
        if let Some(directory) = directory {
            let file = PathBuf::from(directory).join(format!("{name}.svg"));
            fs::create_dir_all(directory)?;
            fs::write(file, plot::svg(title, &panels(&moments, &scenario)))?;
        }
    }
    Ok(())
}

fn moments_between(moments: &[TickState], (from, to): (f64, f64)) -> impl Iterator<Item = &TickState> {
    moments.iter().filter(move |moment| (from..to).contains(&moment.at))
}

/// Returns the time from each moment at which the upstream became slow until all limits were back at their base.
fn times_to_base(moments: &[TickState], slowdown: fn(f64) -> f64) -> String {
    let starts = moments.windows(2).filter(|pair| slowdown(pair[0].at) <= 1.0 && slowdown(pair[1].at) > 1.0);
    let time = |pair: &[TickState]| {
        let start = pair[1].at;
        let base = moments.iter().find(|moment| moment.at >= start && moment.factor <= 1.0)?;
        Some(Duration::from_secs_f64(base.at - start))
    };
    let times: Vec<String> = starts
        .map(|pair| {
            time(pair).map_or_else(|| "never".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
        })
        .collect();
    times.join(", ")
}

fn panels(moments: &[TickState], scenario: &Scenario) -> Vec<Panel> {
    let series = |name, value: &dyn Fn(&TickState) -> Option<f64>| Series {
        name,
        points: moments.iter().filter_map(|moment| Some((moment.at, value(moment)?))).collect(),
    };
    let per_second = |moment: &TickState| f64::from(moment.admitted.iter().sum::<u32>()) / 0.1;
    // A tenth of a second is too short to show a rate, so ten points are averaged.
    let smooth = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
        points
            .chunks(10)
            .map(|chunk| (chunk[0].0, chunk.iter().map(|(_, y)| y).sum::<f64>() / chunk.len() as f64))
            .collect()
    };
    let mut passed = series("admitted requests per second", &|moment| Some(per_second(moment)));
    passed.points = smooth(passed.points);
    let written = f64::from(scenario.limit) * scenario.clients.len() as f64;
    let limits = Series {
        name: "sum of the base limits",
        points: vec![(0.0, written), (f64::from(scenario.seconds), written)],
    };
    vec![
        Panel {
            unit: "",
            min: 1.0,
            max: f64::from(scenario.max_multiple),
            series: vec![series("limits, as a multiple of the base limits", &|moment| Some(moment.factor))],
        },
        Panel {
            unit: "",
            min: 0.0,
            max: written * f64::from(scenario.max_multiple),
            series: vec![passed, limits],
        },
        Panel {
            unit: "mean, ms",
            min: 0.0,
            max: 200.0,
            series: vec![series("response time of the upstream", &|moment| {
                moment.latency.map(|seconds| seconds * 1e3)
            })],
        },
        Panel {
            unit: "",
            min: 0.0,
            max: 100.0,
            series: vec![series("requests in flight", &|moment| Some(moment.in_flight as f64))],
        },
        Panel {
            unit: "times its threshold",
            min: 0.0,
            max: 2.0,
            series: vec![series("binding signal", &|moment| {
                moment.assessment.binding().map(|level| level.pressure())
            })],
        },
    ]
}
