use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::{self as limiter, Check, LimitIdentity, LimitSpec};

/// 2026-11-21T08:00:00Z.
const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);

const MAX_KEYS: usize = 64;

/// Returns a limiter with one limit of 2 per day, used up by the first `keys` keys.
fn limiter(keys: u32) -> Limiter {
    let limiter = Limiter::new(limiter::LimiterSettings { max_keys: MAX_KEYS, secret: [7, 11] });
    let limit = Limit::new(NonZeroU32::new(2).unwrap(), Period::one(TimeUnit::Day));
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "rule".into(), key: "[client_ip]".into() },
        quota: Quota::new(Algorithm::Gcra, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let handle = limiter.install(&[spec], NOW)[0];
    for key in 0..keys {
        let check = Check {
            handle,
            key: limiter.hasher().hash(&key.to_be_bytes()),
            cost: 2,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: None,
        };
        assert!(!limiter.check(&[check], NOW).is_rejected());
    }
    limiter
}

fn written(limiter: &Limiter) -> Vec<u8> {
    let mut bytes = Vec::new();
    frames::write(&mut bytes, limiter, NOW).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<u64, StateFileError> {
    frames::read(bytes, MAX_KEYS, NOW).map(|restored| restored.counters)
}

/// Returns a temporary directory with the settings and the [`StateFile`] of a state file in it.
fn new_state_file() -> (TempDir, StateFileSettings, StateFile) {
    let directory = tempfile::tempdir().unwrap();
    let settings =
        StateFileSettings { file: directory.path().join("state"), interval: Duration::from_secs(30) };
    let keeper = StateFile::new(&settings);
    (directory, settings, keeper)
}

/// Returns how many writes succeeded and how many failed.
fn save_counts(keeper: &StateFile) -> (u64, u64) {
    let status = keeper.status();
    let status = status.lock();
    (status.saved, status.failed)
}

fn file_names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn saved_counters_are_restored_by_the_next_process() {
    let (directory, settings, mut keeper) = new_state_file();
    assert!(keeper.restore(MAX_KEYS, NOW).is_none(), "no state file yet");
    keeper.save(&limiter(3), NOW);
    let status = keeper.status().lock().clone();
    assert_eq!((status.saved, status.failed, status.counters, status.problem), (1, 0, 3, None));
    assert_eq!(status.bytes, fs::metadata(&settings.file).unwrap().len());
    drop(keeper);
    let mut next = StateFile::new(&settings);
    assert!(next.restore(MAX_KEYS, NOW).is_some_and(|limiter| limiter.live_keys() == 3));
    assert_eq!(next.status().lock().restored, 3);
    assert_eq!(file_names(directory.path()), ["state", "state.lock"]);
}

#[test]
fn state_file_is_readable_by_its_owner_only() {
    let (directory, _, mut keeper) = new_state_file();
    keeper.save(&limiter(1), NOW);
    for name in file_names(directory.path()) {
        let mode = fs::metadata(directory.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn temporary_state_file_of_a_crash_is_replaced() {
    let (directory, settings, mut keeper) = new_state_file();
    fs::write(directory.path().join("state.next"), "half a state").unwrap();
    fs::set_permissions(directory.path().join("state.next"), fs::Permissions::from_mode(0o644)).unwrap();
    keeper.save(&limiter(2), NOW);
    assert_eq!(file_names(directory.path()), ["state", "state.lock"]);
    assert_eq!(read(&fs::read(&settings.file).unwrap()).unwrap(), 2);
    assert_eq!(fs::metadata(&settings.file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn state_file_is_locked_by_one_process() {
    let (_directory, settings, mut first) = new_state_file();
    first.save(&limiter(1), NOW);
    let mut second = StateFile::new(&settings);
    assert!(second.restore(MAX_KEYS, NOW).is_some(), "the second process can read the file");
    second.save(&limiter(2), NOW);
    let status = second.status().lock().clone();
    assert_eq!((status.saved, status.problem.as_deref()), (0, Some("another process has locked it")));
    assert_eq!(read(&fs::read(&settings.file).unwrap()).unwrap(), 1);
    drop(first);
    second.save(&limiter(2), NOW);
    assert_eq!(second.status().lock().problem, None);
    assert_eq!(read(&fs::read(&settings.file).unwrap()).unwrap(), 2);
}

#[test]
fn damaged_state_file_is_set_aside() {
    let (directory, settings, mut keeper) = new_state_file();
    for content in ["one", "two"] {
        fs::write(&settings.file, content).unwrap();
        assert!(keeper.restore(MAX_KEYS, NOW).is_none());
        assert_eq!(file_names(directory.path()), ["state.damaged", "state.lock"]);
        assert_eq!(fs::read_to_string(directory.path().join("state.damaged")).unwrap(), content);
    }
    let mut other = StateFile::new(&settings);
    fs::write(&settings.file, "three").unwrap();
    assert!(other.restore(MAX_KEYS, NOW).is_none());
    assert_eq!(fs::read_to_string(&settings.file).unwrap(), "three", "not overwritten");
}

#[test]
fn missing_state_directory_is_used_once_it_exists() {
    let (directory, mut settings, _) = new_state_file();
    settings.file = directory.path().join("later").join("state");
    assert!(settings.obstacle().is_some());
    let mut keeper = StateFile::new(&settings);
    assert!(keeper.restore(MAX_KEYS, NOW).is_none());
    keeper.save(&limiter(1), NOW);
    assert_eq!(save_counts(&keeper), (0, 2));
    fs::create_dir(directory.path().join("later")).unwrap();
    assert!(settings.obstacle().is_none());
    keeper.save(&limiter(1), NOW);
    assert_eq!(save_counts(&keeper), (1, 2));
}

#[test]
fn directory_in_place_of_the_state_file_is_kept() {
    let (directory, settings, mut keeper) = new_state_file();
    fs::create_dir(&settings.file).unwrap();
    assert!(settings.obstacle().is_some());
    assert!(keeper.restore(MAX_KEYS, NOW).is_none());
    keeper.save(&limiter(1), NOW);
    assert_eq!(keeper.status().lock().failed, 1);
    assert!(settings.file.is_dir());
    assert_eq!(file_names(directory.path()), ["state", "state.lock"]);
}

#[test]
fn invalid_state_file_is_reported_with_its_reason() {
    let whole = written(&limiter(3));
    let of_version = |version| [&whole[..12], &[version], &whole[13..]].concat();
    let of = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert_eq!(of(b""), "not a state file");
    assert_eq!(of(b"weir state\n"), "not a state file");
    for version in [2, 4] {
        let said = format!("unsupported format version, expected 3, got {version}");
        assert_eq!(of(&of_version(version)), said);
    }
    assert_eq!(of(&whole[..16]), "truncated in the middle of a part");
    assert_eq!(of(&[&whole[..], b"!"].concat()), "unexpected data after the last part");
    assert_eq!(of(&[&whole[..16], &[255; 40]].concat()), "part 0 is damaged");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn state_file_with_a_changed_or_missing_byte_is_rejected(
        place in any::<prop::sample::Index>(),
        other in 1_u8..=255,
        cut in any::<bool>(),
    ) {
        let mut bytes = written(&limiter(40));
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= other;
        }
        prop_assert!(read(&bytes).is_err());
    }

    #[test]
    fn state_file_with_a_moved_or_repeated_part_is_rejected(
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
        length in 1_usize..200,
    ) {
        let bytes = written(&limiter(40));
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        let moved = &bytes[from..(from + length).min(bytes.len())];
        let other = [&bytes[..to], moved, &bytes[to..]].concat();
        prop_assert!(other == bytes || read(&other).is_err());
    }
}
