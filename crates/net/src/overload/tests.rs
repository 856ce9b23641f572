use std::sync::atomic::AtomicU32;

use super::*;

fn overload(settings: &OverloadSettings) -> Arc<OverloadManager> {
    Arc::new(OverloadManager::new(settings, 1000, AvailableMemory { bytes: 1 << 30, is_limit: false }))
}

fn client(number: u32) -> IpAddr {
    IpAddr::from(number.to_be_bytes())
}

#[test]
fn max_connections_defaults_to_half_of_the_file_descriptors() {
    assert_eq!(overload(&OverloadSettings::default()).max_connections(), 500);
    let settings = OverloadSettings { connections: NonZeroUsize::new(7), ..OverloadSettings::default() };
    assert_eq!(overload(&settings).max_connections(), 7);
}

#[test]
fn a_permit_is_released_when_it_is_dropped() {
    let settings = OverloadSettings {
        connections: NonZeroUsize::new(2),
        requests: NonZeroUsize::new(1),
        ..OverloadSettings::default()
    };
    let overload = overload(&settings);
    let permits = [overload.acquire_connection(), overload.acquire_connection()];
    assert_eq!(overload.acquire_connection().err(), Some(LoadShed::Connections));
    drop(permits);
    assert!(overload.acquire_connection().is_ok());
    let request = overload.acquire_request();
    assert_eq!(overload.acquire_request().err(), Some(LoadShed::Requests));
    drop(request);
    assert!(overload.acquire_request().is_ok());
}

#[test]
fn rejected_client_is_not_counted() {
    let settings =
        OverloadSettings { connections_per_client: NonZeroU32::new(1), ..OverloadSettings::default() };
    let overload = overload(&settings);
    let mut first = overload.acquire_connection().unwrap();
    let mut second = overload.acquire_connection().unwrap();
    assert!(first.count_client(client(1)) && !second.count_client(client(1)));
    drop(second);
    let mut third = overload.acquire_connection().unwrap();
    assert!(third.count_client(client(2)) && third.count_client(client(3)), "one client per connection");
    drop((first, third));
    assert_eq!(overload.clients.len(), 0);
}

#[test]
fn connections_per_client_never_exceed_the_limit_across_threads() {
    const MAX: u32 = 3;
    let settings = OverloadSettings {
        connections: NonZeroUsize::new(20),
        connections_per_client: NonZeroU32::new(MAX),
        ..OverloadSettings::default()
    };
    let overload = overload(&settings);
    let inside: [AtomicU32; 4] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..8_u32 {
            let (overload, inside) = (&overload, &inside);
            scope.spawn(move || {
                for round in 0..2000_u32 {
                    let number = (thread + round) % 4;
                    // Eight threads cannot reach the limit on all connections.
                    let mut permit = overload.acquire_connection().unwrap();
                    if permit.count_client(client(number)) {
                        let there = inside[number as usize].fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(there <= MAX, "{there} connections at once");
                        inside[number as usize].fetch_sub(1, Ordering::SeqCst);
                    }
                    drop(permit);
                }
            });
        }
    });
    assert_eq!(overload.clients.len(), 0);
    assert_eq!(overload.connections.0.load(Ordering::SeqCst), 0);
}

#[test]
fn nothing_is_shed_below_the_limit() {
    let settings = OverloadSettings { connections: NonZeroUsize::new(8), ..OverloadSettings::default() };
    let overload = overload(&settings);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..5000).for_each(|_| drop(overload.acquire_connection().unwrap())));
        }
    });
}

#[test]
fn memory_overload_ends_only_below_its_lower_threshold() {
    let settings = OverloadSettings { memory: MemoryLimit::Percent(50), ..OverloadSettings::default() };
    let overload =
        OverloadManager::new(&settings, 1000, AvailableMemory { bytes: 2_000_000, is_limit: false });
    assert!(overload.limits_memory());
    assert_eq!(overload.record_memory(999_999), None);
    assert_eq!(overload.record_memory(1_000_000), Some(true));
    assert_eq!(overload.acquire_request().err(), Some(LoadShed::Memory));
    assert_eq!(overload.record_memory(960_000), None);
    assert_eq!(overload.record_memory(940_000), Some(false));
    assert!(overload.acquire_request().is_ok());
}

#[test]
fn memory_is_limited_by_default_in_a_container_with_a_limit() {
    let limited = |memory, is_limit| {
        let settings = OverloadSettings { memory, ..OverloadSettings::default() };
        let available = AvailableMemory { bytes: 100_000_000, is_limit };
        let overload = OverloadManager::new(&settings, 1000, available);
        overload.limits_memory().then(|| overload.record_memory(90_000_000) == Some(true))
    };
    assert_eq!(limited(MemoryLimit::Auto, true), Some(true));
    assert_eq!(limited(MemoryLimit::Auto, false), None);
    assert_eq!(limited(MemoryLimit::Off, true), None);
    assert_eq!(limited(MemoryLimit::Percent(91), false), Some(false));
}

#[test]
fn requests_are_not_counted_if_only_memory_is_limited() {
    let settings = OverloadSettings { memory: MemoryLimit::Bytes(1000), ..OverloadSettings::default() };
    let overload = overload(&settings);
    assert!(matches!(overload.acquire_request(), Ok(None)));
    overload.record_memory(1000);
    assert!(overload.is_memory_short());
    assert_eq!(overload.acquire_request().err(), Some(LoadShed::Memory));
}

#[test]
fn default_budgets_are_a_share_of_the_memory() {
    let budget = |bytes| AvailableMemory { bytes, is_limit: true }.default_budget();
    assert_eq!([1 << 20, 128 << 20, 1 << 40].map(budget), [8 << 20, 16 << 20, 64 << 20]);
}

#[test]
fn requests_are_not_counted_without_a_limit() {
    assert!(matches!(overload(&OverloadSettings::default()).acquire_request(), Ok(None)));
}

#[test]
fn new_settings_apply_to_what_follows() {
    let overload = overload(&OverloadSettings::default());
    let mut before = overload.acquire_connection().unwrap();
    assert!(before.count_client(client(1)) && overload.acquire_request().unwrap().is_none());
    overload.apply(&OverloadSettings {
        connections: NonZeroUsize::new(2),
        connections_per_client: NonZeroU32::new(1),
        requests: NonZeroUsize::new(1),
        ..OverloadSettings::default()
    });
    let mut second = overload.acquire_connection().unwrap();
    assert_eq!(overload.acquire_connection().err(), Some(LoadShed::Connections));
    assert!(second.count_client(client(1)), "the connection before is not counted for its client");
    let request = overload.acquire_request().unwrap();
    assert!(request.is_some());
    assert_eq!(overload.acquire_request().err(), Some(LoadShed::Requests));
    overload.apply(&OverloadSettings::default());
    drop((before, second, request));
    assert_eq!((overload.max_connections(), overload.clients.len()), (500, 0));
    assert!(overload.acquire_request().unwrap().is_none());
}
