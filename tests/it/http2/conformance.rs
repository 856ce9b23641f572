//! HTTP/2 conformance: what RFC 9113 and RFC 7541 demand of a server, frame by frame.
//!
//! A [`Case`] is what a client sends, and the reactions that the RFC allows. Where it allows several, each of them
//! passes. Exchanges of several steps are tests of their own.

mod compression;
mod compression_state;
mod field_blocks;
mod flow_control;
mod frame_rules;
mod framing;
mod requests;
mod settings;
mod streams;
mod upstream;
mod windows;

use std::net::SocketAddr;

use crate::support::frames::{
    ConnectionEnd, Frame, FrameConnection, GOAWAY, HEADERS, NO_ERROR, PROTOCOL_ERROR, RST_STREAM, get_frame,
    response_status,
};
use crate::support::{Origin, Weir, config};

/// Whether a connection error must have the code that the RFC names. PROTOCOL_ERROR passes otherwise: the `h2` crate uses
/// it for most errors of field blocks and of lengths.
const EXACT_CODES: bool = true;
/// Stream of the request that follows each case. Its response shows that the connection is still usable.
const PROBE: u32 = 1001;
/// Path of requests that must not reach the upstream.
const BAD_PATH: &str = "/bad";

/// Reactions that the RFC allows to a case.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// A connection error with one of these codes: GOAWAY and the end of the connection.
    ConnectionError(&'static [u32]),
    /// A stream error of stream 1 with one of these codes, or the same as a connection error, which RFC 9113 section
    /// 5.4.1 always allows.
    StreamError(&'static [u32]),
    /// What a malformed request on stream 1 causes (RFC 9113 section 8.1.1): a stream error of type PROTOCOL_ERROR or a
    /// response with a status code of 4xx.
    Malformed,
    /// A response with 200 on stream 1.
    Served,
    /// [`Self::Served`], or [`Self::StreamError`] with one of these codes.
    ServedOrError(&'static [u32]),
    /// No frame on stream 1.
    Ignored,
}

/// Frames of a client, and the expected reaction.
#[derive(Debug)]
struct Case {
    name: &'static str,
    bytes: Vec<u8>,
    expected: Expected,
}

/// Returns a case whose frames follow the preface.
fn case(name: &'static str, expected: Expected, frames: &[Vec<u8>]) -> Case {
    Case { name, bytes: frames.concat(), expected }
}

impl Case {
    /// Plays the case on a connection of its own. Returns what contradicts the expectation.
    fn play(&self, address: SocketAddr) -> Result<(), String> {
        let mut client = FrameConnection::connect(address);
        client.send(&self.bytes);
        if !matches!(self.expected, Expected::ConnectionError(_)) {
            client.send(get_frame(PROBE, "/probe"));
        }
        let (mut is_probe_over, mut is_case_over) = (false, matches!(self.expected, Expected::Ignored));
        let frames = client.read_until(|frame| {
            is_probe_over |= frame.ends(PROBE);
            is_case_over |= match self.expected {
                Expected::StreamError(_) => frame.is(RST_STREAM, 1),
                _ => frame.ends(1),
            };
            is_probe_over && is_case_over
        });
        let reaction = Reaction { frames, end: client.end() };
        if reaction.is_allowed(self.expected) {
            return Ok(());
        }
        let seen: Vec<String> = reaction.frames.iter().map(describe).collect();
        Err(format!(
            "{}: expected {:?}, got [{}], {:?}",
            self.name,
            self.expected,
            seen.join(", "),
            reaction.end
        ))
    }
}

fn describe(frame: &Frame) -> String {
    let payload = &frame.payload[..frame.payload.len().min(16)];
    format!("type {} flags {:#x} stream {}: {payload:02x?}", frame.kind, frame.flags, frame.stream)
}

/// What the server has sent, and how the connection ended, if it did.
#[derive(Debug)]
struct Reaction {
    frames: Vec<Frame>,
    end: Option<ConnectionEnd>,
}

impl Reaction {
    fn is_allowed(&self, expected: Expected) -> bool {
        match expected {
            Expected::ConnectionError(codes) => self.is_connection_error(codes),
            Expected::StreamError(codes) => {
                self.is_connection_error(codes)
                    || self.is_usable() && self.reset_code().is_some_and(|code| codes.contains(&code))
            }
            Expected::Malformed => {
                let is_rejected = self.reset_code() == Some(PROTOCOL_ERROR)
                    || self.status().is_some_and(|status| status.starts_with('4'));
                self.is_connection_error(&[PROTOCOL_ERROR]) || self.is_usable() && is_rejected
            }
            Expected::Served => self.is_usable() && self.status().as_deref() == Some("200"),
            Expected::ServedOrError(codes) => {
                self.is_allowed(Expected::Served) || self.is_allowed(Expected::StreamError(codes))
            }
            Expected::Ignored => self.is_usable() && self.frames.iter().all(|frame| frame.stream != 1),
        }
    }

    /// Whether the connection has ended with one of these codes. A TCP reset can overtake the GOAWAY.
    fn is_connection_error(&self, codes: &[u32]) -> bool {
        let codes_sent: Vec<u32> =
            self.frames.iter().filter(|frame| frame.is(GOAWAY, 0)).map(|frame| frame.word(4)).collect();
        match self.end {
            Some(ConnectionEnd::Closed) => codes_sent.last().is_some_and(|code| is_one_of(*code, codes)),
            Some(ConnectionEnd::Reset) => {
                codes_sent.iter().all(|code| is_one_of(*code, codes) || *code == NO_ERROR)
            }
            Some(ConnectionEnd::StillOpen) | None => false,
        }
    }

    /// Whether the connection is open and serves further requests.
    fn is_usable(&self) -> bool {
        let has_goaway = self.frames.iter().any(|frame| frame.kind == GOAWAY);
        !has_goaway && response_status(&self.frames, PROBE).as_deref() == Some("200")
    }

    fn reset_code(&self) -> Option<u32> {
        self.frames.iter().find(|frame| frame.is(RST_STREAM, 1)).map(|frame| frame.word(0))
    }

    fn status(&self) -> Option<String> {
        response_status(&self.frames, 1)
    }
}

/// Whether the error code of a connection is one of these, see [`EXACT_CODES`].
fn is_one_of(code: u32, codes: &[u32]) -> bool {
    codes.contains(&code) || !EXACT_CODES && code == PROTOCOL_ERROR
}

/// Plays `cases`. No request to [`BAD_PATH`] may reach the upstream whole.
fn assert_cases(cases: &[Case]) {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let wrong: Vec<String> = cases.iter().filter_map(|case| case.play(weir.address()).err()).collect();
    assert!(wrong.is_empty(), "{} of {} cases differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let requests = origin.requests();
    let forwarded: Vec<_> =
        requests.iter().filter(|seen| seen.complete && seen.head.word(1) == BAD_PATH).collect();
    assert!(forwarded.is_empty(), "the upstream received {forwarded:#?}");
}

/// Returns the frame with the response's header section on `stream`.
fn response_head(frames: &[Frame], stream: u32) -> &Frame {
    let head = frames.iter().find(|frame| frame.is(HEADERS, stream));
    head.unwrap_or_else(|| panic!("no response on stream {stream}: {frames:?}"))
}
