//! One spelling per number, so that `1`, `1.0` and `10e-1` are one key.

/// Numbers below this are exact in a double, which many decoders use for all numbers.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Returns the canonical spelling of a valid number: its digits if it is an integer, else the shortest one of the nearest double.
pub(super) fn canonical(number: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(number).ok()?;
    if let Ok(integer) = text.parse::<i128>() {
        return Some(integer.to_string().into_bytes());
    }
    let value: f64 = text.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "it is an integer, and small enough")]
    let canonical = if value.fract() == 0.0 && value.abs() < MAX_EXACT {
        (value as i64).to_string()
    } else {
        format!("{value:?}")
    };
    Some(canonical.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_have_one_spelling() {
        for (spellings, canonical_one) in [
            (&["1", "1.0", "10e-1", "0.1E1", "1e0", "1e+0", "100e-2"][..], "1"),
            (&["0", "-0", "0.0", "-0.0", "0e9"], "0"),
            (&["-12", "-1.2e1"], "-12"),
            (&["0.5", "5e-1", "0.50"], "0.5"),
            (&["18446744073709551615"], "18446744073709551615"),
            (&["1e400", "2e999"], "inf"),
        ] {
            for spelling in spellings {
                assert_eq!(
                    canonical(spelling.as_bytes()).as_deref(),
                    Some(canonical_one.as_bytes()),
                    "{spelling}"
                );
            }
        }
    }
}
