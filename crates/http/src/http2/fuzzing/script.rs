//! What the input means: bytes that are cut into reads, or frames that are built from it.

use super::super::frame::{FrameHeader, FrameKind, MAX_FRAME_SIZE, flags, put_frame};
use super::super::settings::MAX_WINDOW;

/// Maximum bytes that a script lets the connection receive.
const MAX_RECEIVED: usize = 4 << 20;
/// Sizes at which the handling of DATA changes, in bytes.
const SIZES: [usize; 16] = [
    0,
    1,
    2,
    9,
    100,
    255,
    1000,
    2048,
    2049,
    4096,
    8192,
    8193,
    10_000,
    16_000,
    MAX_FRAME_SIZE - 1,
    MAX_FRAME_SIZE,
];
/// Numbers in settings and window updates.
const NUMBERS: [u32; 16] = [
    0,
    1,
    2,
    3,
    10,
    100,
    4096,
    4097,
    0x4000,
    0x4001,
    65_535,
    100_000,
    0xff_ffff,
    1 << 30,
    MAX_WINDOW,
    u32::MAX,
];
/// Representations of fields (RFC 7541 section 6): pseudo-headers, lengths, the dynamic table, and invalid ones.
const FIELDS: [&[u8]; 32] = [
    b"\x82\x86\x84\x41\x01a",
    b"\x83\x86\x84\x41\x01a",
    b"\x02\x04HEAD\x86\x84\x41\x01a",
    b"\x02\x07CONNECT\x41\x01a",
    b"\x02\x07CONNECT\x00\x09:protocol\x09websocket\x86\x84\x41\x01a",
    b"\x88",
    b"\x89",
    b"\x8b",
    b"\x08\x03100",
    b"\x08\x03101",
    b"\x08\x03103",
    b"\x0f\x0d\x010",
    b"\x0f\x0d\x011",
    b"\x0f\x0d\x03100",
    b"\x0f\x0d\x01x",
    b"\x40\x01a\x01b",
    b"\x40\x01b\x0acccccccccc",
    b"\xbe",
    b"\xbf",
    b"\xc0",
    b"\x20",
    b"\x3f\xe1\x1f",
    b"\x3f\xe2\x1f",
    b"\x00\x02te\x08trailers",
    b"\x00\x0aconnection\x01a",
    b"\x00\x01A\x01b",
    b"\x0f\x11\x82\x1c\x64",
    b"\x00\x05:path\x01/",
    b"\x80",
    b"\x40\x0a",
    b"\xff\xff\xff\xff\xff\xff",
    b"\x10\x01c\x00",
];

/// A step of a session.
#[derive(Debug)]
pub(super) enum Step {
    /// The connection can read these bytes.
    Receive(Vec<u8>),
    /// The connection can write as many bytes; `None` without a limit.
    Writable(Option<usize>),
    /// The tasks of streams do what this number determines.
    Act(u8),
}

/// Returns the steps that `data` means. The first bit selects frames or bytes.
pub(super) fn steps(data: &[u8]) -> Vec<Step> {
    match data.split_first() {
        None => Vec::new(),
        Some((first, rest)) if first & 1 == 1 => {
            Frames { data: rest, steps: Vec::new(), held: Vec::new() }.steps()
        }
        Some((plan, rest)) => cut(*plan, rest),
    }
}

/// Cuts bytes into reads. The first byte of each determines its size.
fn cut(plan: u8, mut rest: &[u8]) -> Vec<Step> {
    let mut steps = vec![Step::Act(plan)];
    while let Some(first) = rest.first() {
        let size = usize::from(first ^ plan) * (1 + usize::from(plan >> 5)) + 1;
        let (read, after) = rest.split_at(size.min(rest.len()));
        steps.push(Step::Receive(read.to_vec()));
        steps.push(Step::Act(first.rotate_left(3) ^ plan));
        rest = after;
    }
    steps
}

/// Builds frames.
struct Frames<'a> {
    data: &'a [u8],
    steps: Vec<Step>,
    /// Frames that are received with the next one.
    held: Vec<u8>,
}

