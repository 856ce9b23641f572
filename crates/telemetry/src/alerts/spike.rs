//! Recognises a spike: many more rejections in the last minute than in an average minute of the hour before it.
//!
//! Time is counted in slices. Rejections between two samples belong to the slices between them in equal parts, because
//! a sample may be late. After a gap without samples everything starts anew. The last minute is kept slice by slice, the hour
//! before it in minutes. While a spike lasts, the hour before it learns at most its own average, so that an attack of
//! an hour does not become the norm. After that it does: a permanent change is reported once and not for ever.

use std::collections::BTreeMap;
use std::time::Duration;

/// Time between two samples, unless one is late.
pub(super) const SLICE: Duration = Duration::from_secs(5);

const SLICES_PER_MINUTE: usize = 12;
const MINUTES: usize = 60;
/// Number of slices in the hour before the last minute.
const SLICES_PER_HOUR: u64 = (SLICES_PER_MINUTE * MINUTES) as u64;

/// Minimum number of rejections in the last minute: one per second. Fewer are no reason to call a person.
const MIN_REJECTIONS: u64 = 60;
/// Minimum ratio of the last minute to an average minute. Daily traffic may double within an hour.
const MIN_RATIO: f64 = 4.0;
/// Minimum number of slices before the last minute, ten minutes. Less is no average.
const MIN_HISTORY: u64 = (10 * SLICES_PER_MINUTE) as u64;

/// What is assumed of a subject before its first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// It existed and had no rejections, as a country without requests.
    Quiet,
    /// It did not exist, as a rule that a reload has added.
    Absent,
}

/// Rejections of several subjects over the last hour.
#[derive(Debug)]
pub(super) struct SpikeDetector<K> {
    unseen: Unseen,
    /// Number of slices so far, with the first sample as one.
    slices: u64,
    histories: BTreeMap<K, RejectionHistory>,
}

/// A spike of one subject.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spike {
    /// Rejections in the last minute.
    pub(super) last_minute: u64,
    /// Rejections in an average minute of the hour before.
    pub(super) average: f64,
}

/// Rejections of one subject.
#[derive(Debug)]
struct RejectionHistory {
    total: u64,
    /// Slices of the last minute, as a ring.
    recent: [u32; SLICES_PER_MINUTE],
    /// Minutes before that, as a ring.
    minutes: [u64; MINUTES],
    /// Number of slices so far, including those of the last minute.
    slices: u64,
    /// Number of slices in a row in which there was a spike.
    spike_slices: u64,
}

impl<K: Ord + Clone> SpikeDetector<K> {
    pub(super) fn new(unseen: Unseen) -> Self {
        Self { unseen, slices: 0, histories: BTreeMap::new() }
    }

    /// Adds a sample, which is `slices` after the one before: the total number of rejections of each subject. Subjects
    /// that are missing had no rejections.
    pub(super) fn add_sample<'a>(&mut self, slices: u64, totals: impl Iterator<Item = (&'a K, u64)>)
    where
        K: 'a,
    {
        let mut seen: BTreeMap<&K, u64> = totals.collect();
        for (subject, history) in &mut self.histories {
            history.add_total(slices, seen.remove(subject).unwrap_or(history.total));
        }
        for (subject, total) in seen {
            // Totals of the first sample were counted before it.
            let is_known = self.unseen == Unseen::Quiet && self.slices > 0;
            let mut history = match is_known {
                true => RejectionHistory::new(0, self.slices),
                false => RejectionHistory::new(total, 0),
            };
            history.add_total(slices, total);
            self.histories.insert(subject.clone(), history);
        }
        self.slices = self.slices.saturating_add(slices);
    }

    /// Yields the subjects that have a spike.
    pub(super) fn spikes(&self) -> impl Iterator<Item = (&K, Spike)> {
        self.histories.iter().filter_map(|(subject, history)| Some((subject, history.spike()?)))
    }
}

impl RejectionHistory {
    const fn new(total: u64, slices: u64) -> Self {
        Self { total, recent: [0; SLICES_PER_MINUTE], minutes: [0; MINUTES], slices, spike_slices: 0 }
    }

