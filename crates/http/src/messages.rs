//! Boundaries of messages in a stream of bytes: frames of WebSocket (RFC 6455 section 5.2), and the length-prefixed messages of
//! gRPC, gRPC-Web and Connect. What the messages contain is not read.

/// How messages are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Frames, of which a message has one or more. Control frames are no messages.
    WebSocket,
    /// A byte of flags and four bytes of length before each message, as clients of gRPC, gRPC-Web and Connect send them.
    LengthPrefixed,
    /// The same of a response. gRPC-Web and Connect send its end in this way, too, with a flag; that is no message.
    LengthPrefixedResponse,
}

/// Finds the first byte of each message. Its memory does not depend on the stream.
#[derive(Debug)]
pub struct MessageScanner {
    framing: Framing,
    position: FramePosition,
}

/// Bytes of one message, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamSegment {
    /// Number of bytes, at least 1 unless there were none.
    pub length: usize,
    /// Whether a message begins with the first of them.
    pub starts_message: bool,
}

/// Where in a frame the next byte is.
#[derive(Clone, Copy, Debug)]
enum FramePosition {
    /// At its first byte.
    Start,
    /// After `read` bytes of its header.
    Header { bytes: [u8; MAX_HEADER], read: u8 },
    /// This number of bytes before its end.
    Payload { left: u64 },
}

/// Size of the longest header: two bytes, eight of length and four of the mask.
const MAX_HEADER: usize = 14;

/// Flag of the trailers in a body of gRPC-Web.
const WEB_TRAILERS: u8 = 0x80;
/// Flag of the end of a stream of Connect.
const CONNECT_END: u8 = 0x02;

impl MessageScanner {
    pub const fn new(framing: Framing) -> Self {
        Self { framing, position: FramePosition::Start }
    }

    /// Consumes bytes up to the first byte of the next message, or all of them.
    pub fn next_segment(&mut self, bytes: &[u8]) -> StreamSegment {
        let starts_message = bytes.first().is_some_and(|first| self.is_message_start(*first));
        let mut length = 0;
        while let Some(next) = bytes.get(length) {
            if length > 0 && self.is_message_start(*next) {
                break;
            }
            length += self.advance(&bytes[length..]);
        }
        StreamSegment { length, starts_message }
    }

    /// Whether the next byte is the first one of a message.
    fn is_message_start(&self, next: u8) -> bool {
        matches!(self.position, FramePosition::Start) && self.framing.starts_message(next)
    }

    /// Consumes some of `rest`, which is not empty, and returns their number.
    fn advance(&mut self, rest: &[u8]) -> usize {
        let (mut bytes, mut read) = match self.position {
            FramePosition::Start => ([0; MAX_HEADER], 0),
            FramePosition::Header { bytes, read } => (bytes, read),
            FramePosition::Payload { left } => {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                self.position = FramePosition::in_payload(left - taken as u64);
                return taken;
            }
        };
        bytes[usize::from(read)] = rest[0];
        read += 1;
        self.position = match self.framing.payload_length(&bytes[..usize::from(read)]) {
            Some(left) => FramePosition::in_payload(left),
            None => FramePosition::Header { bytes, read },
        };
        1
    }
}

impl FramePosition {
    const fn in_payload(left: u64) -> Self {
        if left == 0 { Self::Start } else { Self::Payload { left } }
    }
}

impl Framing {
    /// Whether the frame with this first byte begins a message.
    const fn starts_message(self, first: u8) -> bool {
        match self {
            // Opcode 0 continues a message; from 8 on, they are for control frames.
            Self::WebSocket => matches!(first & 0x0f, 1..=7),
            Self::LengthPrefixed => true,
            Self::LengthPrefixedResponse => first & (WEB_TRAILERS | CONNECT_END) == 0,
        }
    }

