//! Translates Envoy's token buckets into limits.

use super::ImportError;
use super::tree::{as_u64, error_at, get, scalar_text};
use crate::yaml::Node;

const SECOND: u128 = 1_000_000_000;
const MILLISECOND: u128 = 1_000_000;

/// A token bucket: a refill rate and a capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImportedBucket {
    /// The refill rate.
    pub(super) limit: String,
    /// The capacity, if it differs from the count of the rate.
    pub(super) burst: Option<u64>,
}

/// Reads the bucket at `node`.
pub(super) fn read_bucket(file: &str, node: &Node) -> Result<ImportedBucket, ImportError> {
    let count = |name: &str| match get(node, name) {
        None => Ok(None),
        Some(value) => match as_u64(value).filter(|count| (1..=u64::from(u32::MAX)).contains(count)) {
            Some(count) => Ok(Some(count)),
            None => Err(error_at(file, value, format!("`{name}` must be a number from 1 to {}", u32::MAX))),
        },
    };
    let Some(max_tokens) = count("max_tokens")? else {
        return Err(error_at(file, node, "a token bucket without `max_tokens`"));
    };
    let fill = count("tokens_per_fill")?.unwrap_or(1);
    let Some(interval) = get(node, "fill_interval") else {
        return Err(error_at(file, node, "a token bucket without `fill_interval`"));
    };
    let period =
        scalar_text(interval).and_then(parse_nanos).filter(|nanos| *nanos >= MILLISECOND).map(format_period);
    let Some(period) = period else {
        let expected = "`fill_interval` must be a duration of at least 1 ms, such as `1s` or `0.5s`";
        return Err(error_at(file, interval, expected));
    };
    Ok(ImportedBucket {
        limit: format!("{fill}/{period}"),
        burst: (max_tokens != fill).then_some(max_tokens),
    })
}

/// Parses a duration in JSON format: seconds with up to nine decimals.
fn parse_nanos(text: &str) -> Option<u128> {
    let number = text.strip_suffix('s')?;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(part) || part.len() > 9 {
        return None;
    }
    let part: u128 = format!("{part:0<9}").parse().ok()?;
    Some(whole.parse::<u32>().ok().map(u128::from)? * SECOND + part)
}

/// Formats a period for a rate, in whole milliseconds at the finest.
fn format_period(nanos: u128) -> String {
    const UNITS: [(u128, &str); 4] = [(1, "s"), (60, "m"), (3600, "h"), (86_400, "d")];
    if !nanos.is_multiple_of(SECOND) {
        return format!("{}ms", nanos / MILLISECOND);
    }
    let seconds = nanos / SECOND;
    match UNITS.iter().find(|(length, _)| *length == seconds) {
        Some((_, unit)) => (*unit).to_owned(),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml::{self, Dialect};

    fn bucket(text: &str) -> Result<(String, Option<u64>), String> {
        let node = yaml::parse(text, Dialect::Go).unwrap().unwrap();
        read_bucket("f", &node)
            .map(|bucket| (bucket.limit, bucket.burst))
            .map_err(|problem| problem.to_string())
    }

    #[test]
    fn imported_token_bucket_is_a_limit_and_a_burst() {
        let bucket = |text| bucket(text).unwrap();
        assert_eq!(bucket("{max_tokens: 10, fill_interval: 1s}"), ("1/s".into(), Some(10)));
        assert_eq!(
            bucket("{max_tokens: 10, tokens_per_fill: 10, fill_interval: 60s}"),
            ("10/m".into(), None)
        );
        assert_eq!(
            bucket("{maxTokens: 5, tokensPerFill: 2, fillInterval: 0.25s}"),
            ("2/250ms".into(), Some(5))
        );
        assert_eq!(bucket("{max_tokens: 1, fill_interval: 90s}"), ("1/90s".into(), None));
    }

    #[test]
    fn imported_token_bucket_errors_have_positions() {
        let error = |text| bucket(text).unwrap_err();
        assert_eq!(error("{fill_interval: 1s}"), "f:1:1: a token bucket without `max_tokens`");
        assert_eq!(error("{max_tokens: 1}"), "f:1:1: a token bucket without `fill_interval`");
        assert_eq!(
            error("{max_tokens: 0, fill_interval: 1s}"),
            "f:1:14: `max_tokens` must be a number from 1 to 4294967295"
        );
        for wrong in ["1m", "s", "0s", "-1s", "1.s5", "0.0001s"] {
            let text = format!("{{max_tokens: 1, fill_interval: {wrong}}}");
            let error = bucket(&text).unwrap_err();
            assert!(error.starts_with("f:1:32: `fill_interval` must be a duration"), "{error}");
        }
    }
}
