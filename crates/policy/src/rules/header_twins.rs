//! Header names that differ from those of the rules only in `-` and `_`.
//!
//! CGI, WSGI and PHP turn headers into variables, in which both letters are `_`: `x_api_key` and `X-Api-Key` are one
//! variable. A service behind them would read a header that the rules have not seen, so a client could evade a limit or
//! pass as another client. Names that rules use are never twins, whichever letter they have.

use std::collections::HashSet;

use http::HeaderName;
use smallvec::SmallVec;

/// Length up to which a name is compared without an allocation.
const TYPICAL_NAME_LENGTH: usize = 48;

/// The header names that rules read, as far as they have twins.
#[derive(Debug, Default)]
pub struct HeaderTwins {
    names: HashSet<HeaderName>,
    /// The names with `-` in place of `_`.
    folded: HashSet<Box<[u8]>>,
    /// Whether any of the names has an underscore, so that names without one may be twins.
    has_underscores: bool,
}

impl HeaderTwins {
    /// Creates the set of these names.
    pub fn new(names: impl Iterator<Item = HeaderName>) -> Self {
        let names: HashSet<_> = names.filter(|name| name.as_str().contains(['-', '_'])).collect();
        let folded = names.iter().map(|name| fold(name.as_str()).into_vec().into()).collect();
        let has_underscores = names.iter().any(|name| name.as_str().contains('_'));
        Self { names, folded, has_underscores }
    }

    /// Whether a header without an underscore may be a twin.
    pub const fn includes_dashes(&self) -> bool {
        self.has_underscores
    }

    /// Whether a header is a twin of one that rules read.
    pub fn contains(&self, name: &HeaderName) -> bool {
        !self.folded.is_empty()
            && name.as_str().contains(['-', '_'])
            && !self.names.contains(name)
            && self.folded.contains(&*fold(name.as_str()))
    }
}

fn fold(name: &str) -> SmallVec<[u8; TYPICAL_NAME_LENGTH]> {
    name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twins(names: &[&'static str]) -> HeaderTwins {
        HeaderTwins::new(names.iter().map(|name| HeaderName::from_static(name)))
    }

    fn has(twins: &HeaderTwins, name: &'static str) -> bool {
        twins.contains(&HeaderName::from_static(name))
    }

    #[test]
    fn underscores_in_the_name_of_a_rules_header_are_twins() {
        let twins = twins(&["x-api-key", "authorization"]);
        assert!(["x_api_key", "x-api_key", "x_api-key"].iter().all(|name| has(&twins, name)));
        assert!(
            !["x-api-key", "x_other", "authorization", "x-api-keys"].iter().any(|name| has(&twins, name))
        );
        assert!(!twins.includes_dashes());
    }

    #[test]
    fn names_of_rules_are_never_twins() {
        let both = twins(&["x-api-key", "x_api_key"]);
        assert!(!has(&both, "x-api-key") && !has(&both, "x_api_key") && has(&both, "x-api_key"));
        let own = twins(&["x_api_key"]);
        assert!(own.includes_dashes() && has(&own, "x-api-key") && !has(&own, "x_api_key"));
    }
}
