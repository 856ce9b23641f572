//! HTTP/2 floods: frames that a client may send without end. Each is bounded, and other clients are served meanwhile.

mod resets;
mod unread;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::frames::{
    ACK, CONTINUATION, ConnectionEnd, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR,
    FrameConnection, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PADDED, PING, PREFACE, PRIORITY, PROTOCOL_ERROR,
    SETTINGS, STREAM_CLOSED, WINDOW_UPDATE, encode_integer, encode_string, frame, get_frame, post_frame,
    request_block, settings, window_update,
};
use crate::support::{Origin, Weir, config, get};

/// Maximum peak memory of the process, in KiB. It is several times what it uses without a flood.
const MAX_PEAK_KIB: u64 = 200_000;
/// Number of frames of a flood that need not end the connection.
const FRAMES: u32 = 60_000;
/// The same for frames that cause replies: enough that the buffers of the sockets cannot hold the replies.
const REPLIED_FRAMES: u32 = 300_000;
/// Number of rounds after which a flood that must end the connection has failed.
const MAX_ROUNDS: u32 = 200_000;
/// Frames in one write.
const BATCH: u32 = 1000;

/// What a flood has led to.
#[derive(Debug)]
enum Outcome {
    /// The server has closed the connection.
    Closed,
    /// The server does not read any more.
    Held,
    /// The server has read everything.
    Absorbed,
}

/// Sends `frames` repeatedly until the peer closes the connection. Returns the error code of its last GOAWAY.
fn flood(address: SocketAddr, mut frames: impl FnMut(u32) -> Vec<u8>) -> Option<u32> {
    let mut client = FrameConnection::connect(address);
    let mut writer = client.stream().try_clone().unwrap();
    let reading = thread::spawn(move || {
        let goaways = client.read_until(|_| false).into_iter().filter(|frame| frame.kind == GOAWAY);
        let code = goaways.map(|frame| frame.word(4)).next_back();
        (code, client.end())
    });
    let ended = (0..MAX_ROUNDS).any(|round| writer.write_all(&frames(round)).is_err());
    assert!(ended, "the connection stays open");
    let (code, end) = reading.join().unwrap();
    assert_ne!(end, Some(ConnectionEnd::StillOpen));
    code
}

/// Sends `start` and then `count` frames without reading anything. Returns the connection too, which is still open.
fn flood_unread(
    address: SocketAddr,
    start: &[u8],
    count: u32,
    mut frames: impl FnMut(u32) -> Vec<u8>,
) -> (TcpStream, Outcome) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    stream.write_all(&[PREFACE, &settings(&[]), start].concat()).unwrap();
    for batch in 0..count / BATCH {
        let bytes: Vec<u8> = (batch * BATCH..(batch + 1) * BATCH).flat_map(&mut frames).collect();
        match stream.write_all(&bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return (stream, Outcome::Held),
            Err(_) => return (stream, Outcome::Closed),
        }
    }
    (stream, Outcome::Absorbed)
}

/// Runs `flood` on another thread, and requests of another client until it has ended.
fn while_others_are_served<T: Send>(weir: &Weir, flood: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let flooding = scope.spawn(flood);
        loop {
            assert_eq!(get(weir.address(), "/").status, 200, "other clients are served");
            if flooding.is_finished() {
                return flooding.join().unwrap();
            }
        }
    })
}

fn assert_memory_is_bounded(weir: &Weir, after: &str) {
    let peak = weir.peak_memory();
    assert!(peak < MAX_PEAK_KIB, "{peak} KiB after {after}");
}

/// Whether the error code of RFC 9113 section 7 blames the client for excessive load or a protocol violation.
fn blames_client(reason: Option<u32>) -> bool {
    // `None` occurs if the TCP reset that follows overtakes the GOAWAY.
    reason.is_none_or(|code| {
        [PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, ENHANCE_YOUR_CALM].contains(&code)
    })
}

/// Returns a literal field without indexing (RFC 7541 section 6.2.2).
fn literal(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &encode_string(name.as_bytes()), &encode_string(value.as_bytes())].concat()
}

#[test]
fn continuation_flood_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for (name, payload) in [
        ("fields", literal("x", &"v".repeat(1024))),
        ("empty frames", vec![]),
        ("fields without a name", vec![0, 0, 0]),
        ("fields without name and value, indexed", vec![0x40, 0, 0]),
        ("one field in single bytes", vec![b'v']),
    ] {
        let start = match payload.len() {
            1 => {
                [&request_block("GET", "/", &[])[..], &[0, 1, b'x'], &encode_integer(0, 7, 1 << 20)].concat()
            }
            _ => request_block("GET", "/", &[]),
        };
        let reason = while_others_are_served(&weir, || {
            flood(weir.address(), |round| match round {
                0 => frame(HEADERS, END_STREAM, 1, &start),
                _ => frame(CONTINUATION, 0, 1, &payload),
            })
        });
        assert!(blames_client(reason), "{name}: {reason:?}");
        assert_memory_is_bounded(&weir, name);
    }
}

