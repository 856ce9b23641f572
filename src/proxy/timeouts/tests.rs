//! Tests which timeout expires when, tick by tick.

use std::net::IpAddr;
use std::rc::Rc;

use super::*;
use crate::upstream::RequestScarcity;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn clock_and_connection() -> (CoarseClock, Rc<ConnectionTimer>) {
    let clock = CoarseClock::default();
    let connection =
        clock.add_connection(ConnectionTimeouts::new(Duration::from_secs(2), Duration::from_secs(1)));
    (clock, connection)
}

fn pass(clock: &CoarseClock, time: Duration) {
    for _ in 0..ticks(time) {
        clock.tick();
    }
}

#[test]
fn nothing_is_ended_early() {
    let (clock, connection) = clock_and_connection();
    pass(&clock, Duration::from_secs(2));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

#[test]
fn a_head_has_its_time_however_it_drips() {
    let (clock, connection) = clock_and_connection();
    for _ in 0..11 {
        connection.bytes_read();
        clock.tick();
    }
    assert_eq!(connection.expired(), Some(TimeoutKind::Head));
}

#[test]
fn a_head_that_came_with_the_request_before_has_its_time_too() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.response_ended();
    connection.flushed();
    connection.head_started();
    pass(&clock, Duration::from_secs(1));
    assert_eq!(connection.expired(), None);
    connection.head_started();
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Head));
}

#[test]
fn a_body_may_take_long_as_long_as_it_moves() {
    let (clock, connection) = clock_and_connection();
    connection.start_request(Duration::from_millis(500));
    for _ in 0..100 {
        pass(&clock, Duration::from_millis(400));
        connection.bytes_read();
    }
    assert_eq!(connection.expired(), None);
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
}

#[test]
fn only_the_answer_is_waited_for_once_the_request_is_out() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.await_response(Timeout::configured(Duration::from_secs(3)));
    pass(&clock, Duration::from_secs(3));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Response(SetBy::Configuration)));
}

#[test]
fn the_earlier_of_two_timeouts_expires_and_says_who_set_it() {
    let seconds = |count| Duration::from_secs(count);
    for (client, set_by) in [(2, SetBy::Client), (4, SetBy::Configuration), (9, SetBy::Configuration)] {
        let (clock, connection) = clock_and_connection();
        let request = connection.start_request(seconds(60));
        request.await_response(Timeout::by_client(seconds(client)));
        request.await_response(Timeout::configured(seconds(4)));
        pass(&clock, seconds(5));
        assert_eq!(connection.expired(), Some(TimeoutKind::Response(set_by)), "{client}");
    }
}

#[test]
fn an_exchange_lasts_until_it_is_answered_flushed_and_read() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    let upload = UploadTimer::start(&request);
    request.response_ended();
    connection.flushed();
    connection.bytes_read();
    pass(&clock, Duration::from_secs(5));
    assert_eq!(connection.expired(), None, "neither idle nor reading a head");
    drop(upload);
    pass(&clock, Duration::from_secs(2));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

#[test]
fn an_answer_that_the_client_does_not_take_is_a_stall() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_millis(500));
    request.response_ended();
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
    assert!(!request.awaits_response());
}

#[test]
fn nothing_outlives_its_exchange() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    request.await_response(Timeout::configured(Duration::from_secs(2)));
    pass(&clock, Duration::from_millis(2200));
    assert_eq!(connection.expired(), Some(TimeoutKind::Response(SetBy::Configuration)));
    let late = UploadTimer::start(&request);
    request.must_linger();
    connection.start_request(Duration::from_secs(60));
    assert_eq!(connection.expired(), None);
    late.await_response(Timeout::configured(Duration::ZERO));
    drop(late);
    pass(&clock, Duration::from_secs(1));
    assert_eq!(connection.expired(), None, "an earlier upload does not affect this exchange");
    assert!(!connection.start_linger(PEER));
}

#[test]
fn lingering_ends_even_where_the_connection_had_to_go_already() {
    let (clock, connection) = clock_and_connection();
    let request = connection.start_request(Duration::from_secs(60));
    request.response_ended();
    connection.flushed();
    clock.drain();
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
    request.must_linger();
    assert!(connection.start_linger(PEER));
    pass(&clock, Duration::from_millis(1100));
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger));
}

#[test]
fn lingering_goes_on_while_something_comes_and_not_for_ever() {
    let (clock, connection) = clock_and_connection();
    connection.head_started();
    assert!(connection.start_linger(PEER));
    for _ in 0..7 {
        pass(&clock, Duration::from_secs(4));
        connection.discarded();
    }
    assert_eq!(connection.expired(), None);
    pass(&clock, Duration::from_millis(2100));
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger), "lingering ends after 30 s");
}