    /// Adds the rejections since the last total, divided among `slices` slices.
    fn add_total(&mut self, slices: u64, total: u64) {
        let mut left = total.saturating_sub(self.total);
        self.total = total;
        for slices_left in (1..=slices).rev() {
            let part = left.div_ceil(slices_left);
            left -= part;
            self.add_slice(u32::try_from(part).unwrap_or(u32::MAX));
        }
    }

    fn add_slice(&mut self, rejections: u32) {
        let position = (self.slices % SLICES_PER_MINUTE as u64) as usize;
        let oldest = std::mem::replace(&mut self.recent[position], rejections);
        if let Some(index) = self.slices.checked_sub(SLICES_PER_MINUTE as u64) {
            self.add_to_hour(index, oldest);
        }
        self.slices = self.slices.saturating_add(1);
        self.spike_slices = if self.spike().is_some() { self.spike_slices.saturating_add(1) } else { 0 };
    }

    /// Moves the slice with this index from the last minute to the hour before it.
    fn add_to_hour(&mut self, index: u64, rejections: u32) {
        let is_learning = self.spike_slices == 0 || self.spike_slices > SLICES_PER_HOUR;
        let usual = (self.average() / SLICES_PER_MINUTE as f64).ceil() as u32;
        let rejections = if is_learning { rejections } else { rejections.min(usual) };
        let minute = &mut self.minutes[((index / SLICES_PER_MINUTE as u64) % MINUTES as u64) as usize];
        let so_far = if index.is_multiple_of(SLICES_PER_MINUTE as u64) { 0 } else { *minute };
        *minute = so_far.saturating_add(u64::from(rejections));
    }

    fn last_minute(&self) -> u64 {
        self.recent.iter().map(|rejections| u64::from(*rejections)).sum()
    }

    /// Returns the number of slices in the hour before the last minute. The ring's oldest minute is replaced slice by
    /// slice, so a full ring has 59 minutes and a part of one.
    fn slices_of_hour(&self) -> u64 {
        let moved = self.slices.saturating_sub(SLICES_PER_MINUTE as u64);
        match moved.checked_sub(SLICES_PER_HOUR + 1) {
            None => moved,
            Some(beyond) => {
                let of_newest = beyond % SLICES_PER_MINUTE as u64 + 1;
                SLICES_PER_HOUR - SLICES_PER_MINUTE as u64 + of_newest
            }
        }
    }

    /// Returns the rejections in an average minute of the hour before the last minute.
    fn average(&self) -> f64 {
        let sum: u64 = self.minutes.iter().fold(0, |sum, minute| sum.saturating_add(*minute));
        sum as f64 * SLICES_PER_MINUTE as f64 / self.slices_of_hour().max(1) as f64
    }

