//! Paths of fields: `usage.total_tokens`, `items[0].id`, `params["a.b"]`.

use std::fmt;
use std::str::FromStr;

/// Where a field is in a JSON document. The first step is a key: a document that is an array is a batch of documents.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path(Box<[Step]>);

/// One step of a [`Path`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Into the member of an object.
    Key(Box<str>),
    /// Into the element of an array, counted from 0.
    Index(u32),
}

/// Why a text is no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    #[error("a path has no empty keys")]
    EmptyKey,
    #[error("a path begins with a key")]
    LeadingIndex,
    #[error("the bracket is not closed by `]` after a number or a quoted key")]
    Bracket,
    #[error("a key follows `]` after a dot only")]
    MissingDot,
    #[error("a path has at most 16 steps")]
    TooLong,
}

/// Maximum number of steps.
const MAX_STEPS: usize = 16;

impl Path {
    /// Returns the path of one step.
    pub(crate) fn of(step: Step) -> Self {
        Self([step].into())
    }

    /// Returns the steps, of which there is at least one.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

impl FromStr for Path {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let (step, after) =
                if let Some(inner) = rest.strip_prefix('[') { bracket(inner)? } else { key(rest)? };
            if steps.is_empty() && matches!(step, Step::Index(_)) {
                return Err(InvalidPath::LeadingIndex);
            }
            steps.push(step);
            rest = match after.strip_prefix('.') {
                Some(next) if next.starts_with('[') => return Err(InvalidPath::EmptyKey),
                Some(next) => next,
                None if after.is_empty() => break,
                None if after.starts_with('[') => after,
                None => return Err(InvalidPath::MissingDot),
            };
            if steps.len() == MAX_STEPS {
                return Err(InvalidPath::TooLong);
            }
        }
        Ok(Self(steps.into()))
    }
}

/// Splits a key without quotes off.
fn key(text: &str) -> Result<(Step, &str), InvalidPath> {
    let (key, rest) = text.split_at(text.find(['.', '[']).unwrap_or(text.len()));
    if key.is_empty() {
        return Err(InvalidPath::EmptyKey);
    }
    Ok((Step::Key(key.into()), rest))
}

/// Splits a number or a quoted key and its `]` off.
fn bracket(text: &str) -> Result<(Step, &str), InvalidPath> {
    let (step, rest) = match text.strip_prefix('"') {
        Some(quoted) => {
            let (key, rest) = quoted.split_once('"').ok_or(InvalidPath::Bracket)?;
            (Step::Key(key.into()), rest)
        }
        None => {
            let (digits, rest) = text.split_at(text.find(']').unwrap_or(text.len()));
            let is_canonical = digits == "0" || !digits.starts_with(['0', '+']);
            let index = digits.parse().ok().filter(|_| is_canonical).ok_or(InvalidPath::Bracket)?;
            (Step::Index(index), rest)
        }
    };
    Ok((step, rest.strip_prefix(']').ok_or(InvalidPath::Bracket)?))
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if key.is_empty() || key.contains(['.', '[']) => write!(f, "[\"{key}\"]")?,
                Step::Key(key) if position == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_written_as_they_are_read() {
        for text in
            ["model", "usage.total_tokens", "items[0].id", "a[10][2]", "params[\"a.b\"].c", "é.ü", "a b"]
        {
            assert_eq!(text.parse::<Path>().map(|path| path.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn malformed_paths_have_a_reason() {
        use InvalidPath as I;
        for (text, reason) in [
            ("", I::EmptyKey),
            (".a", I::EmptyKey),
            ("a.", I::EmptyKey),
            ("a..b", I::EmptyKey),
            ("a.[0]", I::EmptyKey),
            ("[0].a", I::LeadingIndex),
            ("a[", I::Bracket),
            ("a[]", I::Bracket),
            ("a[-1]", I::Bracket),
            ("a[+1]", I::Bracket),
            ("a[01]", I::Bracket),
            ("a[4294967296]", I::Bracket),
            ("a[\"b]", I::Bracket),
            ("a[0]b", I::MissingDot),
            ("a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a", I::TooLong),
        ] {
            assert_eq!(text.parse::<Path>(), Err(reason), "{text}");
        }
    }
}
