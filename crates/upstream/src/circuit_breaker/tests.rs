use std::sync::atomic::AtomicUsize;

use super::*;
use crate::settings::ClientShare;

const LIMITS: CircuitBreakerLimits = CircuitBreakerLimits {
    connections: 9,
    pending: 3,
    requests: 3,
    retries: 1,
    requests_per_client: ClientShare::All,
    min_client_rate: None,
};

fn client(number: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, number])
}

#[test]
fn max_requests_holds_across_threads() {
    let breaker = CircuitBreaker::new(LIMITS, false, false);
    let (inside, max_seen) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    if let Ok(request) = breaker.start_request(client(1), true) {
                        max_seen.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        breaker.end_request(request);
                    }
                }
            });
        }
    });
    assert!(max_seen.into_inner() <= 3);
    assert_eq!(breaker.used(Resource::Request), 0);
}

#[test]
fn client_share_holds_across_threads_and_clients() {
    let share = ClientShare::Fixed(2.try_into().unwrap());
    let limits =
        CircuitBreakerLimits { connections: 100, requests: 100, requests_per_client: share, ..LIMITS };
    let breaker = CircuitBreaker::new(limits, true, false);
    let inside: [AtomicUsize; 2] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (breaker, inside) = (&breaker, &inside);
            scope.spawn(move || {
                // Six threads of one client compete for two requests. Two threads of another client always fit.
                let number = u8::from(thread >= 6);
                for _ in 0..5000 {
                    match breaker.start_request(client(number), true) {
                        Ok(request) => {
                            let there = inside[usize::from(number)].fetch_add(1, Ordering::SeqCst) + 1;
                            assert!(there <= 2, "{there} requests at once");
                            inside[usize::from(number)].fetch_sub(1, Ordering::SeqCst);
                            breaker.end_request(request);
                        }
                        Err(full) => assert_eq!((full, number), (LimitReached::ClientShare, 0)),
                    }
                }
            });
        }
    });
    assert_eq!(breaker.used(Resource::Request), 0);
    assert_eq!(breaker.shares.as_ref().unwrap().add(client(0)).1, 0, "all requests released");
}

#[test]
fn automatic_client_share_leaves_requests_for_others() {
    let limits = CircuitBreakerLimits {
        connections: 1024,
        requests: 1024,
        requests_per_client: ClientShare::Auto,
        ..LIMITS
    };
    let breaker = CircuitBreaker::new(limits, false, false);
    let requests: Vec<_> = std::iter::from_fn(|| breaker.start_request(client(1), false).ok()).collect();
    assert!((800..824).contains(&requests.len()), "{}", requests.len());
    assert_eq!(breaker.start_request(client(1), false).err(), Some(LimitReached::ClientShare));
    let others: Vec<_> = std::iter::from_fn(|| breaker.start_request(client(2), false).ok()).collect();
    assert!(others.len() > 100, "{}", others.len());
    requests.into_iter().for_each(|request| breaker.end_request(request));
    assert!(breaker.start_request(client(1), false).is_ok());
}

#[test]
fn max_retries_is_the_higher_of_count_and_retry_budget() {
    let breaker = CircuitBreaker::new(LIMITS, true, false);
    let first = breaker.acquire_retry(0);
    assert!(first.is_some() && breaker.acquire_retry(1).is_none());
    assert!(breaker.acquire_retry(2).is_some());
}

#[test]
fn requests_are_counted_only_where_connections_do_not_bound_them() {
    assert!(CircuitBreaker::new(LIMITS, false, false).counts_requests());
    assert!(
        !CircuitBreaker::new(CircuitBreakerLimits { requests: 9, ..LIMITS }, false, false).counts_requests()
    );
    assert!(
        CircuitBreaker::new(CircuitBreakerLimits { requests: 9, ..LIMITS }, true, false).counts_requests()
    );
}
