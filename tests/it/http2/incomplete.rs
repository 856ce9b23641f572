//! Header sections and other frames that a client begins and does not complete, within `header_timeout`.

use std::time::Duration;

use crate::support::frames::{
    ACK, CONTINUATION, ConnectionEnd, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FrameConnection,
    GOAWAY, HEADERS, PING, PREFACE, SETTINGS, frame, get_frame, post_frame, request_block, response_status,
    settings,
};
use crate::support::wait::{self, pause};
use crate::support::{Origin, Weir, config_with};

/// Error code of RFC 9113 section 7.
const SETTINGS_TIMEOUT: u32 = 4;

fn start(origin: &Origin, header_timeout: &str) -> Weir {
    let listener = format!("{{ address: 127.0.0.1:0, header_timeout: {header_timeout}, idle_timeout: 1h }}");
    Weir::start(&config_with(&listener, &format!("{{ address: \"{}\" }}", origin.address()), ""))
}

#[test]
fn what_is_not_completed_in_time_closes_the_connection() {
    let origin = Origin::hello();
    let weir = start(&origin, "300ms");
    let open = [PREFACE, &settings(&[]), &frame(SETTINGS, ACK, 0, &[]), &get_frame(1, "/")].concat();
    let block = request_block("GET", "/", &[]);
    let half = |frame: Vec<u8>| frame[..frame.len() / 2].to_vec();
    let cases = [
        ("only the preface", PREFACE.to_vec(), SETTINGS_TIMEOUT),
        ("half of the settings", [PREFACE, &half(settings(&[(3, 1), (4, 1)]))].concat(), ENHANCE_YOUR_CALM),
        ("one byte of a frame", [&open[..], &[0]].concat(), ENHANCE_YOUR_CALM),
        ("the header of a frame", [&open[..], &get_frame(3, "/")[..9]].concat(), ENHANCE_YOUR_CALM),
        ("half of HEADERS", [open.clone(), half(get_frame(3, "/"))].concat(), ENHANCE_YOUR_CALM),
        ("half of PING", [open.clone(), half(frame(PING, 0, 0, &[0; 8]))].concat(), ENHANCE_YOUR_CALM),
        (
            "half of an unknown frame",
            [open.clone(), half(frame(99, 0, 0, &[0; 8]))].concat(),
            ENHANCE_YOUR_CALM,
        ),
        ("no END_HEADERS", [open.clone(), frame(HEADERS, END_STREAM, 3, &block)].concat(), ENHANCE_YOUR_CALM),
        (
            "half of DATA of a stream that has ended",
            [open.clone(), half(frame(DATA, 0, 1, &[0; 100]))].concat(),
            ENHANCE_YOUR_CALM,
        ),
    ];
    let mut connections: Vec<_> = cases
        .iter()
        .map(|(_, bytes, _)| {
            let mut client = FrameConnection::connect_bare(weir.address());
            client.send(bytes);
            client
        })
        .collect();
    for ((name, _, code), client) in cases.iter().zip(&mut connections) {
        let frames = client.read_until(|_| false);
        assert!(
            matches!(client.end(), Some(ConnectionEnd::Closed | ConnectionEnd::Reset)),
            "{name}: {frames:?}"
        );
        let codes: Vec<_> =
            frames.iter().filter(|frame| frame.kind == GOAWAY).map(|frame| frame.word(4)).collect();
        assert_eq!(codes, [*code], "{name}");
    }
    // A client may learn of the end before it is counted.
    wait::until_true("all to be counted", || {
        weir.metric("weir_requests_malformed_total", &[]) == cases.len() as f64
    });
}

#[test]
fn frames_of_a_header_section_do_not_extend_its_timeout() {
    let origin = Origin::hello();
    let weir = start(&origin, "300ms");
    let mut client = FrameConnection::connect(weir.address());
    client.send(frame(HEADERS, END_STREAM, 1, &request_block("GET", "/", &[])));
    let mut writer = client.stream().try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        (0..60).all(|_| {
            pause(Duration::from_millis(50));
            std::io::Write::write_all(&mut writer, &frame(CONTINUATION, 0, 1, b"\x00\x01a\x00")).is_ok()
        })
    });
    client.read_until(|frame| frame.kind == GOAWAY);
    assert!(!sending.join().unwrap(), "the connection stays open");
}

#[test]
fn data_of_a_stream_and_complete_frames_are_not_timed() {
    let origin = Origin::hello();
    let weir = start(&origin, "200ms");
    let mut client = FrameConnection::connect(weir.address());
    client.send(post_frame(1, "/"));
    let data = frame(DATA, END_STREAM, 1, &[b'x'; 100]);
    client.send(&data[..50]);
    pause(Duration::from_millis(600));
    client.send(&data[50..]);
    assert_eq!(response_status(&client.until_stream_ends(1), 1).as_deref(), Some("200"));
    pause(Duration::from_millis(600));
    client.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, &request_block("GET", "/", &[])));
    assert_eq!(response_status(&client.until_stream_ends(3), 3).as_deref(), Some("200"));
    assert_eq!(weir.metric("weir_requests_malformed_total", &[]), 0.0);
}
