//! What is due when, tick by tick.

use super::*;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn clock_and_connection() -> (Rc<SlowClock>, Rc<Activity>) {
    let clock = Rc::new(SlowClock::default());
    let patience = Patience::new(Duration::from_secs(2), Duration::from_secs(1));
    let activity = clock.watch(patience);
    (clock, activity)
}

fn pass(clock: &SlowClock, time: Duration) {
    for _ in 0..ticks(time) {
        clock.tick();
    }
}

#[test]
fn nothing_is_ended_early() {
    let (clock, connection) = clock_and_connection();
    pass(&clock, Duration::from_secs(2));
    assert_eq!(connection.overdue(), None);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Idle));
}

#[test]
fn a_head_has_its_time_however_it_drips() {
    let (clock, connection) = clock_and_connection();
    for _ in 0..11 {
        connection.read();
        clock.tick();
    }
    assert_eq!(connection.overdue(), Some(Overdue::Head));
}

#[test]
fn a_head_that_came_with_the_request_before_has_its_time_too() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_millis(500));
    connection.end_exchange();
    connection.flushed();
    connection.begun();
    pass(&clock, Duration::from_secs(1));
    assert_eq!(connection.overdue(), None);
    connection.begun();
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Head));
}

#[test]
fn a_body_may_take_long_as_long_as_it_moves() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_millis(500));
    for _ in 0..100 {
        pass(&clock, Duration::from_millis(400));
        connection.read();
    }
    assert_eq!(connection.overdue(), None);
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.overdue(), Some(Overdue::Stalled));
}

#[test]
fn only_the_answer_is_waited_for_once_the_request_is_out() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_millis(500));
    connection.await_answer(Timeout::configured(Duration::from_secs(3)));
    pass(&clock, Duration::from_secs(3));
    assert_eq!(connection.overdue(), None);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Answer(SetBy::Configuration)));
}

#[test]
fn the_earlier_of_two_timeouts_expires_and_says_who_set_it() {
    let seconds = |count| Duration::from_secs(count);
    for (client, set_by) in [(2, SetBy::Client), (4, SetBy::Configuration), (9, SetBy::Configuration)] {
        let (clock, connection) = clock_and_connection();
        connection.begin_exchange(seconds(60));
        connection.await_answer(Timeout::by_client(seconds(client)));
        connection.await_answer(Timeout::configured(seconds(4)));
        pass(&clock, seconds(5));
        assert_eq!(connection.overdue(), Some(Overdue::Answer(set_by)), "{client}");
    }
}

#[test]
fn an_exchange_lasts_until_it_is_answered_flushed_and_read() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_secs(60));
    let upload = connection.begin_upload();
    connection.end_exchange();
    connection.flushed();
    connection.read();
    pass(&clock, Duration::from_secs(5));
    assert_eq!(connection.overdue(), None, "neither idle nor reading a head");
    drop(upload);
    pass(&clock, Duration::from_secs(2));
    assert_eq!(connection.overdue(), None);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Idle));
}

#[test]
fn an_answer_that_the_client_does_not_take_is_a_stall() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_millis(500));
    connection.end_exchange();
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.overdue(), Some(Overdue::Stalled));
    assert!(!connection.is_unanswered());
}

#[test]
fn nothing_outlives_its_exchange() {
    let (clock, connection) = clock_and_connection();
    connection.begin_exchange(Duration::from_secs(60));
    connection.await_answer(Timeout::configured(Duration::from_secs(2)));
    pass(&clock, Duration::from_millis(2200));
    assert_eq!(connection.overdue(), Some(Overdue::Answer(SetBy::Configuration)));
    let late = connection.begin_upload();
    connection.must_linger();
    connection.begin_exchange(Duration::from_secs(60));
    assert_eq!(connection.overdue(), None);
    late.await_answer(Timeout::configured(Duration::ZERO));
    drop(late);
    pass(&clock, Duration::from_secs(1));
    assert_eq!(connection.overdue(), None, "the upload before has no say in this exchange");
    assert!(!connection.begin_linger(PEER));
}

#[test]
fn lingering_ends_even_where_the_connection_had_to_go_already() {
    let (clock, connection) = clock_and_connection();
    clock.drain();
    pass(&clock, Duration::from_millis(600));
    assert_eq!(connection.overdue(), Some(Overdue::Idle));
    connection.must_linger();
    assert!(connection.begin_linger(PEER));
    pass(&clock, Duration::from_millis(1100));
    assert_eq!(connection.overdue(), Some(Overdue::Linger));
}

#[test]
fn lingering_goes_on_while_something_comes_and_not_for_ever() {
    let (clock, connection) = clock_and_connection();
    connection.must_linger();
    assert!(connection.begin_linger(PEER));
    for _ in 0..7 {
        pass(&clock, Duration::from_secs(4));
        connection.discarded();
    }
    assert_eq!(connection.overdue(), None);
    pass(&clock, Duration::from_millis(2100));
    assert_eq!(connection.overdue(), Some(Overdue::Linger), "half a minute is enough");
}

#[test]
fn lingering_ends_when_nothing_comes() {
    let (clock, connection) = clock_and_connection();
    connection.must_linger();
    assert!(connection.begin_linger(PEER));
    pass(&clock, Duration::from_secs(5));
    assert_eq!(connection.overdue(), None);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Linger));
}