    /// Returns the number of bytes after a header; `None` if the header is longer than this.
    fn payload_length(self, header: &[u8]) -> Option<u64> {
        match (self, header) {
            (Self::LengthPrefixed | Self::LengthPrefixedResponse, &[_, a, b, c, d]) => {
                Some(u32::from_be_bytes([a, b, c, d]).into())
            }
            (Self::LengthPrefixed | Self::LengthPrefixedResponse, _) | (Self::WebSocket, [] | [_]) => None,
            (Self::WebSocket, [_, second, rest @ ..]) => {
                let (length, is_masked) = (second & 0x7f, second & 0x80 != 0);
                let extended = match length {
                    126 => 2,
                    127 => 8,
                    _ => 0,
                };
                let mask = if is_masked { 4 } else { 0 };
                if rest.len() < extended + mask {
                    return None;
                }
                let number = rest[..extended].iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
                Some(if extended == 0 { length.into() } else { number })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns where messages start in a stream that arrives in these parts.
    fn starts(framing: Framing, parts: &[&[u8]]) -> Vec<usize> {
        let (mut scanner, mut at, mut found) = (MessageScanner::new(framing), 0, Vec::new());
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let segment = scanner.next_segment(rest);
                assert!(segment.length > 0);
                found.extend(segment.starts_message.then_some(at));
                at += segment.length;
                rest = &rest[segment.length..];
            }
        }
        found
    }

    fn websocket_frame(opcode: u8, length: usize, is_masked: bool) -> Vec<u8> {
        let mask_bit = if is_masked { 0x80 } else { 0 };
        let mut frame = vec![opcode];
        match length {
            0..=125 => frame.push(mask_bit | length as u8),
            126..=65_535 => {
                frame.push(mask_bit | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask_bit | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([0x55; 4].iter().filter(|_| is_masked));
        // Contents that would be the header of a message, if they were taken for one.
        frame.extend(std::iter::repeat_n(0x81, length));
        frame
    }

    #[test]
    fn message_of_several_frames_is_one() {
        let parts = [(0x01, 3), (0x89, 2), (0x00, 4), (0x80, 0), (0x82, 1)];
        let frames: Vec<Vec<u8>> =
            parts.iter().map(|(opcode, length)| websocket_frame(*opcode, *length, true)).collect();
        let stream = frames.concat();
        assert_eq!(starts(Framing::WebSocket, &[&stream]), [0, stream.len() - frames[4].len()]);
    }

    #[test]
    fn end_of_a_response_is_no_message() {
        for end in [0x80, 0x02] {
            let stream = [&[0, 0, 0, 0, 2, 9, 9], &[1, 0, 0, 0, 0][..], &[end, 0, 0, 0, 1, 7]].concat();
            assert_eq!(starts(Framing::LengthPrefixedResponse, &[&stream]), [0, 7]);
            assert_eq!(
                starts(Framing::LengthPrefixed, &[&stream]),
                [0, 7, 12],
                "clients do not evade a limit"
            );
        }
    }

    #[test]
    fn largest_length_does_not_overflow() {
        let header = [0x82, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(starts(Framing::WebSocket, &[&header, &[0x81; 100]]), [0]);
    }

    fn streams() -> impl Strategy<Value = (Framing, Vec<u8>, Vec<usize>)> {
        let size = prop_oneof![0_usize..4, 120_usize..130, 65_530_usize..65_540];
        let frame = (prop::sample::select(vec![0x81_u8, 0x01, 0x02, 0x00, 0x80, 0x88, 0x8a]), size);
        let frames = prop::collection::vec((frame, any::<bool>()), 0..12);
        let framings = [Framing::WebSocket, Framing::LengthPrefixed, Framing::LengthPrefixedResponse];
        (prop::sample::select(framings.to_vec()), frames).prop_map(|(framing, frames)| {
            let (mut stream, mut starts) = (Vec::new(), Vec::new());
            for ((opcode, length), is_masked) in frames {
                let starts_message = match framing {
                    Framing::WebSocket => opcode & 0x0f == 1 || opcode & 0x0f == 2,
                    Framing::LengthPrefixed => true,
                    Framing::LengthPrefixedResponse => opcode & 0x82 == 0,
                };
                starts.extend(starts_message.then_some(stream.len()));
                match framing {
                    Framing::WebSocket => stream.extend(websocket_frame(opcode, length, is_masked)),
                    Framing::LengthPrefixed | Framing::LengthPrefixedResponse => {
                        stream.push(opcode);
                        stream.extend((length as u32).to_be_bytes());
                        stream.resize(stream.len() + length, 0);
                    }
                }
            }
            (framing, stream, starts)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn messages_are_found_however_the_stream_is_cut(
            (framing, stream, expected) in streams(),
            mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut places: Vec<usize> = cuts.drain(..).map(|cut| cut.index(stream.len() + 1)).collect();
            places.extend([0, stream.len()]);
            places.sort_unstable();
            let parts: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(starts(framing, &parts), expected);
        }
    }
}
