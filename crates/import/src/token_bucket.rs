//! Translates Envoy's token buckets into limits.

use super::ledger::{Ledger, Message};
use super::remark::Effect;
use super::tree::{as_nanos, as_u64, get};
use weir_yaml::Node;

const SECOND: u128 = 1_000_000_000;
const MILLISECOND: u128 = 1_000_000;
/// Maximum count of a limit per second.
const MAX_PER_SECOND: u128 = 1_000_000_000;

/// `type.v3.TokenBucket`
static BUCKET: Message = Message {
    name: "a token bucket",
    read: &["max_tokens", "tokens_per_fill", "fill_interval"],
    lost: &[],
    other: &[],
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImportedBucket {
    /// No request ever gets a token.
    Empty,
    /// A refill rate and a capacity.
    Rate {
        /// The refill rate.
        limit: String,
        capacity: u64,
        /// Whether the capacity differs from the count of the rate.
        is_burst: bool,
    },
}

impl ImportedBucket {
    /// Returns the bucket for requests that take this number of tokens.
    pub(super) fn with_cost(self, cost: u64) -> Self {
        match self {
            Self::Rate { capacity, .. } if cost > capacity => Self::Empty,
            bucket => bucket,
        }
    }
}

/// The fields of a valid bucket.
struct BucketFields<'n> {
    max_tokens: u64,
    /// Tokens per interval.
    fill: u64,
    interval: &'n Node,
    nanos: u128,
}

/// Reads the bucket at `node`; one that is invalid gets a remark.
pub(super) fn read_bucket(node: &Node, ledger: &Ledger) -> Option<ImportedBucket> {
    ledger.message(node, &BUCKET);
    match BucketFields::read(node) {
        Ok(fields) => Some(fields.imported(node, ledger)),
        Err((value, reason)) => {
            ledger.lose(value, Effect::Looser, format!("the bucket is left out: {reason}"));
            None
        }
    }
}

impl<'n> BucketFields<'n> {
    /// Reads the fields of the bucket at `node`.
    ///
    /// # Errors
    /// The first node that is invalid, and the reason.
    fn read(node: &'n Node) -> Result<Self, (&'n Node, String)> {
        let max_tokens = tokens(node, "max_tokens", 0)?;
        let fill = tokens(node, "tokens_per_fill", 1)?;
        let interval = get(node, "fill_interval").ok_or_else(|| (node, "no `fill_interval`".to_owned()))?;
        let nanos = as_nanos(interval).filter(|nanos| *nanos >= MILLISECOND).ok_or_else(|| {
            (interval, "expected a duration of at least 1 ms, such as `1s` or `0.5s`".to_owned())
        })?;
        Ok(Self { max_tokens, fill, interval, nanos })
    }

    fn imported(self, node: &Node, ledger: &Ledger) -> ImportedBucket {
        let Self { max_tokens, fill, interval, nanos } = self;
        if max_tokens == 0 {
            ledger.lose(node, Effect::None, "no tokens: every request is rejected");
            return ImportedBucket::Empty;
        }
        ["max_tokens", "tokens_per_fill", "fill_interval"]
            .into_iter()
            .filter_map(|name| get(node, name))
            .for_each(|value| ledger.use_all(value));
        let is_reduced = u128::from(fill).saturating_mul(SECOND) / nanos > MAX_PER_SECOND;
        let limit = if is_reduced {
            let reason = format!("reduced to the maximum of {MAX_PER_SECOND} a second");
            ledger.lose(node, Effect::Tighter, reason);
            format!("{MAX_PER_SECOND}/s")
        } else {
            if !nanos.is_multiple_of(MILLISECOND) {
                ledger.lose(interval, Effect::Looser, "rounded down to a millisecond");
            }
            format!("{fill}/{}", format_period(nanos))
        };
        let is_burst = is_reduced || max_tokens != fill;
        ImportedBucket::Rate { limit, capacity: max_tokens, is_burst }
    }
}

/// Returns a number of tokens, by default the minimum.
fn tokens<'n>(node: &'n Node, name: &str, min: u64) -> Result<u64, (&'n Node, String)> {
    let Some(value) = get(node, name) else { return Ok(min) };
    let count = as_u64(value).filter(|count| (min..=u64::from(u32::MAX)).contains(count));
    count.ok_or_else(|| (value, format!("expected a number from {min} to {}", u32::MAX)))
}

/// Formats a period for a rate, in whole milliseconds at the finest.
pub(super) fn format_period(nanos: u128) -> String {
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
    use weir_yaml::{self as yaml, Dialect};

    /// Returns the limit, the burst and what is said of the bucket.
    fn bucket(text: &str) -> (Option<(String, u64)>, Vec<String>) {
        // The ledger knows a node by its address.
        let nodes = [yaml::parse(text, Dialect::Go).unwrap().unwrap()];
        let ledger = Ledger::default();
        let bucket = read_bucket(&nodes[0], &ledger).map(|bucket| match bucket {
            ImportedBucket::Empty => ("empty".to_owned(), 0),
            ImportedBucket::Rate { limit, capacity, .. } => (limit, capacity),
        });
        (bucket, ledger.remarks("f", &nodes, &[]).iter().map(|remark| remark.comment()).collect())
    }

    #[test]
    fn imported_token_bucket_is_a_limit_and_a_burst() {
        for (text, limit, capacity) in [
            ("{max_tokens: 10, fill_interval: 1s}", "1/s", 10),
            ("{max_tokens: 10, tokens_per_fill: 10, fill_interval: 60s}", "10/m", 10),
            ("{maxTokens: 5, tokensPerFill: 2, fillInterval: 0.25s}", "2/250ms", 5),
            ("{max_tokens: 1, fill_interval: 90s}", "1/90s", 1),
            ("{max_tokens: '7', tokens_per_fill: 7.0, fill_interval: '1.000000000s'}", "7/s", 7),
            ("{max_tokens: 1e2, fill_interval: .5s}", "1/500ms", 100),
        ] {
            assert_eq!(bucket(text), (Some((limit.to_owned(), capacity)), vec![]), "{text}");
        }
    }

    #[test]
    fn imported_token_buckets_without_tokens_or_above_the_maximum_are_remarked() {
        let (empty, remarks) = bucket("{max_tokens: 0, fill_interval: 1s}");
        assert_eq!((empty, remarks.len()), (Some(("empty".to_owned(), 0)), 1));
        let (large, remarks) =
            bucket("{max_tokens: 4294967295, tokens_per_fill: 4294967295, fill_interval: 1s}");
        assert_eq!(large, Some(("1000000000/s".to_owned(), 4_294_967_295)));
        assert!(remarks[0].starts_with("tighter: f:1:1: "), "{remarks:?}");
    }

    #[test]
    fn invalid_token_buckets_are_left_out_with_their_position() {
        for (text, expected) in [
            ("{max_tokens: 1}", "looser: f:1:1: the document: the bucket is left out: no `fill_interval`"),
            ("{max_tokens: many, fill_interval: 1s}", "looser: f:1:14: max_tokens: the bucket is left out"),
            ("{max_tokens: 1, fill_interval: 1m}", "looser: f:1:32: fill_interval: the bucket is left out"),
            (
                "{max_tokens: 1, fill_interval: 0.0001s}",
                "looser: f:1:32: fill_interval: the bucket is left out",
            ),
        ] {
            let (bucket, remarks) = bucket(text);
            assert_eq!(bucket, None, "{text}");
            assert!(remarks.iter().any(|remark| remark.starts_with(expected)), "{remarks:?}");
        }
    }
}