#[test]
fn lingering_ends_when_nothing_comes() {
    let (clock, connection) = clock_and_connection();
    connection.head_started();
    assert!(connection.start_linger(PEER));
    pass(&clock, Duration::from_secs(5));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Linger));
}

#[test]
fn a_drain_gives_idle_connections_a_moment() {
    let (clock, connection) = clock_and_connection();
    clock.drain();
    pass(&clock, Duration::from_millis(400));
    assert_eq!(connection.expired(), None);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::Idle));
}

#[test]
fn closed_connections_are_forgotten() {
    let (clock, connection) = clock_and_connection();
    assert_eq!(clock.open_count(), 1);
    drop(connection);
    clock.tick();
    assert_eq!(clock.open_count(), 0);
}

/// Returns the scarcity of an upstream whose permits are scarce as soon as one is in use, and that upstream.
fn scarcity() -> (Rc<RequestScarcity>, crate::upstream::Upstream) {
    let upstream = crate::upstream::tests::with_min_client_rate(1000);
    (Rc::clone(upstream.scarcity().expect("a minimum")), upstream)
}

#[test]
fn a_client_that_sends_too_slowly_is_ended_once_requests_are_scarce() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(Rc::clone(&scarcity), true);
    let uploading = UploadTimer::start(&request);
    uploading.data_awaited();
    pass(&clock, Duration::from_secs(60));
    assert_eq!(connection.expired(), None, "no minimum rate while permits are not scarce");
    scarcity.set_scarce(true);
    clock.tick();
    assert_eq!(connection.expired(), Some(TimeoutKind::StreamIdle));
}

#[test]
fn a_client_that_keeps_the_minimum_is_left_alone() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(scarcity, true);
    let uploading = UploadTimer::start(&request);
    for _ in 0..60 {
        uploading.data_awaited();
        pass(&clock, Duration::from_secs(1));
        uploading.received(1000);
    }
    assert_eq!(connection.expired(), None);
}

#[test]
fn a_slow_upstream_is_not_blamed_on_the_client() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    let request = connection.start_request(Duration::from_secs(300));
    request.require_min_rate(scarcity, true);
    // The client has sent the whole request. Then the upstream delays the response and sends it slowly.
    let uploading = UploadTimer::start(&request);
    uploading.data_awaited();
    uploading.received(1);
    pass(&clock, Duration::from_secs(60));
    drop(uploading);
    request.response_started();
    for _ in 0..60 {
        request.data_ready(1);
        connection.bytes_written(1);
        request.data_polled();
        pass(&clock, Duration::from_secs(1));
    }
    assert_eq!(connection.expired(), None);
}

#[test]
fn a_client_that_does_not_read_is_ended_unless_nothing_is_held_for_it() {
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
        pass(&clock, Duration::from_secs(11));
        assert_eq!(connection.expired(), holds.then_some(TimeoutKind::StreamIdle));
    }
}

#[test]
fn a_call_may_be_silent_between_its_messages() {
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
        pass(&clock, Duration::from_secs(60));
        assert_eq!(connection.expired(), None);
    }
}

#[test]
fn an_upload_that_others_of_its_connection_may_hold_up_is_not_too_slow() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set_scarce(true);
    let stream = clock.add_stream(&connection, Duration::from_secs(300));
    stream.require_min_rate(scarcity, true);
    let uploading = UploadTimer::start(&stream);
    uploading.data_awaited();
    let others: Vec<_> =
        (0..STREAMS_IN_WINDOW).map(|_| clock.add_stream(&connection, Duration::from_secs(300))).collect();
    let uploads: Vec<_> = others.iter().map(UploadTimer::start).collect();
    uploads.iter().for_each(|upload| upload.received(1 << 16));
    pass(&clock, Duration::from_secs(60));
    assert_eq!(stream.expired(), None);
    // One of them has made room in the connection's window.
    uploads[0].data_awaited();
    pass(&clock, Duration::from_secs(11));
    assert_eq!(stream.expired(), Some(TimeoutKind::StreamIdle));
}

#[test]
fn an_upload_that_is_whole_does_not_hold_up_the_others_of_its_connection() {
    let (clock, connection) = clock_and_connection();
    connection.multiplex();
    let stream = clock.add_stream(&connection, Duration::from_secs(1));
    let uploading = UploadTimer::start(&stream);
    uploading.received(1);
    assert_eq!(connection.streams().held_uploads(), 1);
    uploading.body_complete();
    assert_eq!(connection.streams().held_uploads(), 0);
    drop(uploading);
    assert_eq!(connection.streams().held_uploads(), 0);
}
