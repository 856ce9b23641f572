//! Reader of gzip files, which may consist of several members, and may be padded with zeros.

use std::io::{self, BufRead as _, BufReader, Read};

use flate2::bufread::GzDecoder;

/// Reads the contents of all members, one after the other. Zeros behind a member are skipped, as `gzip -d` does: tapes and
/// block devices pad files.
pub(super) struct GzipReader<R: Read> {
    /// `None` after the last member.
    member: Option<GzDecoder<BufReader<R>>>,
}

impl<R: Read> GzipReader<R> {
    /// Reads the members of `source`.
    pub(super) fn new(source: R) -> Self {
        Self { member: Some(GzDecoder::new(BufReader::new(source))) }
    }
}

/// Skips zeros; returns whether anything follows.
fn skip_padding<R: Read>(source: &mut BufReader<R>) -> io::Result<bool> {
    loop {
        let ahead = source.fill_buf()?;
        let length = ahead.len();
        if length == 0 {
            return Ok(false);
        }
        let padding = ahead.iter().position(|byte| *byte != 0);
        source.consume(padding.unwrap_or(length));
        if padding.is_some() {
            return Ok(true);
        }
    }
}

impl<R: Read> Read for GzipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let length = member.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                return Ok(length);
            }
            let Some(member) = self.member.take() else { break };
            let mut source = member.into_inner();
            if skip_padding(&mut source)? {
                self.member = Some(GzDecoder::new(source));
            }
        }
        Ok(0)
    }
}