#[test]
fn header_sections_that_expand_are_bounded() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let entry = [&[0x40][..], &encode_string(b"bomb"), &encode_string(&[b'b'; 4000])].concat();
    // 60 MB of fields in 16 KB: each byte refers to the entry.
    let bomb = [&request_block("GET", "/bomb", &[])[..], &entry, &[0xbe; 12_000]].concat();
    let connections: Vec<_> = (0..20)
        .map(|_| {
            let mut client = FrameConnection::connect(weir.address());
            for stream in (1..41).step_by(2) {
                client.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb));
            }
            client
        })
        .collect();
    assert_eq!(get(weir.address(), "/").status, 200);
    drop(connections);
    assert_memory_is_bounded(&weir, "references to a large entry");
    assert!(origin.requests().iter().all(|seen| seen.head.word(1) != "/bomb"));
}

#[test]
fn floods_on_the_connection_use_bounded_memory() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let many_settings = settings(&[(3, 100); 50]);
    for (name, count, flood_of) in [
        ("PING", REPLIED_FRAMES, frame(PING, 0, 0, &[0; 8])),
        ("PING with ACK", FRAMES, frame(PING, ACK, 0, &[0; 8])),
        ("SETTINGS", REPLIED_FRAMES, settings(&[(3, 100)])),
        ("large SETTINGS", FRAMES, many_settings),
        ("SETTINGS with ACK", FRAMES, frame(SETTINGS, ACK, 0, &[])),
        ("WINDOW_UPDATE", FRAMES, window_update(0, 1)),
        ("GOAWAY", FRAMES, frame(GOAWAY, 0, 0, &[0; 8])),
        ("an unknown type", FRAMES, frame(0xff, 0, 0, b"x")),
        ("DATA on an idle stream", FRAMES, frame(DATA, 0, 1, &[])),
    ] {
        let (connection, outcome) =
            while_others_are_served(&weir, || flood_unread(weir.address(), &[], count, |_| flood_of.clone()));
        assert_eq!(get(weir.address(), "/").status, 200, "{name}: {outcome:?}");
        assert_memory_is_bounded(&weir, name);
        drop(connection);
    }
}

#[test]
fn floods_on_streams_use_bounded_memory() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let priority = |round: u32| frame(PRIORITY, 0, 2 * round + 1, &[0, 0, 0, 0, 16]);
    for (name, flood_of) in [
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("DATA of padding", frame(DATA, PADDED, 1, &[0])),
        ("WINDOW_UPDATE", window_update(1, 1)),
        ("PRIORITY", priority(0)),
        ("an unknown type", frame(0xff, 0, 1, b"x")),
        (
            "changing windows",
            [settings(&[(INITIAL_WINDOW_SIZE, 0)]), settings(&[(INITIAL_WINDOW_SIZE, 1 << 20)])].concat(),
        ),
    ] {
        let streams: Vec<u8> = (0..100).flat_map(|number| post_frame(2 * number + 1, "/")).collect();
        let (connection, outcome) = while_others_are_served(&weir, || {
            flood_unread(weir.address(), &streams, FRAMES, |_| flood_of.clone())
        });
        assert_eq!(get(weir.address(), "/").status, 200, "{name}: {outcome:?}");
        assert_memory_is_bounded(&weir, name);
        drop(connection);
    }
    // Each of another stream, for none of which the server needs a state.
    let (connection, _) =
        while_others_are_served(&weir, || flood_unread(weir.address(), &[], FRAMES, priority));
    assert_memory_is_bounded(&weir, "PRIORITY of idle streams");
    drop(connection);
}

#[test]
fn empty_data_flood_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let reason = while_others_are_served(&weir, || {
        flood(weir.address(), |round| match round {
            0 => post_frame(1, "/"),
            _ => frame(DATA, 0, 1, &[]).repeat(100),
        })
    });
    assert!(blames_client(reason), "{reason:?}");
    assert_memory_is_bounded(&weir, "empty DATA");
}

#[test]
fn window_updates_of_single_bytes_do_not_delay_others() {
    let origin = Origin::responding_with(format!(
        "HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n{}",
        "b".repeat(1_000_000)
    ));
    let weir = Weir::start(&config(origin.address(), ""));
    // Each increment releases a DATA frame of one byte.
    let start = [settings(&[(INITIAL_WINDOW_SIZE, 0)]), get_frame(1, "/")].concat();
    let (connection, outcome) = while_others_are_served(&weir, || {
        flood_unread(weir.address(), &start, 100_000, |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]))
    });
    assert_memory_is_bounded(&weir, &format!("increments of 1: {outcome:?}"));
    drop(connection);
}
