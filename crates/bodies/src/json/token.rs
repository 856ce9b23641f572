//! Tokens that may end in another piece than they begin.

/// Progress within an escape of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// Outside of escapes.
    None,
    /// After a backslash.
    Begun,
    /// After `\u` and this number of digits.
    Hex { high: Option<u32>, unit: u32, digits: u8 },
    /// After the first half of a character outside the basic plane.
    HighSurrogate(u32),
    /// After the first half and a backslash.
    BegunAfter(u32),
}

impl Escape {
    pub(super) const fn hex(high: Option<u32>) -> Self {
        Self::Hex { high, unit: 0, digits: 0 }
    }
}

/// Returns the character for which the escape of one letter stands.
pub(super) const fn unescaped(letter: u8) -> Option<u8> {
    Some(match letter {
        b'"' | b'\\' | b'/' => letter,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

/// What has been read of `true`, `false` or `null`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JsonLiteral {
    pub(super) word: &'static str,
    len: usize,
}

impl JsonLiteral {
    pub(super) const fn beginning_with(byte: u8) -> Option<Self> {
        let word = match byte {
            b't' => "true",
            b'f' => "false",
            b'n' => "null",
            _ => return None,
        };
        Some(Self { word, len: 0 })
    }

    pub(super) fn followed_by(self, byte: u8) -> Option<Self> {
        (self.word.as_bytes().get(self.len) == Some(&byte)).then_some(Self { len: self.len + 1, ..self })
    }

    pub(super) const fn is_complete(self) -> bool {
        self.len == self.word.len()
    }
}

/// Progress within a number (RFC 8259, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberState {
    Start,
    Minus,
    /// A zero, which no digit follows.
    Zero,
    Integer,
    Point,
    Fraction,
    E,
    Sign,
    Exponent,
}

impl NumberState {
    /// Returns the state after `byte`; `None` if the number does not go on with it.
    pub(super) const fn followed_by(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Start, b'-') => Self::Minus,
            (Self::Start | Self::Minus, b'0') => Self::Zero,
            (Self::Start | Self::Minus | Self::Integer, b'0'..=b'9') => Self::Integer,
            (Self::Zero | Self::Integer, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Integer | Self::Fraction, b'e' | b'E') => Self::E,
            (Self::E, b'+' | b'-') => Self::Sign,
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Self::Exponent,
            _ => return None,
        })
    }

    pub(super) const fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Integer | Self::Fraction | Self::Exponent)
    }
}
