//! Tests which timeout expires when, tick by tick.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

use super::*;
use weir_net::listener::lifetime::ListenerLifetime;
use weir_upstream::RequestScarcity;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn clock_and_connection() -> (CoarseClock, Rc<ConnectionTimer>) {
    let clock = CoarseClock::default();
    let connection =
        clock.add_connection(ConnectionTimeouts::new(Duration::from_secs(2), Duration::from_secs(1)), None);
    (clock, connection)
}

fn advance(clock: &CoarseClock, time: Duration) {
    for _ in 0..ticks(time) {
        clock.tick();
    }
}

#[test]
fn idle_timeout_does_not_expire_early() {
    let (clock, connection) = clock_and_connection();
    advance(&clock, Duration::from_secs(2));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

/// Counts how often it is woken.
#[derive(Default)]
struct CountingWaker(AtomicU32);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn connection_becomes_quiet_a_second_after_a_request_and_is_woken_once() {
    let (clock, connection) = clock_and_connection();
    let woken = Arc::new(CountingWaker::default());
    connection.register_waker(&Arc::clone(&woken).into());
    for _ in 0..2 {
        woken.0.store(0, Ordering::Relaxed);
        let request = connection.start_request(Duration::from_secs(60));
        advance(&clock, Duration::from_secs(3));
        assert!(!connection.is_quiet(), "during a request");
        request.response_ended();
        connection.flushed();
        advance(&clock, Duration::from_millis(900));
        assert!(!connection.is_quiet(), "before a second has passed");
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        clock.tick();
        assert!(connection.is_quiet());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        advance(&clock, Duration::from_millis(900));
        assert!(connection.is_quiet());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "once");
        connection.bytes_read();
        assert!(!connection.is_quiet(), "the next request has begun");
    }
}

#[test]
fn header_timeout_is_not_extended_by_slow_bytes() {
    let (clock, connection) = clock_and_connection();
    for _ in 0..11 {
        connection.bytes_read();
        clock.tick();
    }
    assert_eq!(connection.expired(), Some(TimeoutKind::Head));
}

#[test]
fn header_timeout_applies_to_a_pipelined_head() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.response_ended();
    connection.flushed();
    connection.head_started();
    advance(&clock, Duration::from_secs(1));
    assert_eq!(connection.expired(), None);
    connection.head_started();
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Head));
}

#[test]
fn stream_idle_timeout_is_reset_by_body_bytes() {
    let (clock, connection) = clock_and_connection();
    connection.start_request(Duration::from_millis(500));
    for _ in 0..100 {
        advance(&clock, Duration::from_millis(400));
        connection.bytes_read();
    }
    assert_eq!(connection.expired(), None);
    advance(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
}

#[test]
fn only_the_response_timeout_applies_once_the_request_is_sent() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.await_response(Timeout::configured(Duration::from_secs(3)));
    advance(&clock, Duration::from_secs(3));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Response(SetBy::Configuration)));
}

#[test]
fn earlier_of_two_response_timeouts_expires_and_names_its_origin() {
    let seconds = |count| Duration::from_secs(count);
    for (client, set_by) in [(2, SetBy::Client), (4, SetBy::Configuration), (9, SetBy::Configuration)] {
        let (clock, connection) = clock_and_connection();
        let request = connection.start_request(seconds(60));
        request.await_response(Timeout::by_client(seconds(client)));
        request.await_response(Timeout::configured(seconds(4)));
        advance(&clock, seconds(5));
        assert_eq!(connection.expired(), Some(TimeoutKind::Response(set_by)), "{client}");
    }
}

#[test]
fn request_ends_once_its_response_is_flushed_and_its_body_is_read() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    let upload = UploadTimer::start(&request);
    request.response_ended();
    connection.flushed();
    connection.bytes_read();
    advance(&clock, Duration::from_secs(5));
    assert_eq!(connection.expired(), None, "neither idle nor reading a head");
    drop(upload);
    advance(&clock, Duration::from_secs(2));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

#[test]
fn unread_response_expires_the_stream_idle_timeout() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.response_ended();
    advance(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
    assert!(!request.awaits_response());
}

#[test]
fn timers_of_a_finished_request_do_not_affect_the_next() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    request.await_response(Timeout::configured(Duration::from_secs(2)));
    advance(&clock, Duration::from_millis(2200));
    assert_eq!(connection.expired(), Some(TimeoutKind::Response(SetBy::Configuration)));
    let late = UploadTimer::start(&request);
    request.must_linger();
    connection.start_request(Duration::from_secs(60));
    assert_eq!(connection.expired(), None);
    late.await_response(Timeout::configured(Duration::ZERO));
    drop(late);
    advance(&clock, Duration::from_secs(1));
    assert_eq!(connection.expired(), None, "an earlier upload does not affect this exchange");
    assert!(!connection.start_linger(PEER));
}