impl Frames<'_> {
    fn steps(mut self) -> Vec<Step> {
        let mut received = 0;
        while !self.data.is_empty() && received < MAX_RECEIVED {
            let operation = self.next();
            match operation & 0x1f {
                kind @ 0..=10 => {
                    received += self.frame(kind, operation);
                }
                11 => {
                    let budget = self.next();
                    self.steps.push(Step::Writable((budget < 255).then_some(usize::from(budget) * 50)));
                }
                _ => {
                    let plan = self.next();
                    self.steps.push(Step::Act(plan));
                }
            }
        }
        let held = std::mem::take(&mut self.held);
        self.steps.push(Step::Receive(held));
        self.steps
    }

    /// Returns the next byte of the input, 0 after its end.
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        *first
    }

    fn number(&mut self) -> u32 {
        let chosen = self.next();
        if chosen & 0x80 == 0 { NUMBERS[usize::from(chosen % 16)] } else { u32::from(chosen) * 257 }
    }

    /// Adds a frame, and returns its size. The upper bits of `operation` make it too short, cut it, and hold it back.
    fn frame(&mut self, kind: u8, operation: u8) -> usize {
        let (flags, stream) = (self.next(), self.next());
        let stream = if stream == u8::MAX { MAX_WINDOW } else { u32::from(stream % 32) };
        let mut payload = self.payload(kind, flags, stream);
        if operation & 0x80 != 0 {
            payload.pop();
        }
        payload.truncate(MAX_FRAME_SIZE + 1);
        let header = FrameHeader { length: payload.len(), kind: FrameKind::Unknown, flags, stream };
        let mut bytes = header.encode();
        bytes[3] = kind;
        self.held.extend_from_slice(&bytes);
        self.held.extend_from_slice(&payload);
        if operation & 0x20 == 0 {
            let mut held = std::mem::take(&mut self.held);
            if operation & 0x40 != 0 {
                let rest = held.split_off(held.len() / 2);
                self.steps.push(Step::Receive(held));
                held = rest;
            }
            self.steps.push(Step::Receive(held));
        }
        bytes.len() + payload.len()
    }

    fn payload(&mut self, kind: u8, flags: u8, stream: u32) -> Vec<u8> {
        match kind {
            0 => self.padded(flags, |script, payload| {
                let size = SIZES[usize::from(script.next() % 16)];
                payload.resize((payload.len() + size).min(MAX_FRAME_SIZE), 0);
            }),
            1 => self.padded(flags, |script, payload| {
                if flags & flags::PRIORITY != 0 {
                    payload.extend_from_slice(&u32::from(script.next()).to_be_bytes());
                    payload.push(0);
                }
                script.fields(payload);
            }),
            2 => [u32::from(self.next()).to_be_bytes().as_slice(), &[0]].concat(),
            3 => u32::from(self.next() % 16).to_be_bytes().to_vec(),
            4 if flags & flags::ACK != 0 => Vec::new(),
            4 => self.settings(),
            5 => stream.to_be_bytes().to_vec(),
            6 => if self.next() & 1 == 0 { *b"shutdown" } else { [7; 8] }.to_vec(),
            7 => [self.number().to_be_bytes(), u32::from(self.next() % 16).to_be_bytes()].concat(),
            8 => self.number().to_be_bytes().to_vec(),
            _ => {
                let mut payload = Vec::new();
                self.fields(&mut payload);
                payload
            }
        }
    }

    fn padded(&mut self, flags: u8, fill: impl FnOnce(&mut Self, &mut Vec<u8>)) -> Vec<u8> {
        let mut payload = Vec::new();
        let padding = if flags & flags::PADDED != 0 { Some(self.next()) } else { None };
        payload.extend(padding);
        fill(self, &mut payload);
        payload.resize(payload.len() + usize::from(padding.unwrap_or(0) % 128), 0);
        payload
    }

    fn fields(&mut self, payload: &mut Vec<u8>) {
        for _ in 0..self.next() % 8 {
            let chosen = self.next();
            if chosen == u8::MAX {
                // A large field: a few references to it exceed every maximum.
                payload.extend_from_slice(b"\x40\x01z\x7f\xa1\x1e");
                payload.resize(payload.len() + 4000, b'z');
            } else {
                payload.extend_from_slice(FIELDS[usize::from(chosen % 32)]);
            }
        }
    }

    fn settings(&mut self) -> Vec<u8> {
        let mut payload = Vec::new();
        for _ in 0..self.next() % 4 {
            payload.extend_from_slice(&u16::from(self.next() % 10).to_be_bytes());
            let value = self.number();
            payload.extend_from_slice(&value.to_be_bytes());
        }
        payload
    }
}

/// Returns the SETTINGS frame with which every session begins.
pub(super) fn first_settings() -> Vec<u8> {
    let mut out = Vec::new();
    put_frame(&mut out, FrameKind::Settings, 0, 0, &[0, 3, 0, 0, 0, 8]);
    out
}
