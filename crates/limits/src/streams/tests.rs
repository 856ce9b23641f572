use proptest::prelude::*;

use super::*;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::check_options::{CheckOptions, CounterRole, DelayPolicy};
use weir_limiter::key::KeyHash;
use weir_limiter::quota::{Limit, Period, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::{LimitHandle, LimitIdentity, LimitSpec, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: u64 = 1_000_000_000;
const CLIENT: StreamDirection = StreamDirection::Request;

/// A limiter with one limit a second, and streams with one key.
struct Fixture {
    limiter: Limiter,
    handle: LimitHandle,
    can_delay: bool,
}

fn spec(algorithm: Algorithm, count: u32, burst: Option<u32>) -> LimitSpec {
    let units = |units| NonZeroU32::new(units).unwrap();
    let limit = Limit::new(units(count), Period::new(units(1), TimeUnit::Second));
    LimitSpec {
        identity: LimitIdentity { rule: "rule".into(), key: "[]".into() },
        quota: Quota::new(algorithm, limit, burst.map(units)).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    }
}

impl Fixture {
    fn new(spec: LimitSpec) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [1, 2] });
        let can_delay = spec.quota.algorithm().can_delay();
        // Units that were charged before the installation could not be given back.
        let handle = limiter.install(&[spec], Timestamp::EPOCH)[0];
        Self { limiter, handle, can_delay }
    }

    fn limiter(&self, measure: StreamMeasure, burst: u32) -> StreamLimiter {
        let delay = match self.can_delay {
            true => CounterRole::Delay(DelayPolicy::new(Duration::MAX, Some(u32::MAX - 1))),
            false => CounterRole::Limit,
        };
        let cost = match measure {
            StreamMeasure::Messages(_, units) => units.get(),
            StreamMeasure::Bytes(_) => 0,
        };
        let check = Check {
            handle: self.handle,
            key: KeyHash::from_words([7, 7]),
            cost,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: Some(CheckOptions::new(0, delay)),
        };
        let is_of_messages = matches!(measure, StreamMeasure::Messages(..));
        StreamLimiter {
            limits: [LimitOfStream { measure, check, burst: NonZeroU32::MIN, metrics: None }]
                .into_iter()
                .collect(),
            scanner: is_of_messages.then(|| MessageScanner::new(Framing::WebSocket)),
            max_part: if is_of_messages {
                usize::MAX
            } else {
                part_of_burst(NonZeroU32::new(burst).unwrap())
            },
            granted: 0,
            segment: StreamSegment { length: 0, starts_message: false },
            charged: None,
        }
    }

    /// Passes all of `bytes` on, each part as soon as there is room, from `at` nanoseconds after the start. Returns when
    /// how many bytes passed.
    fn pass_all(&self, limiter: &mut StreamLimiter, mut bytes: &[u8], mut at: u64) -> Vec<(u64, usize)> {
        let mut passed = Vec::new();
        while !bytes.is_empty() {
            let now = START.saturating_add(Duration::from_nanos(at));
            match limiter.room_at(bytes, &self.limiter, now) {
                StreamRoom::After(wait) => at += u64::try_from(wait.as_nanos()).unwrap(),
                StreamRoom::Available(count) => {
                    assert!(count > 0, "neither bytes nor a wait");
                    limiter.passed(count);
                    bytes = &bytes[count..];
                    passed.push((at, count));
                }
            }
        }
        passed
    }
}

fn message(length: u8) -> Vec<u8> {
    [&[0x82, length][..], &vec![0; length.into()]].concat()
}

#[test]
fn messages_leave_at_the_rate_of_the_limit() {
    for algorithm in [Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket] {
        let fixture = Fixture::new(spec(algorithm, 10, Some(2)));
        let mut limiter = fixture.limiter(StreamMeasure::Messages(CLIENT, NonZeroU32::MIN), 2);
        let passed = fixture.pass_all(&mut limiter, &message(9).repeat(6), 0);
        let expected: Vec<(u64, usize)> =
            [(0, 22), (1, 11), (2, 11), (3, 11), (4, 11)].map(|(at, bytes)| (at * SECOND / 10, bytes)).into();
        assert_eq!(passed, expected, "{algorithm}");
    }
}

#[test]
fn windows_hold_messages_until_the_next_one() {
    let fixture = Fixture::new(spec(Algorithm::FixedWindow, 3, None));
    let mut limiter = fixture.limiter(StreamMeasure::Messages(CLIENT, NonZeroU32::MIN), 3);
    let passed = fixture.pass_all(&mut limiter, &message(1).repeat(7), 0);
    assert_eq!(passed, [(0, 9), (SECOND, 9), (2 * SECOND, 3)]);
}

#[test]
fn part_of_a_stream_that_ends_is_given_back() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 10, Some(1)));
    let measure = StreamMeasure::Messages(CLIENT, NonZeroU32::MIN);
    for _ in 0..50 {
        let mut ended = fixture.limiter(measure, 1);
        let _ = ended.room_at(&message(0), &fixture.limiter, START);
        ended.abandon_at(&fixture.limiter, START);
    }
    // The first one passed.
    let passed = fixture.pass_all(&mut fixture.limiter(measure, 1), &message(0), 0);
    assert_eq!(passed, [(SECOND / 10, 2)]);
}

