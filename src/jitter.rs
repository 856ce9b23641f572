//! Spreads what many processes or connections would do at the same time.

use std::time::Duration;

/// A time within a tenth of `time`, drawn evenly.
pub fn jittered(time: Duration) -> Duration {
    time.mul_f64(fastrand::f64().mul_add(0.2, 0.9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_differ_by_a_tenth_at_most() {
        for _ in 0..100 {
            let time = jittered(Duration::from_secs(100));
            assert!((90.0..=110.0).contains(&time.as_secs_f64()), "{time:?}");
        }
    }
}
