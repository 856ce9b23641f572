//! Which occurrences of an event that peers cause are logged: each tenfold of their number, so that no peer fills the log.

/// Whether a count that `added` has raised to `total` has reached 1, 10, 100 and so on by that.
pub const fn reaches_power_of_ten(total: u64, added: u64) -> bool {
    match (total.checked_ilog10(), total.saturating_sub(added).checked_ilog10()) {
        (Some(now), Some(before)) => now > before,
        (now, _) => now.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lines_are_logged_however_often_an_event_occurs() {
        let logged: Vec<_> = (1..=100_000).filter(|total| reaches_power_of_ten(*total, 1)).collect();
        assert_eq!(logged, [1, 10, 100, 1000, 10_000, 100_000]);
        assert!(reaches_power_of_ten(12, 5) && !reaches_power_of_ten(12, 2) && !reaches_power_of_ten(0, 0));
    }
}
