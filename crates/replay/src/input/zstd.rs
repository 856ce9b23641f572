//! Reader of Zstandard files, which may consist of several frames, some of them without content (RFC 8878, section 3.1).

use std::io::{self, BufReader, Cursor, Read};

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder, StreamingDecoder};

/// Length of the number at the beginning of a frame, in bytes.
const MAGIC_LENGTH: usize = 4;
/// A last block without content, and a checksum.
const EMPTY_LAST_BLOCK: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];

/// Whether a file begins with a frame, with content or without.
pub(super) fn is_frame(magic: &[u8]) -> bool {
    magic == [0x28, 0xb5, 0x2f, 0xfd] || is_skippable(magic)
}

/// Whether this is the number of a frame without content.
const fn is_skippable(magic: &[u8]) -> bool {
    matches!(magic, [0x50..=0x5f, 0x2a, 0x4d, 0x18])
}

/// Reads the contents of all frames, one after the other.
pub(super) struct ZstdReader<R: Read> {
    state: ZstdState<R>,
}

enum ZstdState<R: Read> {
    /// Before a frame.
    Between(FrameSource<R>),
    Inside(Box<StreamingDecoder<FrameSource<R>, FrameDecoder>>),
    /// After an error, with what was decoded before.
    Broken(Box<FrameDecoder>, io::Error),
    Ended,
}

/// The rest of the file, of which the beginning of a frame may have been read.
struct FrameSource<R> {
    ahead: Cursor<Vec<u8>>,
    rest: BufReader<R>,
    /// Whether more was asked for than there is.
    is_exhausted: bool,
}

impl<R: Read> Read for FrameSource<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut length = self.ahead.read(buffer)?;
        if length == 0 {
            length = self.rest.read(buffer)?;
            self.is_exhausted = length == 0 && !buffer.is_empty();
        }
        Ok(length)
    }
}

impl<R: Read> FrameSource<R> {
    /// Skips frames without content; returns whether another frame follows.
    fn find_frame(&mut self) -> io::Result<bool> {
        loop {
            let mut magic = Vec::with_capacity(MAGIC_LENGTH);
            self.rest.by_ref().take(MAGIC_LENGTH as u64).read_to_end(&mut magic)?;
            if !is_skippable(&magic) {
                let is_frame = !magic.is_empty();
                self.ahead = Cursor::new(magic);
                return Ok(is_frame);
            }
            let mut length = [0; 4];
            self.rest.read_exact(&mut length)?;
            let length = u64::from(u32::from_le_bytes(length));
            if io::copy(&mut self.rest.by_ref().take(length), &mut io::sink())? < length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl<R: Read> ZstdReader<R> {
    /// Reads the frames of `source`.
    pub(super) fn new(source: R) -> Self {
        let source =
            FrameSource { ahead: Cursor::default(), rest: BufReader::new(source), is_exhausted: false };
        Self { state: ZstdState::Between(source) }
    }

    /// Takes a step from the present state; returns the number of bytes read, and `None` if more steps are needed.
    fn step(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match std::mem::replace(&mut self.state, ZstdState::Ended) {
            ZstdState::Between(mut source) => {
                if source.find_frame()? {
                    let frame = StreamingDecoder::new(source).map_err(io::Error::other)?;
                    self.state = ZstdState::Inside(Box::new(frame));
                }
                Ok(None)
            }
            ZstdState::Inside(mut frame) => match frame.read(buffer) {
                Ok(0) => {
                    self.state = ZstdState::Between(frame.into_inner());
                    Ok(None)
                }
                Ok(length) => {
                    self.state = ZstdState::Inside(frame);
                    Ok(Some(length))
                }
                Err(error) => {
                    let (source, mut decoder) = frame.into_parts();
                    let error = match source.is_exhausted {
                        true => io::ErrorKind::UnexpectedEof.into(),
                        false => error,
                    };
                    // The decoder keeps the contents of its window until the frame ends.
                    let _ = decoder.decode_blocks(&EMPTY_LAST_BLOCK[..], BlockDecodingStrategy::All);
                    self.state = ZstdState::Broken(Box::new(decoder), error);
                    Ok(None)
                }
            },
            ZstdState::Broken(mut decoder, error) => match decoder.read(buffer)? {
                0 => Err(error),
                length => {
                    self.state = ZstdState::Broken(decoder, error);
                    Ok(Some(length))
                }
            },
            ZstdState::Ended => Ok(Some(0)),
        }
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if let Some(length) = self.step(buffer)? {
                return Ok(length);
            }
        }
    }
}
