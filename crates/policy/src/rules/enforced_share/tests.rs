use http::{HeaderMap, Method, Uri};
use proptest::prelude::*;

use super::*;
use crate::identify::{IdentifySettings, identify};
use crate::rules::attribute::Attribute;
use crate::rules::key::KeyTemplate;
use crate::rules::pattern::Route;
use crate::rules::rule::LimitAction;
use weir_limiter::timestamp::Timestamp;

/// Keys of 192.0.2.0/24 that an independent implementation of the hash selects: one in twenty.
const GOLDEN: &[u8] = &[19, 75, 81, 85, 89, 178, 183, 187, 205, 218, 219, 223];
const GOLDEN_2: &[u8] = &[6, 60, 114, 161, 178, 182, 186, 198, 208, 231, 235];

fn percent(hundredths: u32) -> Percent {
    Percent::from_hundredths(hundredths)
}

/// Returns the encoding of a key with this text.
fn key(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat()
}

/// Returns how many of `count` keys a rule selects.
fn count_selected(enforce: &EnforcedShare, count: usize) -> usize {
    (0..count).filter(|n| enforce.includes(&key(&format!("client-{n}")))).count()
}

#[test]
fn enforced_share_selection_is_stable_across_versions() {
    // These numbers are part of the configuration's contract: an upgrade must not change the keys of a canary.
    let addresses: Vec<u8> = (0..=255).collect();
    let canary = |seed: &str| -> Vec<u8> {
        let enforce = EnforcedShare::new(percent(500), seed);
        let encoded = |last: u8| [0, 0, 0, 4, 192, 0, 2, last];
        addresses.iter().copied().filter(|last| enforce.includes(&encoded(*last))).collect()
    };
    assert_eq!(canary(DEFAULT_SEED), GOLDEN);
    assert_eq!(canary("canary-2"), GOLDEN_2);
    assert_eq!(hash([0, 0], b""), 0x1e92_4b9d_7377_00d7, "SipHash-2-4 of nothing under the key of zeros");
}

#[test]
fn enforced_share_selects_clients_by_address() {
    let limiting = LimitAction {
        key: KeyTemplate([Attribute::ClientIp].into()),
        enforced_share: EnforcedShare::new(percent(500), DEFAULT_SEED),
        ..LimitAction::default()
    };
    let is_enforced = |last: &u8| {
        let (uri, headers, settings) = (Uri::from_static("/"), HeaderMap::new(), IdentifySettings::default());
        let peer = [192, 0, 2, *last].into();
        let request = identify(&Method::GET, &uri, &headers, peer, &settings, Timestamp::default()).unwrap();
        limiting.is_enforced(Some((&request, Route(""))))
    };
    assert_eq!((0..=255).filter(is_enforced).collect::<Vec<u8>>(), GOLDEN);
}

#[test]
fn enforced_share_is_accurate() {
    const KEYS: usize = 100_000;
    for seed in [DEFAULT_SEED, "canary-2", "a", "another"] {
        for hundredths in [1, 100, 1000, 3333, 5000, 9000, 9999] {
            let expected = KEYS as f64 * f64::from(hundredths) / 10_000.0;
            // Five standard deviations of a binomial distribution. The hash is fixed, so the test is deterministic.
            let margin = 5.0 * (expected * (1.0 - f64::from(hundredths) / 10_000.0)).sqrt() + 1.0;
            let found = count_selected(&EnforcedShare::new(percent(hundredths), seed), KEYS) as f64;
            assert!((found - expected).abs() < margin, "{found} of {expected} ± {margin} with {seed:?}");
        }
    }
}

#[test]
fn enforced_share_seeds_select_independently() {
    const KEYS: usize = 100_000;
    let (one, other) =
        (EnforcedShare::new(percent(1000), DEFAULT_SEED), EnforcedShare::new(percent(1000), "canary-2"));
    let both = (0..KEYS).map(|n| key(&format!("client-{n}")));
    let both = both.filter(|key| one.includes(key) && other.includes(key)).count();
    // 10 % of 10 %: selections under different seeds are independent.
    assert!((850..=1150).contains(&both), "{both}");
}

proptest! {
    #[test]
    fn larger_enforced_share_keeps_every_key_of_a_smaller_one(
        key: Vec<u8>, seed in ".{1,40}", small in 0_u32..=10_000, large in 0_u32..=10_000,
    ) {
        let (small, large) = (small.min(large), small.max(large));
        let includes = |share| EnforcedShare::new(percent(share), &seed).includes(&key);
        prop_assert!(!includes(small) || includes(large));
        prop_assert!(includes(10_000) && !includes(0));
    }
}
