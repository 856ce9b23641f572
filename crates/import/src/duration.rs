//! Durations as Go writes them.

/// Parses a duration such as `1h30m`, `1.5s` or `100ms`, in nanoseconds.
pub(super) fn parse_duration(text: &str) -> Option<u128> {
    const MAX: u128 = i64::MAX as u128;
    if text == "0" {
        return Some(0);
    }
    let mut rest = text;
    let mut total = 0_u128;
    while !rest.is_empty() || text.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        total = total.checked_add(nanos_of(number, unit_nanos(unit)?)?).filter(|total| *total <= MAX)?;
        rest = tail;
    }
    Some(total)
}

fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Returns the length of a number with decimals of a unit, rounded down.
fn nanos_of(number: &str, unit: u128) -> Option<u128> {
    // More decimals are below a nanosecond in every unit.
    const MAX_DECIMALS: usize = 15;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: String = part.chars().take(MAX_DECIMALS).collect();
    let numerator: u128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    let denominator = 10_u128.pow(u32::try_from(part.len()).ok()?);
    u128::from(whole).checked_mul(unit)?.checked_add(numerator.checked_mul(unit)? / denominator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_go() {
        for (text, expected) in [
            ("10s", Some(10_000_000_000)),
            ("1h30m", Some(5_400_000_000_000)),
            ("1.5s", Some(1_500_000_000)),
            (".5ms", Some(500_000)),
            ("1m0.25s", Some(60_250_000_000)),
            ("2us3ns", Some(2003)),
            ("0", Some(0)),
            ("", None),
            ("10", None),
            ("s", None),
            (".s", None),
            ("1d", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("99999999999999999999h", None),
            ("9999999h", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}
