//! Floods of streams that are reset at once: by the client, or by the server because of invalid frames.

use super::{assert_memory_is_bounded, blames_client, flood, flood_unread, while_others_are_served};
use crate::support::frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, HEADERS, PRIORITY, frame, get_frame, post_frame, request_block,
    reset, window_update,
};
use crate::support::{Origin, Weir, config, get};

/// Maximum number of requests of such a flood that may reach the upstream before the connection is closed.
const MAX_FORWARDED: usize = 2000;

/// Returns the identifier of the stream that a client opens in this round.
fn stream(round: u32) -> u32 {
    2 * (round % 1_000_000_000) + 1
}

#[test]
fn rapid_reset_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: all, key: [], limit: 10/d }]"));
    let reason =
        flood(weir.address(), |round| [get_frame(stream(round), "/"), reset(stream(round), CANCEL)].concat());
    assert!(blames_client(reason), "{reason:?}");
    assert!([200, 429].contains(&get(weir.address(), "/").status), "other clients are served");
    assert!(origin.requests().len() <= 10, "more requests than the limit were forwarded");
}

#[test]
fn resets_that_follow_in_batches_close_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let reason = while_others_are_served(&weir, || {
        flood(weir.address(), |round| {
            let streams: Vec<u32> = (round * 50..(round + 1) * 50).map(stream).collect();
            let opened = streams.iter().flat_map(|stream| get_frame(*stream, "/flood"));
            opened.chain(streams.iter().flat_map(|stream| reset(*stream, CANCEL))).collect()
        })
    });
    assert!(blames_client(reason), "{reason:?}");
    assert_memory_is_bounded(&weir, "batches of resets");
}

/// Frames after a request on `stream` for which the server resets it (CVE-2025-8671).
fn provocations(stream: u32) -> Vec<(&'static str, Vec<u8>)> {
    let with_length = request_block("POST", "/flood", &[("content-length", "1")]);
    vec![
        ("increment of 0", [get_frame(stream, "/flood"), window_update(stream, 0)].concat()),
        (
            "overflow of the window",
            [get_frame(stream, "/flood"), window_update(stream, 0x7fff_ffff)].concat(),
        ),
        ("DATA after the end", [get_frame(stream, "/flood"), frame(DATA, 0, stream, b"x")].concat()),
        ("HEADERS after the end", [get_frame(stream, "/flood"), get_frame(stream, "/flood")].concat()),
        ("short PRIORITY", [get_frame(stream, "/flood"), frame(PRIORITY, 0, stream, &[0; 4])].concat()),
        ("more data than the length", {
            let head = frame(HEADERS, END_HEADERS, stream, &with_length);
            [head, frame(DATA, END_STREAM, stream, b"xyz")].concat()
        }),
        ("trailers without an end", {
            [post_frame(stream, "/flood"), frame(HEADERS, END_HEADERS, stream, &[])].concat()
        }),
    ]
}

#[test]
fn resets_that_the_client_provokes_close_the_connection() {
    let origin = Origin::hello();
    for (index, (name, _)) in provocations(1).into_iter().enumerate() {
        let weir = Weir::start(&config(origin.address(), ""));
        let before = origin.requests().len();
        let reason = while_others_are_served(&weir, || {
            flood(weir.address(), |round| provocations(stream(round)).swap_remove(index).1)
        });
        assert!(blames_client(reason), "{name}: {reason:?}");
        assert_memory_is_bounded(&weir, name);
        let seen = &origin.requests()[before..];
        let forwarded = seen.iter().filter(|seen| seen.head.word(1) == "/flood").count();
        assert!(forwarded <= MAX_FORWARDED, "{name}: {forwarded} requests were forwarded");
    }
}

#[test]
fn unread_resets_use_bounded_memory() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(
        origin.address(),
        "rules: [{ name: no, match: { path: /flood }, action: deny }]",
    ));
    for (index, (name, _)) in provocations(1).into_iter().enumerate() {
        let (connection, outcome) = while_others_are_served(&weir, || {
            flood_unread(weir.address(), &[], 50_000, |round| {
                provocations(stream(round)).swap_remove(index).1
            })
        });
        assert_memory_is_bounded(&weir, &format!("{name}: {outcome:?}"));
        drop(connection);
    }
}
