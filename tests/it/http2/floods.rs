//! HTTP/2 floods: frames that a client may send without end. Each is bounded, and other clients are served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::support::{Origin, Weir, config, get};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Returns a frame (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// Returns the field block of `GET http://a/`, by HPACK's static table and with the authority as a literal.
fn get_block() -> Vec<u8> {
    [&[0x82, 0x84, 0x86, 0x01, 1][..], b"a"].concat()
}

/// Sends `frames` repeatedly until the peer closes the connection. Returns the error code of its last GOAWAY.
fn flood(address: SocketAddr, mut frames: impl FnMut(u32) -> Vec<u8>) -> Option<u32> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    let mut reader = stream.try_clone().unwrap();
    let heard = std::thread::spawn(move || {
        let mut heard = Vec::new();
        // A TCP reset ends the connection, as a regular close does.
        let _ = reader.read_to_end(&mut heard);
        heard
    });
    let ended = (0..2_000_000_u32).any(|round| stream.write_all(&frames(round)).is_err());
    assert!(ended, "the connection stays open");
    let heard = heard.join().unwrap();
    let mut rest = &heard[..];
    let mut reason = None;
    while let Some((head, behind)) = rest.split_at_checked(9) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(length) else { break };
        if head[3] == GOAWAY {
            reason = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        rest = behind;
    }
    reason
}

/// Whether the error code of RFC 9113 section 7 blames the client for excessive load or a protocol violation.
fn blames_client(reason: Option<u32>) -> bool {
    // `None` occurs if the TCP reset that follows overtakes the GOAWAY.
    matches!(reason, None | Some(1 | 3 | 5 | 11))
}

#[test]
fn rapid_reset_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), "rules: [{ name: all, key: [], limit: 10/d }]"));
    let reason = flood(weir.address(), |round| {
        let stream = 2 * (round % 1_000_000_000) + 1;
        let open = frame(HEADERS, 5, stream, &get_block());
        [open, frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    assert!(blames_client(reason), "{reason:?}");
    assert!([200, 429].contains(&get(weir.address(), "/").status), "other clients are served");
    assert!(origin.requests().len() <= 10, "more requests than the limit were forwarded");
}

#[test]
fn continuation_flood_closes_the_connection() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let reason = flood(weir.address(), |round| match round {
        0 => frame(HEADERS, 1, 1, &get_block()),
        // A literal field without indexing, of 1 KiB.
        _ => frame(CONTINUATION, 0, 1, &[&[0, 1, b'x', 0x7f, 0x81, 7][..], &[b'v'; 1024]].concat()),
    });
    assert!(blames_client(reason), "{reason:?}");
    let before = weir.metric("process_resident_memory_bytes", &[]);
    assert!(before < 200e6, "{before} bytes");
    assert_eq!(get(weir.address(), "/").status, 200);
}

#[test]
fn control_frame_floods_use_bounded_memory() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    for flood_of in [
        frame(PING, 0, 0, &[0; 8]),
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(DATA, 0, 1, &[]),
    ] {
        let mut stream = TcpStream::connect(weir.address()).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
        // The responses are never read; a proxy that queued all of them would grow without bound.
        let many = flood_of.repeat(1000);
        for _ in 0..300 {
            if stream.write_all(&many).is_err() {
                break;
            }
        }
        assert_eq!(get(weir.address(), "/").status, 200, "other clients are served");
        let resident = weir.metric("process_resident_memory_bytes", &[]);
        assert!(resident < 200e6, "{resident} bytes after frames of type {}", flood_of[3]);
    }
}
