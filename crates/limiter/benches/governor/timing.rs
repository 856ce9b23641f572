//! Time per decision: processor time of a thread, and medians of rounds.

mod cpu_time;

pub(super) use self::cpu_time::thread_cpu_nanos;

/// Returns the median of `values`, of which there is at least one.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
