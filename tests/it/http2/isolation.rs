//! Messages that one client does not read, or does not send correctly, and what others notice of them.

use bytes::Bytes;
use http::{Request, Response};

use crate::support::frame_origin::FrameOrigin;
use crate::support::frames::{
    END_HEADERS, END_STREAM, FrameConnection, HEADERS, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS,
    PROTOCOL_ERROR, RST_STREAM, block, frame, get_frame,
};
use crate::support::h2::H2Client;
use crate::support::h2_origin::H2Origin;
use crate::support::{LISTENER, Origin, Weir, config, config_with, get};

fn start_with_http2_upstream(address: impl std::fmt::Display, settings: &str) -> Weir {
    let upstream = format!("{{ address: \"{address}\", http2: true, {settings} }}");
    Weir::start(&config_with(LISTENER, &upstream, ""))
}

/// An HTTP/2 upstream whose responses have `size` bytes.
fn large_origin(size: usize) -> H2Origin {
    let body = Bytes::from(vec![b'x'; size]);
    H2Origin::start(None, move |_, mut respond| {
        let body = body.clone();
        async move { respond.send_response(Response::new(()), false)?.send_data(body, true) }
    })
}

#[test]
fn responses_that_a_client_does_not_read_hold_no_others() {
    const SIZE: usize = 4 << 20;
    let origin = large_origin(SIZE);
    let weir = start_with_http2_upstream(origin.address(), "");
    let mut unread = FrameConnection::connect_with(weir.address(), &[(INITIAL_WINDOW_SIZE, 0)]);
    for stream in 0..80 {
        unread.send(get_frame(2 * stream + 1, "/"));
    }
    let mut heads = 0;
    unread.read_until(|frame| {
        heads += u32::from(frame.kind == HEADERS);
        heads == 80
    });
    // One connection serves all: the unread responses were once more than its window.
    for _ in 0..3 {
        assert_eq!(get(weir.address(), "/").body.length, SIZE as u64);
    }
    assert_eq!(origin.connections(), 1);
    let memory = weir.peak_memory();
    assert!(memory < 200_000, "{memory} KiB");
}

#[test]
fn empty_piece_of_a_cookie_adds_nothing() {
    let origin = H2Origin::start(None, |request, mut respond| async move {
        let cookies: Vec<_> =
            request.headers().get_all("cookie").iter().map(|value| value.as_bytes()).collect();
        let body = Bytes::from(cookies.join(&b'|'));
        respond.send_response(Response::new(()), false)?.send_data(body, true)
    });
    let weir = start_with_http2_upstream(origin.address(), "");
    let mut client = H2Client::connect(weir.address());
    for (pieces, expected) in
        [(&["a=1", ""][..], "a=1"), (&["", "a=1", "", "b=2"], "a=1; b=2"), (&["", ""], "")]
    {
        let mut request = Request::get("http://a.test/");
        for piece in pieces {
            request = request.header("cookie", *piece);
        }
        assert_eq!(client.fetch(request).body, expected.as_bytes(), "{pieces:?}");
    }
}

#[test]
fn upstream_that_allows_no_streams_fails_fast() {
    let origin = FrameOrigin::start(&[(MAX_CONCURRENT_STREAMS, 0)], |_, _| Vec::new());
    let weir = start_with_http2_upstream(origin.address(), "timeout: 500ms");
    // The first request may be sent before the upstream's settings have arrived.
    let first = get(weir.address(), "/").status;
    assert!([503, 504].contains(&first), "{first}");
    let statuses: Vec<_> = (0..6).map(|_| get(weir.address(), "/").status).collect();
    assert_eq!(statuses, [503; 6]);
}

#[test]
fn malformed_streams_are_counted_by_their_reason_and_logged() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let mut client = FrameConnection::connect(weir.address());
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a.test")];
    let cases = [
        ("authority", vec![get[0], get[1], get[2], (":authority", "outbound|80||a b")]),
        ("field_name", [&get[..], &[("X-Upper", "1")]].concat()),
        ("field_name", [&get[..], &[("x\"y", "1")]].concat()),
        ("field_value", [&get[..], &[("x", "a\0b")]].concat()),
        ("pseudo_headers", get[..2].to_vec()),
        ("connection_field", [&get[..], &[("connection", "close")]].concat()),
        ("content_length", [&get[..], &[("content-length", "5")]].concat()),
        ("path", vec![get[0], get[1], get[3], (":path", "relative")]),
    ];
    for (index, (reason, fields)) in cases.iter().enumerate() {
        let stream = 2 * u32::try_from(index).unwrap() + 1;
        client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields.iter().copied())));
        let frames = client.until_stream_ends(stream);
        let last = frames.last().unwrap();
        assert_eq!((last.kind, last.word(0)), (RST_STREAM, PROTOCOL_ERROR), "{reason}");
    }
    for (reason, _) in &cases {
        let expected = cases.iter().filter(|(other, _)| other == reason).count();
        let labels = [("peer", "client"), ("reason", *reason)];
        assert_eq!(weir.metric("weir_http2_malformed_streams_total", &labels), expected as f64, "{reason}");
    }
    assert_eq!(client.fetch(101, "/"), "200", "the connection continues");
}
