//! Logs as they lie: lines in the wrapper of a container runtime, a log shipper or a cloud, and formats of programs other than
//! those whose formats are read directly.
//!
//! Such a line becomes one in a format that is read directly, most of them JSON with known names. This pass is slower than
//! reading and is made only if it finds more requests at the beginning of the log.

mod alb;
mod haproxy;
mod record;
mod w3c;
mod wrapper;

use std::borrow::Cow;

use self::record::RecordWriter;
use self::w3c::W3cParser;
use self::wrapper::Opened;

/// Maximum number of wrappers around a line.
const MAX_WRAPPERS: usize = 5;
/// Maximum bytes of the parts of a line that a container runtime has divided.
const MAX_PARTIAL_LENGTH: usize = 64 << 10;

/// Translates the lines of one log, in order.
#[derive(Debug, Default)]
pub(crate) struct Translator {
    w3c: W3cParser,
    /// Parts of lines on standard output and standard error whose end has not come.
    partial: [Vec<u8>; 2],
    /// Whether such a line is too long.
    is_too_long: [bool; 2],
}

impl Translator {
    /// Appends what a line becomes: a line in a format that is read directly, the line itself if there is nothing to
    /// translate, or nothing if it is a part of a later one or a comment. Neither has its end.
    pub(crate) fn translate(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let mut current = Cow::Borrowed(line);
        for _ in 0..MAX_WRAPPERS {
            let mut record = RecordWriter::new(out);
            if self.w3c.translate(&current, &mut record)
                || alb::translate(&current, &mut record)
                || haproxy::translate(&current, &mut record)
            {
                return record.finish();
            }
            record.discard();
            current = match wrapper::open(&current) {
                Some(Opened::Line(inner)) => Cow::Owned(inner.into_owned()),
                Some(Opened::Part { stream, text, is_last }) => match self.join(stream, text, is_last) {
                    Some(whole) => Cow::Owned(whole),
                    None => return,
                },
                None => break,
            };
        }
        // An inner line may have ends of its own, which would divide it.
        let single = current.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte });
        out.extend(single);
    }

    /// Joins the parts of a line. Returns the line at its last part, unless it is too long.
    fn join(&mut self, stream: usize, text: &[u8], is_last: bool) -> Option<Vec<u8>> {
        let (partial, is_too_long) = (&mut self.partial[stream & 1], &mut self.is_too_long[stream & 1]);
        *is_too_long |= partial.len() + text.len() > MAX_PARTIAL_LENGTH;
        if *is_too_long {
            partial.clear();
        } else {
            partial.extend_from_slice(text);
        }
        if !is_last {
            return None;
        }
        let whole = std::mem::take(partial);
        (!std::mem::take(is_too_long)).then_some(whole)
    }
}

#[cfg(test)]
mod tests;
