//! HTTP/2 frames: encoded from text, and decoded to the events that a case expects.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use crate::support::frames::{
    Frame, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, encode_string, frame, status,
};

const FRAME_TYPES: [&str; 10] = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
];
/// Payload of a PING after all other frames. Its echo shows that everything was read and that the connection is alive.
const FINAL_PING: [u8; 8] = *b"the last";
/// Maximum time to wait for frames on a connection that stays open.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// Sends the frames in `text` and returns the resulting events: `status STREAM CODE`, `reset STREAM CODE`, `goaway
/// CODE`, and `close` or `open`.
pub(super) fn run_frames(text: &str, address: SocketAddr, expected: &[String]) -> Vec<String> {
    let bytes = encode_frames(text);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    stream.set_write_timeout(Some(MAX_WAIT)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let sending = thread::spawn(move || {
        // The connection may be closed before all bytes are sent.
        let _ = writer.write_all(&bytes).and_then(|()| writer.write_all(&frame(PING, 0, 0, &FINAL_PING)));
    });
    let (mut heard, mut buffer, mut events) = (VecDeque::new(), vec![0; 64 << 10], BTreeSet::new());
    let is_expected = expected.last().is_some_and(|last| last == "open");
    let (mut is_alive, mut is_over) = (false, false);
    let end = loop {
        match stream.read(&mut buffer) {
            Ok(read) if read > 0 => heard.extend(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break "open, silent",
            // A TCP reset ends the connection, as a regular close does.
            _ => break "close",
        }
        while let Some(frame) = Frame::take(&mut heard) {
            is_alive |= frame.kind == PING && frame.payload == FINAL_PING;
            events.extend(describe_frame(&frame));
        }
        // Waits a moment longer for events that are not expected.
        if !is_over && is_alive && is_expected && expected.iter().all(|line| is_met(line, &events)) {
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            is_over = true;
        }
    };
    let _ = stream.shutdown(Shutdown::Both);
    sending.join().unwrap();
    let is_open = end != "close" && is_over;
    events.into_iter().chain([if is_open { "open" } else { end }.to_owned()]).collect()
}

/// Whether one of the alternatives in `line` has occurred. Always true for `open`, which is not an event.
fn is_met(line: &str, events: &BTreeSet<String>) -> bool {
    line == "open" || line.split(" | ").any(|one| one == "nothing" || events.contains(one))
}

/// Whether every event was expected, and every expected event has occurred.
pub(super) fn matches_expectation(expected: &[String], got: &[String]) -> bool {
    let got: BTreeSet<String> = got.iter().cloned().collect();
    let allowed: BTreeSet<&str> = expected.iter().flat_map(|line| line.split(" | ")).collect();
    expected.iter().all(|line| (line != "open" && is_met(line, &got)) || got.contains(line))
        && got.iter().all(|event| allowed.contains(event.as_str()))
}

fn describe_frame(frame: &Frame) -> Option<String> {
    match frame.kind {
        HEADERS => status(&frame.payload).map(|status| format!("status {} {status}", frame.stream)),
        RST_STREAM => Some(format!("reset {} {}", frame.stream, frame.word(0))),
        GOAWAY => Some(format!("goaway {}", frame.word(4))),
        _ => None,
    }
}

fn encode_frames(text: &str) -> Vec<u8> {
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let mut bytes = Vec::new();
    if lines.first() == Some(&"no preface") {
        lines.remove(0);
    } else {
        bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    }
    let mut lines = lines.into_iter();
    while let Some(line) = lines.next() {
        match line.strip_prefix("repeat ") {
            Some(count) => {
                let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "end").collect();
                for round in 0..count.parse::<u32>().unwrap() {
                    bytes.extend(block.iter().flat_map(|line| encode_line(line, round)));
                }
            }
            None => bytes.extend(encode_line(line, 0)),
        }
    }
    bytes
}

/// Encodes one line: a frame, or raw bytes.
fn encode_line(line: &str, round: u32) -> Vec<u8> {
    if let Some(raw) = line.strip_prefix("RAW ") {
        return encode_payload(raw);
    }
    let mut words = line.splitn(4, ' ');
    let mut word = || words.next().unwrap_or_default();
    let (kind, flags, stream) = (word(), word(), word());
    let kind = match FRAME_TYPES.iter().position(|name| *name == kind) {
        Some(position) => u8::try_from(position).unwrap(),
        None => u8::from_str_radix(kind.trim_start_matches("0x"), 16).unwrap(),
    };
    let stream = if stream == "@" { 2 * round + 1 } else { stream.parse().unwrap() };
    frame(kind, u8::from_str_radix(flags, 16).unwrap(), stream, &encode_payload(word()))
}

/// Encodes a payload: hexadecimal bytes, `"text"`, `(name: value)` as a literal field, `get` and `post` for the start
/// of a request. `N*` repeats an item.
fn encode_payload(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (times, item) = match rest.split_once('*') {
            Some((count, item)) if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                (count.parse().unwrap(), item)
            }
            _ => (1, rest),
        };
        let (one, length) = match item.as_bytes()[0] {
            b'"' => {
                let (inside, _) = item[1..].split_once('"').unwrap();
                (super::case::decode_bytes(inside), inside.len() + 2)
            }
            b'(' => {
                let (inside, _) = item[1..].split_once(')').unwrap();
                let (name, value) = inside[1..].split_once(": ").unwrap();
                let name = super::case::decode_bytes(&format!("{}{name}", &inside[..1]));
                (
                    [&[0][..], &encode_string(&name), &encode_string(&super::case::decode_bytes(value))]
                        .concat(),
                    inside.len() + 2,
                )
            }
            _ => {
                let word = item.split(' ').next().unwrap();
                let meant = match word {
                    "get" => [&[0x82, 0x86, 0x84, 1, 6][..], b"a.test"].concat(),
                    "post" => [&[0x83, 0x86, 0x84, 1, 6][..], b"a.test"].concat(),
                    hex => (0..hex.len())
                        .step_by(2)
                        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                        .collect(),
                };
                (meant, word.len())
            }
        };
        bytes.extend(one.repeat(times));
        rest = item[length..].trim_start();
    }
    bytes
}
