use super::*;

fn limit(count: u32, unit: TimeUnit) -> Limit {
    Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit))
}

#[test]
fn quota_rate_is_at_most_one_unit_per_nanosecond() {
    assert!(Quota::new(Algorithm::Gcra, limit(1_000_000_000, TimeUnit::Second), None).is_ok());
    assert!(matches!(
        Quota::new(Algorithm::Gcra, limit(1_000_000_001, TimeUnit::Second), None),
        Err(QuotaError::TooFast(_))
    ));
    assert!(Quota::new(Algorithm::Gcra, limit(u32::MAX, TimeUnit::Minute), None).is_ok());
}

#[test]
fn quota_with_a_burst_of_a_century_is_rejected() {
    let burst = NonZeroU32::new(101);
    assert_eq!(Quota::new(Algorithm::Gcra, limit(1, TimeUnit::Year), burst), Err(QuotaError::TooSlow));
    assert!(Quota::new(Algorithm::Gcra, limit(1, TimeUnit::Year), NonZeroU32::new(100)).is_ok());
}

#[test]
fn fixed_window_quota_rejects_a_burst() {
    assert_eq!(
        Quota::new(Algorithm::FixedWindow, limit(10, TimeUnit::Second), NonZeroU32::new(20)),
        Err(QuotaError::NoBurst(Algorithm::FixedWindow))
    );
}

#[test]
fn quota_keeps_zone_and_precision_through_margin_and_elastic() {
    let berlin = Zone::register(&jiff::tz::TimeZone::get("Europe/Berlin").unwrap()).unwrap();
    let quota = |algorithm| Quota::new(algorithm, limit(10, TimeUnit::Day), None).unwrap();
    let daily = quota(Algorithm::FixedWindow).in_zone(berlin).unwrap();
    let fine = quota(Algorithm::SlidingWindow).with_precision(12).unwrap();
    let elastic_range = ElasticRange::from_hundredths(300).unwrap();
    for (daily, fine) in [
        (daily, fine),
        (daily.with_margin(Percent::ONE_HUNDRED).unwrap(), fine.with_margin(Percent::ONE_HUNDRED).unwrap()),
        (daily.to_elastic(elastic_range).unwrap().0, fine.to_elastic(elastic_range).unwrap().0),
    ] {
        assert_eq!((daily.zone(), daily.precision()), (berlin, 1));
        assert_eq!((fine.zone(), fine.precision()), (Zone::UTC, 12));
    }
    assert_ne!(daily, quota(Algorithm::FixedWindow));
    assert_eq!(quota(Algorithm::SlidingWindow).in_zone(berlin), None);
    assert_eq!(quota(Algorithm::FixedWindow).with_precision(2), None);
    assert_eq!([1, 61].map(|windows| quota(Algorithm::SlidingWindow).with_precision(windows)), [None; 2]);
}

#[test]
fn sliding_log_quota_is_bounded() {
    let new = |count| Quota::new(Algorithm::SlidingLog, limit(count, TimeUnit::Year), None);
    assert!(new(10_000).is_ok());
    assert_eq!(new(10_001), Err(QuotaError::TooManyToLog(limit(10_001, TimeUnit::Year))));
}

#[test]
fn elastic_quota_displays_the_configured_limit() {
    let quota = Quota::new(Algorithm::Gcra, limit(100, TimeUnit::Second), NonZeroU32::new(200)).unwrap();
    let (finer, prices) = quota.to_elastic(ElasticRange::from_hundredths(300).unwrap()).unwrap();
    assert_eq!(
        (finer.limit(), finer.burst(), finer.refill()),
        (quota.limit(), quota.burst(), quota.refill())
    );
    assert_eq!(finer.count(), 100 * u64::from(prices.full().get()));
    assert_eq!(size_of::<Quota>(), 40);
}

#[test]
fn elastic_range_is_rejected_for_too_large_limits() {
    let elastic_range = ElasticRange::from_hundredths(300).unwrap();
    let quota = |count, unit| Quota::new(Algorithm::Gcra, limit(count, unit), None).unwrap();
    let shares =
        |quota: Quota| quota.to_elastic(elastic_range).map(|(quota, _)| quota.units_per_request().get());
    assert_eq!(shares(quota(50_000_000, TimeUnit::Second)), Ok(18));
    assert_eq!(
        shares(quota(400_000_000, TimeUnit::Second)),
        Err(QuotaError::TooLargeForElastic(elastic_range))
    );
    assert_eq!(shares(quota(u32::MAX, TimeUnit::Year)), Err(QuotaError::TooLargeForElastic(elastic_range)));
}

#[test]
fn quota_interval_keeps_fractions_of_nanoseconds() {
    let quota = Quota::new(Algorithm::Gcra, limit(3, TimeUnit::Second), None).unwrap();
    assert_eq!(quota.interval(), ExactSpan { nanos: 333_333_333, remainder: 1 });
    assert_eq!(quota.tolerance(), ExactSpan { nanos: 1_000_000_000, remainder: 0 });
    assert_eq!(quota.refill(), Duration::from_secs(1));
}
