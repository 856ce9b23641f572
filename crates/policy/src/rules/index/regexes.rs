//! Map with regexes as keys. Few are tried one by one, many as a set.

use regex::{Regex, RegexSet, RegexSetBuilder};

/// Minimum number of regexes for a set. From this number on, one pass for all is cheaper than one pass for each.
const ENOUGH_FOR_A_SET: usize = 8;
/// Maximum memory of a compiled set, in bytes. If a set needs more, its regexes are tried one by one.
const SET_SIZE_LIMIT: usize = 16 << 20;

/// A value for each regex.
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
    /// Returns the value of `regex`, inserting a default if it is new.
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
    /// Compiles the set; called once, after all regexes were added.
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

    /// Calls `act` with the value of every regex that matches `text`.
    pub(super) fn each_match(&self, text: &str, mut act: impl FnMut(&T)) {
        match &self.set {
            // `matches` allocates the list of matching regexes; most texts match none.
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
