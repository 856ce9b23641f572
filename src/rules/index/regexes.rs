//! What is filed under regexes. Few are tried one by one, many at once as a set.

use regex::{Regex, RegexSet, RegexSetBuilder};

/// From so many on, one pass over the text with all of them is cheaper than one pass for each.
const ENOUGH_FOR_A_SET: usize = 8;
/// A set may take this much memory compiled; one that would need more is tried regex by regex.
const SET_SIZE_LIMIT: usize = 16 << 20;

/// A `T` per regex.
#[derive(Debug)]
pub(super) struct Regexes<T> {
    each: Vec<(Regex, T)>,
    set: Option<RegexSet>,
}

impl<T> Default for Regexes<T> {
    fn default() -> Self {
        Self { each: Vec::new(), set: None }
    }
}

impl<T: Default> Regexes<T> {
    /// What is filed under `regex`; nothing yet if it is new.
    pub(super) fn entry(&mut self, regex: &Regex) -> &mut T {
        let known = self.each.iter().position(|(known, _)| known.as_str() == regex.as_str());
        let index = known.unwrap_or_else(|| {
            self.each.push((regex.clone(), T::default()));
            self.each.len() - 1
        });
        &mut self.each[index].1
    }
}

impl<T> Regexes<T> {
    /// Compiles the set, once all regexes are there.
    pub(super) fn seal(&mut self) {
        if self.each.len() >= ENOUGH_FOR_A_SET {
            let texts = self.each.iter().map(|(regex, _)| regex.as_str());
            self.set = RegexSetBuilder::new(texts).size_limit(SET_SIZE_LIMIT).build().ok();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.each.iter_mut().map(|(_, value)| value)
    }

    /// Calls `act` with what is filed under every regex that finds a match in `text`.
    pub(super) fn each_match(&self, text: &str, mut act: impl FnMut(&T)) {
        match &self.set {
            // The list of those that match is allocated: most texts should not get that far.
            Some(set) if set.is_match(text) => {
                set.matches(text).iter().for_each(|index| act(&self.each[index].1));
            }
            Some(_) => {}
            None => {
                let matching = self.each.iter().filter(|(regex, _)| regex.is_match(text));
                matching.for_each(|(_, value)| act(value));
            }
        }
    }
}

#[cfg(test)]
impl<T> Regexes<T> {
    pub(super) fn is_one_set(&self) -> bool {
        self.set.is_some()
    }
}
