//! Measures how often a sliding window decides differently from an exact log, per kind of source and precision.
//!
//! Run with `cargo bench --bench accuracy -- [--sources 270000] [--requests 400000000] [--threads 2] [--seed 1]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

#[path = "accuracy/trace.rs"]
mod trace;

use std::env;

use trace::{DecisionErrors, SourceKind};

/// Numbers of sub-windows to measure; 1 is the plain sliding window.
const PRECISIONS: [u8; 5] = [1, 2, 6, 12, 60];

/// Size of the measurement, from the command line.
struct Plan {
    sources: u64,
    requests: u64,
    threads: u64,
    seed: u64,
}

impl Plan {
    fn from_arguments(arguments: &[String]) -> Self {
        let number = |name: &str| {
            let position = arguments.iter().position(|argument| argument == name)?;
            arguments.get(position + 1).map(|text| text.parse().expect("a number"))
        };
        // Cargo passes `--bench` for a measurement. Without it this is a test run, which only checks that the benchmark
        // works.
        let measuring = arguments.iter().any(|argument| argument == "--bench");
        let (sources, requests) = if measuring { (270_000, 400_000_000) } else { (30, 3000) };
        Self {
            sources: number("--sources").unwrap_or(sources),
            requests: number("--requests").unwrap_or(requests),
            threads: number("--threads").unwrap_or(2),
            seed: number("--seed").unwrap_or(1),
        }
    }

    /// Returns the decisions that one thread has measured, by kind and precision.
    fn measure(&self, thread: u64) -> [[DecisionErrors; PRECISIONS.len()]; 3] {
        let mut tallies = [[DecisionErrors::default(); PRECISIONS.len()]; 3];
        for source in (thread..self.sources).step_by(self.threads.max(1) as usize) {
            // The first sources take the remainder, so that the sum is exactly the requested number.
            let requests = self.requests / self.sources + u64::from(source < self.requests % self.sources);
            let of_source = trace::simulate_source(self.seed, source, requests, &PRECISIONS);
            let kind =
                SourceKind::ALL.iter().position(|kind| *kind == SourceKind::from_number(source)).unwrap_or(0);
            tallies[kind].iter_mut().zip(&of_source).for_each(|(tally, more)| tally.add(more));
        }
        tallies
    }
}

fn print(tallies: &[[DecisionErrors; PRECISIONS.len()]; 3]) {
    println!("| sources | precision | requests | wrongly allowed | wrongly rejected | together |");
    println!("|---|---|---|---|---|---|");
    let row = |name: &str, precision: u8, tally: &DecisionErrors| {
        let share = |count: u64| 100.0 * count as f64 / tally.requests.max(1) as f64;
        println!(
            "| {name} | {precision} | {} | {:.4} % | {:.4} % | {:.4} % |",
            tally.requests,
            share(tally.wrongly_allowed),
            share(tally.wrongly_rejected),
            share(tally.wrongly_allowed + tally.wrongly_rejected)
        );
    };
    for (index, precision) in PRECISIONS.into_iter().enumerate() {
        let mut all = DecisionErrors::default();
        for (kind, of_kind) in SourceKind::ALL.into_iter().zip(tallies) {
            row(kind.as_str(), precision, &of_kind[index]);
            all.add(&of_kind[index]);
        }
        row("all", precision, &all);
    }
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // Test runners list the tests with `--list`; there are none with a name.
    if arguments.iter().any(|argument| argument == "--list") {
        return;
    }
    let plan = Plan::from_arguments(&arguments);
    let mut sum = [[DecisionErrors::default(); PRECISIONS.len()]; 3];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads.max(1))
            .map(|thread| {
                scope.spawn({
                    let plan = &plan;
                    move || plan.measure(thread)
                })
            })
            .collect();
        for thread in threads {
            let of_thread = thread.join().expect("the thread panicked");
            for (kind, more) in sum.iter_mut().zip(&of_thread) {
                kind.iter_mut().zip(more).for_each(|(tally, more)| tally.add(more));
            }
        }
    });
    print(&sum);
}
