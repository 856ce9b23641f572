//! Repeats the measurements of sliding windows in docs/performance.md on a small scale.
//!
//! The trace and the comparison are those of the benchmark, with another seed and a few hundred sources instead of
//! hundreds of thousands. The test fails if a window decides differently than it did, for better or for worse.
#![expect(clippy::unwrap_used, reason = "a test that cannot read its table has failed")]

#[path = "../benches/accuracy/trace.rs"]
mod trace;

use std::thread;

use trace::{DecisionErrors, SourceKind};

const SEED: u64 = 20_261_121;
const SOURCES: u64 = 390;
/// Requests per source, the same as in the large measurement: fewer would change the weight of silent times.
const REQUESTS: u64 = 1481;

/// Maximum deviation of this small sample from the documented value: relative to it, or [`TOLERANCE_POINTS`]
/// percentage points. Most values change by more than this from one precision to the next.
const TOLERANCE: f64 = 0.33;
const TOLERANCE_POINTS: f64 = 0.03;

/// Documented values for one kind of source at one precision, in percent of its requests.
#[derive(Debug)]
struct Row {
    kind: SourceKind,
    precision: u8,
    wrongly_allowed: f64,
    wrongly_rejected: f64,
}

/// Returns the rows of the table, without those that sum up all kinds.
fn rows() -> Vec<Row> {
    let table = include_str!("../docs/performance.md").lines().filter_map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let kind = SourceKind::ALL.into_iter().find(|kind| Some(&kind.as_str()) == cells.first())?;
        let share = |cell: &str| cell.strip_suffix(" %").unwrap().parse().unwrap();
        let [_, precision, _, allowed, refused, _] = cells[..] else { return None };
        Some(Row {
            kind,
            precision: precision.parse().unwrap(),
            wrongly_allowed: share(allowed),
            wrongly_rejected: share(refused),
        })
    });
    table.collect()
}

/// Measures the same values, by kind and precision.
fn measure(precisions: &[u8]) -> Vec<Vec<DecisionErrors>> {
    let of_kind = |kind: SourceKind| {
        let mut sum = vec![DecisionErrors::default(); precisions.len()];
        for source in (0..SOURCES).filter(|source| SourceKind::from_number(*source) == kind) {
            let tallies = trace::simulate_source(SEED, source, REQUESTS, precisions);
            sum.iter_mut().zip(&tallies).for_each(|(sum, tally)| sum.add(tally));
        }
        sum
    };
    thread::scope(|scope| {
        let kinds = SourceKind::ALL.map(|kind| scope.spawn(move || of_kind(kind)));
        kinds.map(|kind| kind.join().unwrap()).into()
    })
}

#[test]
fn sliding_window_errors_match_the_documented_measurements() {
    let rows = rows();
    let mut precisions: Vec<_> = rows.iter().map(|row| row.precision).collect();
    precisions.sort_unstable();
    precisions.dedup();
    assert_eq!(rows.len(), 3 * precisions.len());
    let measured = measure(&precisions);
    for row in rows {
        let kind = SourceKind::ALL.iter().position(|kind| *kind == row.kind).unwrap();
        let at = precisions.iter().position(|precision| *precision == row.precision).unwrap();
        let tally = &measured[kind][at];
        let share = |count: u64| 100.0 * count as f64 / tally.requests as f64;
        for (what, now, then) in [
            ("allowed", share(tally.wrongly_allowed), row.wrongly_allowed),
            ("rejected", share(tally.wrongly_rejected), row.wrongly_rejected),
        ] {
            let most = (then * TOLERANCE).max(TOLERANCE_POINTS);
            assert!((now - then).abs() <= most, "wrongly {what}: {now:.4} %, documented as {row:?}");
        }
    }
}

#[test]
fn documented_totals_are_the_means_of_all_source_kinds() {
    let rows = rows();
    let of_all = include_str!("../docs/performance.md").lines().filter(|line| line.starts_with("| all |"));
    let mut seen = 0;
    for line in of_all {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let number = |index: usize| cells[index].trim_end_matches(" %").parse::<f64>().unwrap();
        let of_precision = || rows.iter().filter(|row| f64::from(row.precision) == number(1));
        let mean = |share: fn(&Row) -> f64| of_precision().map(share).sum::<f64>() / 3.0;
        let (allowed, refused) = (mean(|row| row.wrongly_allowed), mean(|row| row.wrongly_rejected));
        assert!((allowed - number(3)).abs() < 0.0005 && (refused - number(4)).abs() < 0.0005, "{line}");
        assert!((allowed + refused - number(5)).abs() < 0.001, "{line}");
        seen += 1;
    }
    assert_eq!(seen, rows.len() / 3);
}
