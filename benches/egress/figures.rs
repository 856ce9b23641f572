//! Figures of a row: quantiles, the fairness between tenants, and the evenness of arrivals.

/// Quantiles of durations, in microseconds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

impl Quantiles {
    /// Returns the quantiles of `samples`, which are sorted thereby.
    pub(crate) fn of(samples: &mut [u64]) -> Self {
        samples.sort_unstable();
        let at = |share: f64| {
            let rank = (samples.len() as f64 * share).ceil() as usize;
            samples.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// Returns Jain's fairness index of what the tenants have received: 1 if all received the same, `1 / n` if one
/// received everything.
pub(crate) fn jain(received: &[f64]) -> f64 {
    let sum: f64 = received.iter().sum();
    let squares: f64 = received.iter().map(|amount| amount * amount).sum();
    if squares > 0.0 { sum * sum / (received.len() as f64 * squares) } else { 1.0 }
}

/// Returns the coefficient of variation: the standard deviation divided by the mean.
pub(crate) fn coefficient_of_variation(counts: &[u32]) -> f64 {
    let mean = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / counts.len().max(1) as f64;
    let squares = counts.iter().map(|count| (f64::from(*count) - mean).powi(2)).sum::<f64>();
    let variance = squares / counts.len().max(1) as f64;
    if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
}
