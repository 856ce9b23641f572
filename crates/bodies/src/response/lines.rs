//! Documents in lines: server-sent events (HTML standard, section 9.2.6), and one document per line.

use super::document::ResponseDocuments;

/// Beginning of a line of an event that has a part of its data.
const DATA: &[u8] = b"data:";

/// Reads lines.
#[derive(Debug)]
pub(super) struct LineReader {
    /// Whether a line is a document. Otherwise, an event is.
    is_document: bool,
    state: LineState,
    /// Whether the last byte was a carriage return, which ends a line alone or with a line feed.
    after_return: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineState {
    /// This many bytes are those of [`DATA`].
    Name(usize),
    /// The next byte may be a space, which is not data.
    Space,
    Data,
    /// The line has no data.
    Ignored,
}

impl LineReader {
    /// Creates a reader of server-sent events whose data are documents.
    pub(super) const fn of_events() -> Self {
        Self { is_document: false, state: LineState::Name(0), after_return: false }
    }

    /// Creates a reader of documents that are lines.
    pub(super) const fn of_documents() -> Self {
        Self { is_document: true, state: LineState::Data, after_return: false }
    }

    /// Reads the next piece of the body. What is not JSON is passed over, such as `[DONE]` at the end of a stream.
    pub(super) fn read(&mut self, mut piece: &[u8], documents: &mut ResponseDocuments) {
        while let Some((byte, after)) = piece.split_first() {
            let is_second = std::mem::take(&mut self.after_return) && *byte == b'\n';
            piece = match (self.state, *byte) {
                _ if is_second => after,
                (state, b'\n' | b'\r') => {
                    self.after_return = *byte == b'\r';
                    self.end_line(state, documents);
                    after
                }
                (LineState::Name(matched), byte) => {
                    self.state = match matched + 1 {
                        _ if DATA[matched] != byte => LineState::Ignored,
                        matched if matched == DATA.len() => LineState::Space,
                        matched => LineState::Name(matched),
                    };
                    after
                }
                (LineState::Space, byte) => {
                    self.state = LineState::Data;
                    if byte == b' ' { after } else { piece }
                }
                (LineState::Data | LineState::Ignored, _) => {
                    let end = memchr::memchr2(b'\n', b'\r', piece).unwrap_or(piece.len());
                    let (line, rest) = piece.split_at(end);
                    if self.state == LineState::Data && !(self.is_last(rest) && documents.may_skip(line)) {
                        // An error is kept by the document.
                        let _ = documents.read(line);
                    }
                    rest
                }
            };
        }
    }

    /// Whether `rest` begins with the end of a line, and this line is the last one of its document.
    fn is_last(&self, rest: &[u8]) -> bool {
        let after = rest.strip_prefix(b"\r\n").or_else(|| rest.strip_prefix(b"\n"));
        after.is_some_and(|after| self.is_document || after.starts_with(b"\n") || after.starts_with(b"\r"))
    }

    fn end_line(&mut self, state: LineState, documents: &mut ResponseDocuments) {
        if self.is_document || state == LineState::Name(0) {
            let _ = documents.end();
        } else if state == LineState::Data && !documents.is_empty() {
            // Lines of data are joined with a line feed.
            let _ = documents.read(b"\n");
        }
        self.state = if self.is_document { LineState::Data } else { LineState::Name(0) };
    }
}
