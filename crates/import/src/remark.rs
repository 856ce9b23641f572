//! What an importer says about a part of its input that the rules do not express.
//!
//! Every importer reports through these types: a remark is a comment in the output, and if it changes which requests
//! are admitted also a warning on standard error.

/// The effect on the limits of a part that is not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Effect {
    /// The same requests are admitted.
    None,
    /// The rules admit requests that the original rejects.
    Looser,
    /// The rules reject requests that the original admits.
    Tighter,
    /// Either of both, or unknown.
    Differs,
}

impl Effect {
    /// Returns the word that begins a comment; empty for [`Effect::None`].
    const fn prefix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Looser => "looser: ",
            Self::Tighter => "tighter: ",
            Self::Differs => "differs: ",
        }
    }
}

/// A remark on a rule or on a part of the input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Remark {
    pub(super) effect: Effect,
    pub(super) text: String,
}

impl Remark {
    pub(super) fn new(effect: Effect, text: impl Into<String>) -> Self {
        Self { effect, text: text.into() }
    }

    pub(super) fn comment(&self) -> String {
        format!("{}{}", self.effect.prefix(), self.text)
    }

    /// Whether it is a warning, too.
    pub(super) fn is_warning(&self) -> bool {
        self.effect != Effect::None
    }
}

/// Maximum length of a value in a remark, in characters.
const MAX_VALUE_CHARS: usize = 100;

/// Returns the text of a value for a remark. A long one is cut, with a checksum that shows any change of the rest.
pub(super) fn brief(text: &str) -> String {
    if text.chars().count() <= MAX_VALUE_CHARS {
        return text.to_owned();
    }
    let begin: String = text.chars().take(MAX_VALUE_CHARS).collect();
    format!("{begin}… (checksum {})", checksum(text))
}

/// Returns a checksum (FNV-1a), so that two imports of different files differ although neither has the values: these
/// may be secrets.
pub(super) fn checksum(text: &str) -> String {
    let mix = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    format!("{:08x}", text.bytes().fold(0x811c_9dc5, mix))
}

/// Returns the known name that is nearest to a misspelt one.
pub(super) fn nearest<'k>(given: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let distances = known.map(|name| (edit_distance(given, name), name));
    distances.min().filter(|(distance, name)| *distance * 3 <= name.len()).map(|(_, name)| name)
}

fn edit_distance(one: &str, other: &str) -> usize {
    // A name that long is not a misspelling.
    const MAX_LENGTH: usize = 80;
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() > MAX_LENGTH || other.len() > MAX_LENGTH {
        return usize::MAX / 4;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, byte) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, other_byte) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(byte != other_byte);
            diagonal = row[at + 1];
            row[at + 1] = substituted.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_of_remarks_are_cut_and_still_differ() {
        let long = "x".repeat(300);
        assert_eq!(brief("short"), "short");
        assert!(brief(&long).chars().count() < 130);
        assert_ne!(brief(&long), brief(&format!("{long}y")));
    }

    #[test]
    fn misspelt_names_have_the_nearest_known_one() {
        let known = ["rate_limits", "actions", "stage"];
        assert_eq!(nearest("rate_limit", known.into_iter()), Some("rate_limits"));
        assert_eq!(nearest("acton", known.into_iter()), Some("actions"));
        assert_eq!(nearest("cluster", known.into_iter()), None);
    }
}
