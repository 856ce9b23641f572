//! Reader that translates the lines of a log.

use std::io::{self, Read};

use super::LogReader;
use crate::format::translate::Translator;

/// Bytes that are read at a time.
const READ_SIZE: usize = 256 << 10;
/// Maximum length of a line that is translated. Longer ones are passed on, and are too long to be read.
const MAX_TRANSLATED_LENGTH: usize = 1 << 20;

/// Reads a log whose lines are translated.
pub(super) struct TranslatedReader {
    source: LogReader,
    translator: Translator,
    /// Beginning of a line whose end has not been read.
    pending: Vec<u8>,
    /// Translated bytes, of which those up to `taken` have been passed on.
    translated: Vec<u8>,
    taken: usize,
}

impl TranslatedReader {
    pub(super) fn new(source: LogReader) -> Self {
        Self {
            source,
            translator: Translator::default(),
            pending: Vec::new(),
            translated: Vec::new(),
            taken: 0,
        }
    }

    /// Reads more; returns whether there was any.
    fn fill(&mut self) -> io::Result<bool> {
        let start = self.pending.len();
        self.pending.resize(start + READ_SIZE, 0);
        let read = self.source.read(&mut self.pending[start..]);
        self.pending.truncate(start + read.as_ref().map_or(0, |length| *length));
        let is_end = read? == 0;
        (self.taken, self.translated) = (0, std::mem::take(&mut self.translated));
        self.translated.clear();
        let lines = match self.pending.iter().rposition(|byte| *byte == b'\n') {
            _ if is_end => self.pending.len(),
            Some(end) => end + 1,
            None => 0,
        };
        translate_lines(&self.pending[..lines], &mut self.translator, &mut self.translated);
        self.pending.drain(..lines);
        if self.pending.len() > MAX_TRANSLATED_LENGTH {
            self.translated.append(&mut self.pending);
        }
        Ok(!is_end || !self.translated.is_empty())
    }
}

impl Read for TranslatedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.translated.len() {
            if !self.fill()? {
                return Ok(0);
            }
        }
        let length = buffer.len().min(self.translated.len() - self.taken);
        buffer[..length].copy_from_slice(&self.translated[self.taken..self.taken + length]);
        self.taken += length;
        Ok(length)
    }
}

/// Translates whole lines. Each becomes one, so that their numbers stay.
pub(super) fn translate_lines(lines: &[u8], translator: &mut Translator, out: &mut Vec<u8>) {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        translator.translate(text.strip_suffix(b"\r").unwrap_or(text), out);
        if text.len() < line.len() {
            out.push(b'\n');
        }
    }
}
