//! Reader of Zstandard files, which may consist of several frames.

use std::io::{self, BufRead as _, BufReader, Read};

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Reads the contents of all frames, one after the other.
pub(super) struct ZstdReader<R: Read> {
    /// `None` after the last frame.
    frame: Option<StreamingDecoder<BufReader<R>, FrameDecoder>>,
}

impl<R: Read> ZstdReader<R> {
    /// Reads the header of the first frame.
    pub(super) fn new(source: R) -> io::Result<Self> {
        Ok(Self { frame: Some(next_frame(BufReader::new(source))?) })
    }
}

fn next_frame<R: Read>(source: BufReader<R>) -> io::Result<StreamingDecoder<BufReader<R>, FrameDecoder>> {
    StreamingDecoder::new(source).map_err(io::Error::other)
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(frame) = &mut self.frame {
            let length = frame.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                return Ok(length);
            }
            let Some(frame) = self.frame.take() else { break };
            let mut source = frame.into_inner();
            if !source.fill_buf()?.is_empty() {
                self.frame = Some(next_frame(source)?);
            }
        }
        Ok(0)
    }
}
