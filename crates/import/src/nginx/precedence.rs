//! Patterns of which only one applies to a request, expressed by rules that all apply.
//!
//! nginx selects one location, one server and one entry of a `map` for a request. A rule for some of the
//! patterns therefore excepts those others that take precedence over them.

/// A pattern that competes with others of its kind.
pub(super) trait Competing {
    /// Whether this pattern takes precedence over `other` for a request that both match.
    fn precedes(&self, other: &Self) -> bool;
}

/// Returns the patterns among `others` that a rule for `ours` must except. `None` if a request that one of them
/// matches may still belong to one of ours, which `match` and `except` cannot express.
pub(super) fn exceptions<'p, P: Competing>(ours: &[&P], others: &[&'p P]) -> Option<Vec<&'p P>> {
    let is_excepted = |other: &&&P| ours.iter().any(|one| other.precedes(one));
    let excepted: Vec<&P> = others.iter().filter(is_excepted).copied().collect();
    let is_sound = excepted.iter().all(|other| !ours.iter().any(|one| one.precedes(other)));
    is_sound.then_some(excepted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The greater number takes precedence.
    #[derive(Debug, PartialEq, Eq)]
    struct Level(u8);

    impl Competing for Level {
        fn precedes(&self, other: &Self) -> bool {
            self.0 > other.0
        }
    }

    #[test]
    fn only_preceding_patterns_are_excepted() {
        let [low, middle, high] = [Level(1), Level(2), Level(3)];
        assert_eq!(exceptions(&[&middle], &[&low, &high]), Some(vec![&high]));
        assert_eq!(exceptions(&[&high, &middle], &[&low]), Some(vec![]));
    }

    #[test]
    fn exception_that_one_of_ours_precedes_is_not_expressible() {
        let [low, middle, high] = [Level(1), Level(2), Level(3)];
        assert_eq!(exceptions(&[&low, &high], &[&middle]), None);
    }
}
