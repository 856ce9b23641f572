mod quotas;

use super::*;

#[test]
fn cost_never_exceeds_what_the_share_allows() {
    let units = NonZeroU16::new(MAX_UNITS_PER_REQUEST).unwrap();
    for millionths in (LimitShare::MIN.0..=WHOLE).step_by(997) {
        let share = LimitShare::from_millionths(millionths);
        let cost = share.cost(units).get();
        let admitted = f64::from(units.get()) / f64::from(cost);
        assert!(admitted <= share.fraction() + 1e-9, "{admitted} at {share:?}");
        assert!(admitted >= share.fraction() * 0.995, "{admitted} at {share:?}");
    }
    assert_eq!(LimitShare::FULL.cost(units), units.into());
}

#[test]
fn share_is_at_least_one_per_cent_and_at_most_the_whole() {
    assert_eq!(LimitShare::from_millionths(0), LimitShare::MIN);
    assert_eq!(LimitShare::from_millionths(u32::MAX), LimitShare::FULL);
    assert_eq!(LimitShare::MIN.lowered(WHOLE), LimitShare::MIN);
    assert_eq!(LimitShare::FULL.raised(u32::MAX), LimitShare::FULL);
    assert_eq!(LimitShare::from_percent(Percent::from_hundredths(1250)).to_string(), "12.5%");
}

#[test]
fn units_are_as_many_as_the_limit_leaves_room_for() {
    let units = |max| units_per_request(max).map(NonZeroU16::get);
    assert_eq!((units(u64::MAX), units(100), units(3)), (Some(240), Some(100), None));
}