#[test]
fn a_drain_gives_idle_connections_a_moment() {
    let (clock, connection) = clock_and_connection();
    clock.drain();
    pass(&clock, Duration::from_millis(400));
    assert_eq!(connection.overdue(), None);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Idle));
}

#[test]
fn closed_connections_are_forgotten() {
    let (clock, connection) = clock_and_connection();
    assert_eq!(clock.open(), 1);
    drop(connection);
    clock.tick();
    assert_eq!(clock.open(), 0);
}

/// An upstream whose requests are scarce once one is in flight, and the request that makes them so.
fn scarcity() -> (Rc<Scarcity>, crate::upstream::Upstream) {
    let upstream = crate::upstream::tests::with_min_client_rate(1000);
    (Rc::clone(upstream.scarcity().expect("a minimum")), upstream)
}

#[test]
fn a_client_that_sends_too_slowly_is_ended_once_requests_are_scarce() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    connection.begin_exchange(Duration::from_secs(300));
    connection.keep_pace(Rc::clone(&scarcity), true);
    let uploading = connection.begin_upload();
    uploading.waits();
    pass(&clock, Duration::from_secs(60));
    assert_eq!(connection.overdue(), None, "there are enough requests");
    scarcity.set(true);
    clock.tick();
    assert_eq!(connection.overdue(), Some(Overdue::Stalled));
}

#[test]
fn a_client_that_keeps_the_minimum_is_left_alone() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set(true);
    connection.begin_exchange(Duration::from_secs(300));
    connection.keep_pace(scarcity, true);
    let uploading = connection.begin_upload();
    for _ in 0..60 {
        uploading.waits();
        pass(&clock, Duration::from_secs(1));
        uploading.moved(1000);
    }
    assert_eq!(connection.overdue(), None);
}

#[test]
fn a_slow_upstream_is_not_blamed_on_the_client() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set(true);
    connection.begin_exchange(Duration::from_secs(300));
    connection.keep_pace(scarcity, true);
    // It has sent all that was asked for, then the upstream thinks, then its answer comes in drips.
    let uploading = connection.begin_upload();
    uploading.waits();
    uploading.moved(1);
    pass(&clock, Duration::from_secs(60));
    drop(uploading);
    connection.answered();
    for _ in 0..60 {
        connection.hands_over(1);
        connection.took(1);
        connection.is_asked();
        pass(&clock, Duration::from_secs(1));
    }
    assert_eq!(connection.overdue(), None);
}

#[test]
fn a_client_that_does_not_read_is_ended_unless_nothing_is_held_for_it() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set(true);
    for holds in [false, true] {
        connection.begin_exchange(Duration::from_secs(300));
        connection.keep_pace(Rc::clone(&scarcity), true);
        connection.answered();
        connection.hands_over(100_000);
        if !holds {
            connection.has_own_pace();
        }
        pass(&clock, Duration::from_secs(11));
        assert_eq!(connection.overdue(), holds.then_some(Overdue::Stalled));
    }
}

#[test]
fn a_call_may_be_silent_between_its_messages() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set(true);
    for (counts_upload, is_answered) in [(false, false), (true, true)] {
        connection.begin_exchange(Duration::from_secs(300));
        connection.keep_pace(Rc::clone(&scarcity), counts_upload);
        let uploading = connection.begin_upload();
        uploading.waits();
        if is_answered {
            connection.answered();
        }
        pass(&clock, Duration::from_secs(60));
        assert_eq!(connection.overdue(), None);
    }
}

#[test]
fn an_upload_that_others_of_its_connection_may_hold_up_is_not_too_slow() {
    let (clock, connection) = clock_and_connection();
    let (scarcity, _) = scarcity();
    scarcity.set(true);
    let stream = connection.open_stream();
    stream.begin_exchange(Duration::from_secs(300));
    stream.keep_pace(scarcity, true);
    let uploading = stream.begin_upload();
    uploading.waits();
    let others: Vec<_> = (0..STREAMS_IN_WINDOW).map(|_| connection.open_stream()).collect();
    let uploads: Vec<_> = others.iter().map(Activity::begin_upload).collect();
    uploads.iter().for_each(|upload| upload.moved(1 << 16));
    pass(&clock, Duration::from_secs(60));
    assert_eq!(stream.overdue(), None);
    // One of them has made room in the connection's window.
    uploads[0].waits();
    pass(&clock, Duration::from_secs(11));
    assert_eq!(stream.overdue(), Some(Overdue::Stalled));
}

#[test]
fn an_upload_that_is_whole_does_not_hold_up_the_others_of_its_connection() {
    let (_clock, connection) = clock_and_connection();
    connection.multiplex();
    let stream = connection.open_stream();
    stream.begin_exchange(Duration::from_secs(1));
    let uploading = stream.begin_upload();
    uploading.moved(1);
    assert_eq!(connection.held_uploads.get(), 1);
    uploading.is_whole();
    assert_eq!(connection.held_uploads.get(), 0);
    drop(uploading);
    assert_eq!(connection.held_uploads.get(), 0);
}
