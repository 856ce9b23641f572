//! Numbers and durations, short enough for columns.

/// Returns a rate: one decimal below 10, thousands as `k` from 10,000.
pub(super) fn rate_text(rate: Option<f64>) -> String {
    match rate {
        None => "–".to_owned(),
        Some(rate) if rate <= 0.0 => "0".to_owned(),
        Some(rate) if rate < 0.05 => "<0.1".to_owned(),
        Some(rate) if rate < 9.95 => format!("{rate:.1}"),
        Some(rate) if rate < 9_999.5 => format!("{rate:.0}"),
        Some(rate) if rate < 999_950.0 => format!("{:.1}k", rate / 1e3),
        Some(rate) => format!("{:.1}M", rate / 1e6),
    }
}

/// Returns a count; from 100,000 with `k`, `M` or `G`.
pub(super) fn count_text(count: u64) -> String {
    let large = count as f64;
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{:.0}k", large / 1e3),
        10_000_000..10_000_000_000 => format!("{:.0}M", large / 1e6),
        10_000_000_000.. => format!("{:.0}G", large / 1e9),
    }
}

/// Returns a time in milliseconds or seconds.
pub(super) fn milliseconds_text(milliseconds: Option<f64>) -> String {
    match milliseconds {
        None => "–".to_owned(),
        Some(time) if time < 9.95 => format!("{time:.1} ms"),
        Some(time) if time < 999.5 => format!("{time:.0} ms"),
        Some(time) => format!("{:.1} s", time / 1e3),
    }
}

/// Returns the two largest units of a duration.
pub(super) fn duration_text(seconds: f64) -> String {
    // A negative or absurd value saturates.
    let seconds = seconds as u64;
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {seconds} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_keep_about_three_digits() {
        let texts =
            [0.0, 0.01, 0.1, 9.94, 9.96, 1234.4, 9999.6, 1_234_567.0].map(|rate| rate_text(Some(rate)));
        assert_eq!(texts, ["0", "<0.1", "0.1", "9.9", "10", "1234", "10.0k", "1.2M"]);
        assert_eq!(rate_text(None), "–");
    }

    #[test]
    fn counts_fit_into_six_columns() {
        let texts = [0, 99_999, 100_000, 9_999_999, 10_000_000, u64::from(u32::MAX)].map(count_text);
        assert_eq!(texts, ["0", "99999", "100k", "10000k", "10M", "4295M"]);
    }

    #[test]
    fn durations_have_two_units() {
        let texts = [0.0, 59.9, 61.0, 3_660.0, 90_000.0, -1.0].map(duration_text);
        assert_eq!(texts, ["0 s", "59 s", "1 min 1 s", "1 h 1 min", "1 d 1 h", "0 s"]);
        assert_eq!(milliseconds_text(Some(3.42)), "3.4 ms");
        assert_eq!(milliseconds_text(Some(1850.0)), "1.9 s");
    }
}
