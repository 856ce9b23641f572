//! Decided requests by the country of the client.
//!
//! A country code has two letters, so its position in an array follows from the letters. Counting costs one relaxed
//! addition, without a look-up by name. The number of series is bounded by the codes that the geolocation database
//! contains, about 250.

use std::fmt;

use crate::atomic_counter::AtomicCounter;
use weir_policy::identify::geo::Country;

/// Number of letters of the alphabet.
const LETTERS: usize = 26;

/// Position of requests whose country is unknown, after those of all codes.
const UNKNOWN: usize = LETTERS * LETTERS;

/// Decided requests by country, of one worker or summed.
pub(super) struct CountryCounts(Box<[CountryCounter]>);

#[derive(Debug, Default)]
struct CountryCounter {
    admitted: AtomicCounter,
    rejected: AtomicCounter,
}

/// Decided requests of one country.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountryDecisions {
    /// Requests that every rule admitted.
    pub admitted: u64,
    /// Requests that a rule rejected.
    pub rejected: u64,
}

/// A country as a label value: its code, or `unknown`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountryLabel(Option<[u8; 2]>);

impl CountryLabel {
    pub fn as_str(&self) -> &str {
        self.0.as_ref().and_then(|code| std::str::from_utf8(code).ok()).unwrap_or("unknown")
    }
}

impl fmt::Debug for CountryLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<Option<Country>> for CountryLabel {
    fn from(country: Option<Country>) -> Self {
        Self(country.map(Country::code))
    }
}

impl CountryDecisions {
    /// Returns each count with its `outcome` label.
    pub(super) const fn by_outcome(self) -> [(&'static str, u64); 2] {
        [("admitted", self.admitted), ("rejected", self.rejected)]
    }
}

impl Default for CountryCounts {
    fn default() -> Self {
        Self((0..=UNKNOWN).map(|_| CountryCounter::default()).collect())
    }
}

impl fmt::Debug for CountryCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl CountryCounts {
    pub(super) fn record(&self, country: Option<Country>, is_rejected: bool) {
        if let Some(counter) = self.0.get(position(country)) {
            if is_rejected { &counter.rejected } else { &counter.admitted }.increment_exclusive();
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        for (sum, one) in self.0.iter_mut().zip(&other.0) {
            sum.admitted.merge(&one.admitted);
            sum.rejected.merge(&one.rejected);
        }
    }

    /// Yields the countries with requests, in the order of their codes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (CountryLabel, CountryDecisions)> + '_ {
        self.0.iter().enumerate().filter_map(|(position, counter)| {
            let decisions =
                CountryDecisions { admitted: counter.admitted.get(), rejected: counter.rejected.get() };
            (decisions != CountryDecisions::default()).then(|| (label(position), decisions))
        })
    }
}

/// Returns the position of a country among the counters.
fn position(country: Option<Country>) -> usize {
    let letter = |letter: u8| usize::from(letter.wrapping_sub(b'A'));
    country.map(Country::code).map_or(UNKNOWN, |[first, second]| letter(first) * LETTERS + letter(second))
}

fn label(position: usize) -> CountryLabel {
    // A remainder of the division by 26 fits into a byte, and so does the quotient for every code.
    let letter = |index: usize| b'A'.wrapping_add(u8::try_from(index).unwrap_or_default());
    CountryLabel((position < UNKNOWN).then(|| [letter(position / LETTERS), letter(position % LETTERS)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_position_of_its_own_and_its_label() {
        let counts = CountryCounts::default();
        let codes = (b'A'..=b'Z').flat_map(|first| (b'A'..=b'Z').map(move |second| [first, second]));
        let codes: Vec<String> = codes.map(|code| String::from_utf8(code.to_vec()).unwrap()).collect();
        for code in &codes {
            counts.record(Some(code.parse().unwrap()), false);
        }
        counts.record(None, true);
        let found: Vec<_> = counts.iter().collect();
        assert_eq!(found.len(), codes.len() + 1);
        for (code, (label, decisions)) in codes.iter().zip(&found) {
            assert_eq!((label.as_str(), decisions.admitted, decisions.rejected), (code.as_str(), 1, 0));
        }
        let (label, decisions) = found.last().unwrap();
        assert_eq!((label.as_str(), decisions.rejected), ("unknown", 1));
    }

    #[test]
    fn countries_of_workers_add_up() {
        let (mut sum, other) = (CountryCounts::default(), CountryCounts::default());
        let brazil = "br".parse().ok();
        sum.record(brazil, true);
        other.record(brazil, true);
        other.record(brazil, false);
        sum.merge(&other);
        let expected = (CountryLabel::from(brazil), CountryDecisions { admitted: 1, rejected: 2 });
        assert_eq!(sum.iter().collect::<Vec<_>>(), [expected]);
    }
}
