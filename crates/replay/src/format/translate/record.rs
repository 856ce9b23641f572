//! Writer of a request as a JSON object with names that are read directly.

/// Writes one object. Values that are absent in the log, `-` or nothing, are left out.
#[derive(Debug)]
pub(super) struct RecordWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> RecordWriter<'a> {
    /// Starts an object at the end of `out`.
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    /// Appends a member with a text as its value.
    pub(super) fn text(&mut self, name: &str, value: &[u8]) {
        self.texts(name, &[value]);
    }

    /// Appends a member whose value consists of these parts.
    pub(super) fn texts(&mut self, name: &str, parts: &[&[u8]]) {
        if matches!(parts, [b"" | b"-"]) {
            return;
        }
        self.out.push(if self.out.len() == self.start { b'{' } else { b',' });
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":\"");
        parts.iter().for_each(|part| push_escaped(part, self.out));
        self.out.push(b'"');
    }

    /// Ends the object.
    pub(super) fn finish(self) {
        if self.out.len() == self.start {
            return;
        }
        self.out.push(b'}');
    }

    /// Removes what was written.
    pub(super) fn discard(self) {
        self.out.truncate(self.start);
    }
}

fn push_escaped(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
            0..0x20 => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(*byte),
        }
    }
}

/// Iterates over the words of a line. A word in quotes may contain spaces; a backslash before a quote belongs to it.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_ascii_start();
        if rest.is_empty() {
            return None;
        }
        if let Some(quoted) = rest.strip_prefix(b"\"") {
            let end = end_of_quoted(quoted);
            rest = quoted.get(end + 1..).unwrap_or_default();
            return Some(&quoted[..end]);
        }
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        rest = behind;
        Some(word)
    })
}

/// Returns the position of the quote that ends a text.
pub(super) fn end_of_quoted(text: &[u8]) -> usize {
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => return at,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}
