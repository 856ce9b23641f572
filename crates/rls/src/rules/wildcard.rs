//! Patterns in which each `*` matches any number of characters.

/// A pattern with at least one `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wildcard {
    prefix: Box<str>,
    middles: Box<[Box<str>]>,
    suffix: Box<str>,
}

impl Wildcard {
    /// Compiles `pattern`; without a `*`, one is added at its end.
    pub(super) fn new(pattern: &str) -> Self {
        let (prefix, rest) = pattern.split_once('*').unwrap_or((pattern, ""));
        let (middles, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middles = middles.split('*').filter(|middle| !middle.is_empty()).map(Into::into).collect();
        Self { prefix: prefix.into(), middles, suffix: suffix.into() }
    }

    /// Returns whether `text` matches. The leftmost match of each middle part leaves the most text for the next one, so
    /// no backtracking is needed.
    pub(super) fn matches(&self, text: &str) -> bool {
        let Some(rest) = text.strip_prefix(&*self.prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else { return false };
        for middle in &self.middles {
            let Some(at) = rest.find(&**middle) else { return false };
            rest = &rest[at + middle.len()..];
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Wildcard;

    fn matching<'a>(pattern: &str, texts: &[&'a str]) -> Vec<&'a str> {
        let wildcard = Wildcard::new(pattern);
        texts.iter().copied().filter(|text| wildcard.matches(text)).collect()
    }

    #[test]
    fn wildcard_star_matches_any_text_and_none() {
        assert_eq!(matching("foo*", &["foo", "foo1", "fo", "xfoo"]), ["foo", "foo1"]);
        assert_eq!(matching("bar*b", &["barb", "barab", "bara", "xbarb", "bar"]), ["barb", "barab"]);
        assert_eq!(matching("*", &["", "x"]), ["", "x"]);
    }

    #[test]
    fn wildcard_parts_match_in_order_without_overlap() {
        let texts = ["foobarbaz", "foo-bar-baz", "foobazbar", "foobaz", "foobarxbaz"];
        assert_eq!(matching("foo*bar*baz", &texts), ["foobarbaz", "foo-bar-baz", "foobarxbaz"]);
        assert_eq!(matching("ab*ba", &["aba", "abba"]), ["abba"]);
        assert_eq!(matching("a*aa*a", &["aaa", "aaaa"]), ["aaaa"]);
        assert_eq!(matching("a**b", &["ab", "acb"]), ["ab", "acb"]);
    }
}