    fn spike(&self) -> Option<Spike> {
        let (last_minute, average) = (self.last_minute(), self.average());
        let is_spike = self.slices_of_hour() >= MIN_HISTORY
            && last_minute >= MIN_REJECTIONS
            && last_minute as f64 >= MIN_RATIO * average;
        is_spike.then_some(Spike { last_minute, average })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBJECT: &str = "a";

    /// A detector of one subject, and the total that it has seen.
    struct Traffic {
        detector: SpikeDetector<&'static str>,
        total: u64,
    }

    impl Traffic {
        fn new() -> Self {
            let mut traffic = Self { detector: SpikeDetector::new(Unseen::Absent), total: 0 };
            traffic.run(1, 0);
            traffic
        }

        /// Adds `slices` samples with as many rejections each; returns in how many of them there was a spike.
        fn run(&mut self, slices: usize, rejections: u64) -> usize {
            let mut spikes = 0;
            for _ in 0..slices {
                self.total += rejections;
                self.detector.add_sample(1, [(&SUBJECT, self.total)].into_iter());
                spikes += usize::from(self.spike().is_some());
            }
            spikes
        }

        /// Adds one sample for several slices with as many rejections each; returns whether there is a spike.
        fn run_late(&mut self, slices: u64, rejections: u64) -> bool {
            self.total += slices * rejections;
            self.detector.add_sample(slices, [(&SUBJECT, self.total)].into_iter());
            self.spike().is_some()
        }

        fn minutes(&mut self, minutes: usize, rejections_per_slice: u64) -> usize {
            self.run(minutes * SLICES_PER_MINUTE, rejections_per_slice)
        }

        fn spike(&self) -> Option<Spike> {
            self.detector.spikes().next().map(|(_, spike)| spike)
        }
    }

    #[test]
    fn sudden_rejections_are_a_spike_and_their_end_ends_it() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.minutes(60, 10), 0);
        assert_eq!(traffic.minutes(1, 60), 5, "from the slice on in which the minute is four times as high");
        let Spike { last_minute, average } = traffic.spike().unwrap();
        assert_eq!((last_minute, average.round()), (720, 120.0));
        assert!(traffic.minutes(1, 10) < SLICES_PER_MINUTE);
        assert_eq!(traffic.spike(), None);
    }

    #[test]
    fn late_samples_are_no_spike() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.minutes(60, 6), 0);
        assert!((1..=12).all(|slices| !traffic.run_late(slices, 6)));
        assert!(traffic.run_late(12, 24), "a real spike is one in spite of that");
        assert_eq!(traffic.spike().unwrap().last_minute, 24 * 12);
    }

    #[test]
    fn few_rejections_are_no_spike() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.minutes(60, 0), 0);
        assert_eq!(traffic.minutes(10, 4), 0);
        assert!(traffic.minutes(1, 5) > 0);
    }

    #[test]
    fn doubled_rejections_are_no_spike() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.minutes(60, 100) + traffic.minutes(60, 200) + traffic.minutes(60, 400), 0);
    }

    #[test]
    fn first_minutes_of_the_process_have_no_spike() {
        let mut traffic = Traffic::new();
        assert_eq!(traffic.minutes(10, 1000), 0);
    }

    #[test]
    fn attack_remains_a_spike_for_an_hour_and_is_then_the_norm() {
        let mut traffic = Traffic::new();
        traffic.minutes(60, 1);
        traffic.minutes(1, 100);
        assert_eq!(traffic.minutes(59, 100), 59 * SLICES_PER_MINUTE);
        traffic.minutes(60, 100);
        assert_eq!(traffic.spike(), None);
    }

    #[test]
    fn country_without_requests_so_far_can_have_a_spike() {
        let (mut quiet, mut absent) = (SpikeDetector::new(Unseen::Quiet), SpikeDetector::new(Unseen::Absent));
        for _ in 0..20 * SLICES_PER_MINUTE {
            quiet.add_sample(1, std::iter::empty());
            absent.add_sample(1, std::iter::empty());
        }
        quiet.add_sample(1, [(&SUBJECT, 500)].into_iter());
        absent.add_sample(1, [(&SUBJECT, 500)].into_iter());
        assert_eq!(quiet.spikes().map(|(_, spike)| spike.last_minute).collect::<Vec<_>>(), [500]);
        assert_eq!(absent.spikes().count(), 0);
    }

    proptest! {
        #[test]
        fn steady_rejections_are_never_a_spike(rejections in 0..u64::from(u32::MAX), minutes in 1..200_usize) {
            prop_assert_eq!(Traffic::new().minutes(minutes, rejections), 0);
        }

        #[test]
        fn average_is_that_of_the_last_hour(slices in proptest::collection::vec(0..1000_u64, 13..2000)) {
            let mut history = RejectionHistory::new(0, 0);
            for rejections in &slices {
                // Without the freeze, which has a test of its own.
                history.spike_slices = 0;
                history.add_total(1, history.total + rejections);
            }
            let before = &slices[..slices.len() - SLICES_PER_MINUTE];
            let hour = &before[before.len() - history.slices_of_hour() as usize..];
            let average = hour.iter().sum::<u64>() as f64 * SLICES_PER_MINUTE as f64 / hour.len() as f64;
            prop_assert!((history.average() - average).abs() < 1e-6, "{} {average}", history.average());
            prop_assert!(before.len() <= hour.len() || hour.len() > 59 * SLICES_PER_MINUTE);
        }

        #[test]
        fn totals_of_any_size_and_order_do_not_panic(totals in proptest::collection::vec(any::<u64>(), 0..100)) {
            let mut detector = SpikeDetector::new(Unseen::Quiet);
            for total in totals {
                detector.add_sample(1, [(&SUBJECT, total)].into_iter());
                let _ = detector.spikes().count();
            }
        }
    }
}