#[test]
fn part_that_waits_passes_when_its_counter_is_reset() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 1, Some(1)));
    let mut limiter = fixture.limiter(StreamMeasure::Messages(CLIENT, NonZeroU32::MIN), 1);
    let stream = message(0).repeat(2);
    assert_eq!(limiter.room_at(&stream, &fixture.limiter, START), StreamRoom::Available(2));
    limiter.passed(2);
    assert!(matches!(limiter.room_at(&stream[2..], &fixture.limiter, START), StreamRoom::After(_)));
    limiter.refresh_at(&fixture.limiter, START);
    assert!(matches!(limiter.room_at(&stream[2..], &fixture.limiter, START), StreamRoom::After(_)));
    assert!(fixture.limiter.reset_counter(fixture.handle, KeyHash::from_words([7, 7])));
    limiter.refresh_at(&fixture.limiter, START);
    assert_eq!(limiter.room_at(&stream[2..], &fixture.limiter, START), StreamRoom::Available(2));
}

#[test]
fn message_costs_its_units() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 10, Some(5)));
    let units = NonZeroU32::new(5).unwrap();
    let mut limiter = fixture.limiter(StreamMeasure::Messages(CLIENT, units), 5);
    let passed = fixture.pass_all(&mut limiter, &message(0).repeat(3), 0);
    assert_eq!(passed, [(0, 2), (SECOND / 2, 2), (SECOND, 2)]);
}

#[test]
fn streams_with_one_key_take_turns() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 100, Some(1)));
    let measure = StreamMeasure::Messages(CLIENT, NonZeroU32::MIN);
    let mut limiters = [0; 4].map(|_| fixture.limiter(measure, 1));
    let (stream, mut left) = (message(0).repeat(50), [100_usize; 4]);
    // Each stream is polled as often as its timer fires.
    let (mut due, mut counts) = ([0_u64; 4], [0_usize; 4]);
    while due.iter().any(|at| *at <= SECOND) {
        let next = (0..4).min_by_key(|stream| due[*stream]).unwrap();
        let now = START.saturating_add(Duration::from_nanos(due[next]));
        match limiters[next].room_at(&stream[..left[next]], &fixture.limiter, now) {
            StreamRoom::After(wait) => due[next] += u64::try_from(wait.as_nanos()).unwrap(),
            StreamRoom::Available(count) => {
                limiters[next].passed(count);
                left[next] -= count;
                counts[next] += count / 2;
            }
        }
    }
    assert_eq!(counts.iter().sum::<usize>(), 101);
    assert!(counts.iter().all(|count| (24..=27).contains(count)), "{counts:?}");
}

#[test]
fn burst_that_a_reload_makes_smaller_than_a_part_stops_nothing() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 1000, Some(1000)));
    let mut bytes = fixture.limiter(StreamMeasure::Bytes(CLIENT), 1000);
    let units = NonZeroU32::new(900).unwrap();
    let mut messages = fixture.limiter(StreamMeasure::Messages(CLIENT, units), 1000);
    fixture.pass_all(&mut bytes, &[0; 100], 0);
    fixture.limiter.install(&[spec(Algorithm::Gcra, 100, Some(10))], START);
    let passed = fixture.pass_all(&mut bytes, &[0; 1000], 10 * SECOND);
    assert_eq!(passed.last().unwrap().0, 10 * SECOND + 990 * SECOND / 100);
    let passed = fixture.pass_all(&mut messages, &message(0).repeat(2), 60 * SECOND);
    assert_eq!(passed, [(60 * SECOND, 2), (60 * SECOND + SECOND / 10, 2)]);
}

#[test]
fn limit_that_a_reload_removes_holds_nothing() {
    let fixture = Fixture::new(spec(Algorithm::Gcra, 1, Some(1)));
    let mut limiter = fixture.limiter(StreamMeasure::Bytes(CLIENT), 1);
    assert_eq!(fixture.pass_all(&mut limiter, &[0; 3], 0).len(), 3);
    limiter.limits.clear();
    limiter.refresh_at(&fixture.limiter, START);
    assert_eq!(fixture.pass_all(&mut limiter, &[0; 100], 0), [(0, 100)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_more_bytes_pass_than_the_limit_and_hardly_fewer(
        rate in 1_u32..5_000_000,
        burst in 1_u32..100_000,
        sizes in prop::collection::vec(1_usize..20_000, 1..12),
    ) {
        let total: usize = sizes.iter().sum();
        // Slow limits would take too many steps.
        prop_assume!(total / (burst as usize) < 2000);
        let fixture = Fixture::new(spec(Algorithm::Gcra, rate, Some(burst)));
        let mut limiter = fixture.limiter(StreamMeasure::Bytes(CLIENT), burst);
        let (mut at, mut passed) = (0, Vec::new());
        for size in sizes {
            passed.extend(fixture.pass_all(&mut limiter, &vec![0; size], at));
            at = passed.last().unwrap().0;
        }
        let mut sum = 0_u64;
        for (at, count) in &passed {
            sum += *count as u64;
            let most = u64::from(burst) + (u128::from(*at) * u128::from(rate) / u128::from(SECOND)) as u64 + 1;
            prop_assert!(sum <= most, "{sum} bytes after {at} ns, at most {most}");
        }
        // The last byte leaves when it may, apart from a timer's resolution for each wait.
        let waits = passed.len() as u64;
        let due = (total as u64).saturating_sub(burst.into()) * SECOND / u64::from(rate);
        prop_assert!(at <= due + waits * 1_000_000 + waits, "{at} ns, due {due} ns");
    }
}
