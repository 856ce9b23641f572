//! What counters remember, as bytes that mean the same to another process.

use super::{
    Algorithm, Counts, State, charge, is_in_debt, lapsing, lump, refill_bucket, sliding_window, usage,
};
use crate::limiter::quota::Quota;
use crate::limiter::saved::bytes::{Input, Output};
use crate::limiter::timestamp::Timestamp;

/// Appends what the counter remembers to `out`; at most 255 bytes.
pub(in crate::limiter) fn export(state: State, out: &mut Vec<u8>) {
    let mut out = Output(out);
    out.u64(state.word);
    out.u32(state.extra);
}

/// The counter that [`export`] wrote under this quota; nothing where it could not have.
pub(in crate::limiter) fn import(bytes: &[u8], quota: &Quota) -> Option<State> {
    let mut input = Input(bytes);
    let state = State { word: input.u64()?, extra: input.u32()? };
    let is_whole = input.is_empty();
    let is_valid = match quota.algorithm() {
        // A remainder is smaller than the count it was taken by.
        Algorithm::Gcra | Algorithm::LeakyBucket => u64::from(state.extra) < quota.count(),
        Algorithm::TokenBucket
        | Algorithm::RefillBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog
        | Algorithm::Ban => true,
        Algorithm::InFlight | Algorithm::Claim(_) => false,
    };
    (is_whole && is_valid).then_some(state)
}

/// As much in use at `now` as there was `then`, for a clock that has gone back in between: nobody knows how
/// much time has passed, and what lies in the future would be in use for as long as the clock is wrong.
pub(in crate::limiter) fn rebase(
    state: State,
    quota: &Quota,
    (then, now): (Timestamp, Timestamp),
) -> Option<State> {
    match quota.algorithm().counts() {
        Counts::Bans => {
            let back = then.as_nanos().saturating_sub(now.as_nanos());
            Some(State { word: state.word.saturating_sub(back), ..state })
        }
        Counts::Rate | Counts::InFlight => match usage(Some(state), quota, then).used {
            0 => None,
            used => {
                let rebased = charge(None, quota, used.into(), now);
                let owes = is_in_debt(state, quota, then);
                Some(if owes { rebased } else { lapsing(rebased, quota, now) })
            }
        },
    }
}

/// A counter that says at every moment from `now` on as much as the fuller of two.
pub(in crate::limiter) fn fuller(a: State, b: State, quota: &Quota, now: Timestamp) -> State {
    match quota.algorithm() {
        // The fuller of these may be the first to be empty.
        Algorithm::SlidingWindow if !quota.looks_back() => sliding_window::fuller(a, b, quota, now),
        Algorithm::SlidingWindow | Algorithm::SlidingLog => lump::fuller(a, b, quota, now),
        Algorithm::RefillBucket => refill_bucket::fuller(a, b, quota, now),
        Algorithm::Gcra
        | Algorithm::TokenBucket
        | Algorithm::LeakyBucket
        | Algorithm::FixedWindow
        | Algorithm::InFlight
        | Algorithm::Ban
        | Algorithm::Claim(_) => {
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
    use crate::limiter::algorithm::ban;
    use crate::limiter::quota::{Ban, Limit, Period, Unit};

    const THEN: Timestamp = Timestamp::from_secs(4_000_000_000);
    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn ten_an_hour(algorithm: Algorithm) -> Quota {
        let limit = Limit::new(NonZeroU32::new(10).unwrap(), Period::one(Unit::Hour));
        Quota::new(algorithm, limit, None).unwrap()
    }

    #[test]
    fn counters_from_the_future_are_as_full_as_they_were_and_no_longer_blocked_than_that() {
        for algorithm in Algorithm::RATES {
            let quota = ten_an_hour(algorithm);
            let state = charge(None, &quota, 10, THEN);
            let rebased = usage(rebase(state, &quota, (THEN, NOW)), &quota, NOW);
            assert_eq!(rebased.used, 10, "{algorithm}");
            // What a sliding window has seen leaves with the end of the next one at the latest.
            let windows = if algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
            assert!(rebased.reset <= windows * Duration::from_secs(3600), "{algorithm}: {:?}", rebased.reset);
            let unused = charge(None, &quota, 0, THEN);
            assert_eq!(rebase(unused, &quota, (THEN, NOW)), None);
        }
    }

    #[test]
    fn of_two_counters_the_one_that_takes_both_places_is_never_emptier() {
        let precise = ten_an_hour(Algorithm::SlidingWindow).with_precision(6).unwrap();
        for quota in Algorithm::RATES.map(ten_an_hour).into_iter().chain([precise]) {
            let later = THEN.saturating_add(Duration::from_secs(1800));
            let (earlier, later_one) = (charge(None, &quota, 6, THEN), charge(None, &quota, 5, later));
            for [a, b] in [[earlier, later_one], [later_one, earlier]] {
                let both = fuller(a, b, &quota, later);
                for minutes in (0..150).step_by(5) {
                    let at = later.saturating_add(Duration::from_secs(minutes * 60));
                    let used = |state| usage(Some(state), &quota, at).used;
                    assert!(used(both) >= used(a).max(used(b)), "{} after {minutes}", quota.algorithm());
                }
            }
        }
    }

    #[test]
    fn a_ban_from_the_future_has_as_long_to_run_as_it_had() {
        let quota = Quota::ban(Ban { first: Duration::from_secs(600), most: Duration::from_secs(86_400) });
        let (running, length) = ban::begin(None, &quota, THEN);
        let rebased = rebase(running, &quota, (THEN, NOW));
        assert_eq!(usage(rebased, &quota, NOW).reset, length);
    }

    #[test]
    fn a_remainder_that_cannot_be_is_no_state() {
        let quota = ten_an_hour(Algorithm::Gcra);
        let bytes = |extra| {
            let mut bytes = Vec::new();
            export(State { word: 1, extra }, &mut bytes);
            bytes
        };
        assert!(import(&bytes(9), &quota).is_some());
        assert_eq!(import(&bytes(10), &quota), None);
        assert_eq!(import(&bytes(9)[..11], &quota), None);
        assert_eq!(import(&[bytes(9), vec![0]].concat(), &quota), None);
    }
}
