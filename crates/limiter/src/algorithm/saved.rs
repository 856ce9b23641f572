//! Serialises counter state for another process.

use super::{
    Algorithm, CounterKind, CounterState, aggregate, charge, is_in_debt, refill_bucket, sliding_window,
    usage, with_lapsing_excess,
};
use crate::quota::Quota;
use crate::saved::bytes::{ByteReader, ByteWriter};
use crate::timestamp::Timestamp;

/// Appends the counter's state to `out`; at most 255 bytes.
pub(crate) fn export(state: CounterState, out: &mut Vec<u8>) {
    let mut out = ByteWriter(out);
    out.u64(state.word);
    out.u32(state.extra);
}

/// Reads the state that [`export`] wrote under this quota; `None` if it is not valid.
pub(crate) fn import(bytes: &[u8], quota: &Quota) -> Option<CounterState> {
    let mut input = ByteReader(bytes);
    let state = CounterState { word: input.u64()?, extra: input.u32()? };
    let is_whole = input.is_empty();
    let is_valid = match quota.algorithm() {
        // A remainder is smaller than the quota's count.
        Algorithm::Gcra | Algorithm::LeakyBucket => u64::from(state.extra) < quota.count(),
        Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::Ban => true,
        Algorithm::InFlight | Algorithm::Lease(_) => false,
    };
    (is_whole && is_valid).then_some(state)
}

/// Returns state with as much in use at `now` as was at `then`, if the clock has gone back in between. It is not known
/// how much time has passed, and state in the future would stay in use until the clock has caught up.
pub(crate) fn rebase(
    state: CounterState,
    quota: &Quota,
    then: Timestamp,
    now: Timestamp,
) -> Option<CounterState> {
    match quota.algorithm().counter_kind() {
        CounterKind::Bans => {
            let back = then.as_nanos().saturating_sub(now.as_nanos());
            Some(CounterState { word: state.word.saturating_sub(back), ..state })
        }
        CounterKind::Rate | CounterKind::InFlight => match usage(Some(state), quota, then).used {
            0 => None,
            used => {
                let rebased = charge(None, quota, used.into(), now);
                let owes = is_in_debt(state, quota, then);
                Some(if owes { rebased } else { with_lapsing_excess(rebased, quota, now) })
            }
        },
    }
}

/// Returns state that at every moment from `now` on has at least the usage of either counter.
pub(crate) fn merge_fuller(a: CounterState, b: CounterState, quota: &Quota, now: Timestamp) -> CounterState {
    match quota.algorithm() {
        // For these the fuller of two counters may become empty first.
        Algorithm::SlidingWindow if !quota.needs_history() => sliding_window::merge_fuller(a, b, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => aggregate::merge_fuller(a, b, quota, now),
        Algorithm::RefillBucket => refill_bucket::merge_fuller(a, b, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Lease(_) => {
            let fullness = |state| {
                let usage = usage(Some(state), quota, now);
                (usage.used, usage.reset)
            };
            if fullness(a) >= fullness(b) { a } else { b }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::ban;
    use crate::quota::{Ban, Limit, Period, TimeUnit};

    const FUTURE: Timestamp = Timestamp::from_secs(4_000_000_000);
    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn ten_an_hour(algorithm: Algorithm) -> Quota {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(TimeUnit::Hour));
        Quota::new(algorithm, limit, None).unwrap()
    }

    #[test]
    fn restored_counter_from_the_future_keeps_usage_and_resets_within_its_window() {
        for algorithm in Algorithm::RATES {
            let quota = ten_an_hour(algorithm);
            let state = charge(None, &quota, 10, FUTURE);
            let rebased = usage(rebase(state, &quota, FUTURE, NOW), &quota, NOW);
            assert_eq!(rebased.used, 10, "{algorithm}");
            // Units in a sliding window expire at the end of the next window at the latest.
            let windows = if algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
            assert!(rebased.reset <= windows * Duration::from_secs(3600), "{algorithm}: {:?}", rebased.reset);
            let unused = charge(None, &quota, 0, FUTURE);
            assert_eq!(rebase(unused, &quota, FUTURE, NOW), None);
        }
    }

    #[test]
    fn merged_counter_is_at_least_as_full_as_both() {
        let precise = ten_an_hour(Algorithm::SlidingWindow).with_precision(6).unwrap();
        for quota in Algorithm::RATES.map(ten_an_hour).into_iter().chain([precise]) {
            let later = FUTURE.saturating_add(Duration::from_secs(1800));
            let (earlier, later_one) = (charge(None, &quota, 6, FUTURE), charge(None, &quota, 5, later));
            for [a, b] in [[earlier, later_one], [later_one, earlier]] {
                let both = merge_fuller(a, b, &quota, later);
                for minutes in (0..150).step_by(5) {
                    let at = later.saturating_add(Duration::from_secs(minutes * 60));
                    let used = |state| usage(Some(state), &quota, at).used;
                    assert!(used(both) >= used(a).max(used(b)), "{} after {minutes}", quota.algorithm());
                }
            }
        }
    }

    #[test]
    fn restored_ban_from_the_future_keeps_its_duration() {
        let quota = Quota::ban(Ban {
            initial_duration: Duration::from_secs(600),
            max_duration: Duration::from_secs(86_400),
        });
        let (running, length) = ban::start_ban(None, &quota, FUTURE);
        let rebased = rebase(running, &quota, FUTURE, NOW);
        assert_eq!(usage(rebased, &quota, NOW).reset, length);
    }

    #[test]
    fn import_rejects_invalid_counter_bytes() {
        let quota = ten_an_hour(Algorithm::Gcra);
        let bytes = |extra| {
            let mut bytes = Vec::new();
            export(CounterState { word: 1, extra }, &mut bytes);
            bytes
        };
        assert!(import(&bytes(9), &quota).is_some());
        assert_eq!(import(&bytes(10), &quota), None);
        assert_eq!(import(&bytes(9)[..11], &quota), None);
        assert_eq!(import(&[bytes(9), vec![0]].concat(), &quota), None);
    }
}