#[test]
fn linger_starts_and_times_out_after_the_idle_timeout_expired() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    request.response_ended();
    connection.flushed();
    clock.drain();
    advance(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
    request.must_linger();
    assert!(connection.start_linger(PEER));
    advance(&clock, Duration::from_millis(1100));
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger));
}

#[test]
fn linger_is_extended_by_bytes_up_to_its_maximum() {
    let (clock, connection) = clock_and_connection();
    connection.head_started();
    assert!(connection.start_linger(PEER));
    for _ in 0..7 {
        advance(&clock, Duration::from_secs(4));
        connection.discarded();
    }
    assert_eq!(connection.expired(), None);
    advance(&clock, Duration::from_millis(2100));
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger), "lingering ends after 30 s");
}

#[test]
fn linger_times_out_without_bytes() {
    let (clock, connection) = clock_and_connection();
    connection.head_started();
    assert!(connection.start_linger(PEER));
    advance(&clock, Duration::from_secs(5));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger));
}

#[test]
fn drain_closes_idle_connections_after_a_grace_period() {
    let (clock, connection) = clock_and_connection();
    clock.drain();
    advance(&clock, Duration::from_millis(400));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

#[test]
fn drain_of_a_listener_closes_its_idle_connections_and_no_others() {
    let (clock, other) = clock_and_connection();
    let listener = Arc::new(ListenerLifetime::default());
    let timeouts = ConnectionTimeouts::new(Duration::from_secs(60), Duration::from_secs(60));
    let [idle, busy] = [(); 2].map(|()| clock.add_connection(timeouts, Some(Arc::clone(&listener))));
    busy.start_request(Duration::from_secs(60));
    clock.tick();
    assert!(!idle.is_draining());
    listener.drain();
    advance(&clock, Duration::from_millis(600));
    assert_eq!((idle.expired(), busy.expired(), other.expired()), (Some(TimeoutKind::Idle), None, None));
    assert!(busy.is_draining() && !other.is_draining());
}

#[test]
fn closed_connections_are_not_counted_as_open() {
    let (clock, connection) = clock_and_connection();
    assert_eq!(clock.open_count(), 1);
    drop(connection);
    clock.tick();
    assert_eq!(clock.open_count(), 0);
}

/// Returns the scarcity of an upstream whose permits are scarce as soon as one is in use, and that upstream.
fn scarcity() -> (Rc<RequestScarcity>, weir_upstream::Upstream) {
    let upstream = weir_upstream::testing::with_min_client_rate(1000);
    (Rc::clone(upstream.scarcity().expect("a minimum")), upstream)
}

#[test]
fn slow_upload_is_aborted_once_requests_are_scarce() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(Rc::clone(&scarcity), true);
    let uploading = UploadTimer::start(&request);
    uploading.data_awaited();
    advance(&clock, Duration::from_secs(60));
    assert_eq!(connection.expired(), None, "no minimum rate while permits are not scarce");
    scarcity.set_scarce(true);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
}

#[test]
fn upload_at_the_minimum_rate_is_not_aborted() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(scarcity, true);
    let uploading = UploadTimer::start(&request);
    for _ in 0..60 {
        uploading.data_awaited();
        advance(&clock, Duration::from_secs(1));
        uploading.received(1000);
    }
    assert_eq!(connection.expired(), None);
}

#[test]
fn slow_upstream_does_not_count_against_the_minimum_client_rate() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(scarcity, true);
    // The client has sent the whole request. Then the upstream delays the response and sends it slowly.
    let uploading = UploadTimer::start(&request);
    uploading.data_awaited();
    uploading.received(1);
    advance(&clock, Duration::from_secs(60));
    drop(uploading);
    request.response_started();
    for _ in 0..60 {
        request.data_ready(1);
        connection.bytes_written(1);
        request.data_polled();
        advance(&clock, Duration::from_secs(1));
    }
    assert_eq!(connection.expired(), None);
}

#[test]
fn slow_reader_is_aborted_unless_the_minimum_rate_is_waived() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    for holds in [false, true] {
        let request = connection.start_request(Duration::from_secs(300));
        request.require_min_rate(Rc::clone(&scarcity), true);
        request.response_started();
        request.data_ready(100_000);
        if !holds {
            request.waive_min_rate();
        }
        advance(&clock, Duration::from_secs(11));
        assert_eq!(connection.expired(), holds.then_some(TimeoutKind::StreamIdle));
    }
}

#[test]
fn grpc_stream_may_pause_between_messages_under_a_minimum_rate() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    for (counts_upload, is_answered) in [(false, false), (true, true)] {
        let request = connection.start_request(Duration::from_secs(300));
        request.require_min_rate(Rc::clone(&scarcity), counts_upload);
        let uploading = UploadTimer::start(&request);
        uploading.data_awaited();
        if is_answered {
            request.response_started();
        }
        advance(&clock, Duration::from_secs(60));
        assert_eq!(connection.expired(), None);
    }
}
