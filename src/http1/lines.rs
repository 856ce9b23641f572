//! Fields that are put on a message, written at once as they go out.
//!
//! A map would hash each name, move its neighbours and be read again a moment later. What a proxy says of every message is
//! known to stand there once, so it needs no map.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::coding::field;

/// What is asked for first: all that a message usually gets.
const USUAL: usize = 320;

/// Fields beside those of a message. None of them may stand in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    text: Vec<u8>,
    dated: bool,
}

impl Lines {
    /// Adds a field. The value must be one.
    pub fn put(&mut self, name: &HeaderName, value: &[u8]) {
        self.make_room();
        field(name, value, &mut self.text);
    }

    /// Adds a field as it came. Both must be what they are taken for.
    pub fn as_it_came(&mut self, name: &[u8], value: &[u8]) {
        self.dated |= name.eq_ignore_ascii_case(b"date");
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(b": ");
        self.text.extend_from_slice(value);
        self.text.extend_from_slice(b"\r\n");
    }

    /// Room for so many bytes of fields, and for what a message gets beside them.
    pub fn with_room(octets: usize) -> Self {
        Self { text: Vec::with_capacity(octets + USUAL), dated: false }
    }

    /// Whether one of those that came is a Date.
    pub fn is_dated(&self) -> bool {
        self.dated
    }

    /// Adds a field with a number.
    pub fn number(&mut self, name: &HeaderName, number: u64) {
        self.put(name, itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds what `write` writes: fields, each with its end of line.
    pub fn written(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.make_room();
        write(&mut self.text);
    }

    fn make_room(&mut self) {
        if self.text.capacity() == 0 {
            self.text = Vec::with_capacity(USUAL);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// All of them, each with its end of line.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// Adds them to a map, for whoever needs one.
    pub fn extend(&self, headers: &mut HeaderMap) {
        for line in self.text.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let value = Bytes::copy_from_slice(line[colon + 1..].trim_ascii_start());
            if let (Ok(name), Ok(value)) =
                (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_maybe_shared(value))
            {
                headers.append(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::{AGE, WARNING};

    use super::*;

    #[test]
    fn a_map_gets_what_the_wire_would() {
        let mut lines = Lines::default();
        assert!(lines.is_empty());
        lines.put(&WARNING, b"199 - \"a: b\"");
        lines.number(&AGE, 12);
        lines.written(|out| out.extend_from_slice(b"x-one: 1\r\n"));
        assert!(!lines.is_dated());
        lines.as_it_came(b"X-One", b"");
        let text = "warning: 199 - \"a: b\"\r\nage: 12\r\nx-one: 1\r\nX-One: \r\n";
        assert_eq!(lines.as_bytes(), text.as_bytes());
        let mut map = HeaderMap::new();
        map.insert("x-one", HeaderValue::from_static("0"));
        lines.extend(&mut map);
        assert_eq!(map[WARNING], "199 - \"a: b\"");
        assert_eq!(map[AGE], "12");
        let all: Vec<_> = map.get_all("x-one").iter().collect();
        assert_eq!(all, ["0", "1", ""]);
        lines.as_it_came(b"DATE", b"today");
        assert!(lines.is_dated());
    }
}
