//! Which limits exist, told apart by lineage so that their counters outlive a reload.

use std::collections::HashMap;

use super::algorithm::conversion::OnChange;
use super::claims::Sharing;
use super::key::{KeyHash, KeyHasher};
use super::quota::Quota;
use super::store::{MeterId, Quotas, Succession};
use super::timestamp::Timestamp;

/// The identity of a rule's limits across reloads: its name and what it counts apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    /// The rule's name.
    pub rule: Box<str>,
    /// The rule's key, as text.
    pub key: Box<str>,
}

/// A limit to be installed.
#[derive(Clone, Debug)]
pub struct MeterSpec {
    /// Whose counters it continues.
    pub lineage: Lineage,
    /// What it allows from now on.
    pub quota: Quota,
    /// What becomes of counters that were written under another quota.
    pub on_change: OnChange,
    /// How it is shared, if it is counted in the store.
    pub sharing: Option<Sharing>,
}

/// A limit as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Which limit.
    pub id: MeterId,
    pub(super) salt: KeyHash,
}

impl Meter {
    /// The same for keys that are set apart from those of other limits by themselves.
    pub const fn unsalted(self) -> Self {
        Self { salt: KeyHash::NONE, ..self }
    }
}

/// A limit that is known, for those of its rule that come after it.
#[derive(Clone, Copy, Debug)]
struct Known {
    meter: Meter,
    /// Sets its salt apart from those of its rule's other limits.
    serial: u16,
    /// When it was last installed.
    generation: u64,
}

/// A limit as another process would have to know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a> {
    pub(super) id: MeterId,
    pub(super) rule: &'a str,
    pub(super) key: &'a str,
    pub(super) serial: u16,
    pub(super) quota: Quota,
}

/// The limits known, by rule and key.
#[derive(Debug, Default)]
pub(super) struct Meters {
    known: HashMap<(Box<str>, Box<str>), Vec<Known>>,
    quotas: Vec<Option<Quota>>,
    /// Beside `quotas`.
    successions: Vec<Succession>,
    free: Vec<u32>,
    /// Counts installations.
    generation: u64,
}

impl Meters {
    /// Adds or updates a meter per spec, in their order.
    ///
    /// A limit of a rule continues the one with the same period, so that a limit added before it or taken away
    /// does not hand its counters to another; one whose period is new continues what the installation before had
    /// and this one has not, in order. Rates, permits and bans never continue each other.
    ///
    /// Of the hashers the first is for what is counted here, the other for what instances count together.
    pub(super) fn install(
        &mut self,
        specs: &[MeterSpec],
        hashers: (KeyHasher, KeyHasher),
        now: Timestamp,
    ) -> Vec<Meter> {
        let of_one_rule = |a: &MeterSpec, b: &MeterSpec| {
            (&a.lineage.rule, &a.lineage.key) == (&b.lineage.rule, &b.lineage.key)
        };
        self.generation += 1;
        specs.chunk_by(of_one_rule).flat_map(|group| self.install_rule(group, hashers, now)).collect()
    }

    fn install_rule(
        &mut self,
        group: &[MeterSpec],
        (hasher, fleet): (KeyHasher, KeyHasher),
        now: Timestamp,
    ) -> Vec<Meter> {
        let Some(first) = group.first() else { return Vec::new() };
        let name = (first.lineage.rule.clone(), first.lineage.key.clone());
        let mut kept = self.known.remove(&name).unwrap_or_default();
        let mut left = kept.clone();
        let mut continued: Vec<Option<Known>> = vec![None; group.len()];
        for same_period in [true, false] {
            for (spec, place) in group.iter().zip(&mut continued).filter(|(_, place)| place.is_none()) {
                let fits = |known: &Known| self.continues(known, spec, same_period);
                *place = left.iter().position(fits).map(|position| left.remove(position));
            }
        }
        let mut meters = Vec::with_capacity(group.len());
        for (position, (spec, continued)) in group.iter().zip(continued).enumerate() {
            let mut known = continued.unwrap_or_else(|| {
                let serial = (0..).find(|serial| kept.iter().all(|other| other.serial != *serial));
                let known = self.add(&name, serial.unwrap_or(u16::MAX), hasher);
                kept.push(known);
                known
            });
            let id = known.meter.id;
            if spec.sharing.is_some() {
                known.meter.salt = shared_salt(&group[..=position], fleet);
            }
            for kept in kept.iter_mut().filter(|kept| kept.meter.id == id) {
                *kept = Known { generation: self.generation, ..known };
            }
            let index = known.meter.id.0 as usize;
            self.successions[index] = self.succession(index, spec, now);
            self.quotas[index] = Some(spec.quota);
            meters.push(known.meter);
        }
        self.known.insert(name, kept);
        meters
    }

    /// Forgets all but `meters`; whether there was anything to forget.
    pub(super) fn retire_others(&mut self, meters: &[Meter]) -> bool {
        let mut keep = vec![false; self.quotas.len()];
        for meter in meters {
            keep[meter.id.0 as usize] = true;
        }
        self.known.retain(|_, of_rule| {
            of_rule.retain(|known| keep[known.meter.id.0 as usize]);
            !of_rule.is_empty()
        });
        let mut retired = false;
        for (index, quota) in self.quotas.iter_mut().enumerate() {
            if !keep[index] && quota.take().is_some() {
                self.free.push(index as u32);
                retired = true;
            }
        }
        retired
    }

    /// Every limit that there is; those of a rule in their order.
    pub(super) fn all(&self) -> impl Iterator<Item = Named<'_>> {
        let limits = self.known.iter().flat_map(|(name, known)| known.iter().map(move |known| (name, known)));
        limits.filter_map(|((rule, key), known)| {
            let quota = self.quotas.get(known.meter.id.0 as usize)?.as_ref()?;
            Some(Named { id: known.meter.id, rule, key, serial: known.serial, quota: *quota })
        })
    }

    /// Takes over a limit that another process had; `None` if it is known already.
    pub(super) fn put_back(
        &mut self,
        (rule, key): (&str, &str),
        serial: u16,
        quota: Quota,
        hasher: KeyHasher,
    ) -> Option<MeterId> {
        let name = (rule.into(), key.into());
        if self.known.get(&name).is_some_and(|known| known.iter().any(|known| known.serial == serial)) {
            return None;
        }
        let known = self.add(&name, serial, hasher);
        let id = known.meter.id;
        self.quotas[id.0 as usize] = Some(quota);
        self.known.entry(name).or_default().push(known);
        Some(id)
    }

    /// The quotas as a table for the shards.
    pub(super) fn quotas(&self) -> Quotas {
        Quotas::following(&self.quotas, &self.successions)
    }

    fn succession(
        &self,
        index: usize,
        MeterSpec { quota, on_change, sharing, .. }: &MeterSpec,
        now: Timestamp,
    ) -> Succession {
        let goes_on = match &self.quotas[index] {
            Some(before) => {
                before == quota || (*on_change == OnChange::Keep && before.gives_back_like(quota))
            }
            None => false,
        };
        let kept_since = if goes_on { self.successions[index].kept_since } else { now };
        Succession { on_change: *on_change, kept_since, sharing: *sharing }
    }

    fn continues(&self, known: &Known, spec: &MeterSpec, same_period: bool) -> bool {
        let Some(Some(quota)) = self.quotas.get(known.meter.id.0 as usize) else { return false };
        let period = quota.limit().period == spec.quota.limit().period;
        // What went before that is only still there for requests under way.
        let recent = known.generation + 1 == self.generation;
        quota.algorithm().counts() == spec.quota.algorithm().counts()
            && if same_period { period } else { recent }
    }

    fn add(&mut self, (rule, key): &(Box<str>, Box<str>), serial: u16, hasher: KeyHasher) -> Known {
        let id = MeterId(self.free.pop().unwrap_or_else(|| {
            self.quotas.push(None);
            self.successions.push(Succession::default());
            (self.quotas.len() - 1) as u32
        }));
        Known {
            meter: Meter { id, salt: salt([rule, key], serial, hasher) },
            serial,
            generation: self.generation,
        }
    }
}

/// Sets the counters of one limit apart from all others that have the same key.
fn salt(name: [&str; 2], serial: u16, hasher: KeyHasher) -> KeyHash {
    let mut encoded = Vec::new();
    for part in name {
        encoded.extend_from_slice(&(part.len() as u64).to_le_bytes());
        encoded.extend_from_slice(part.as_bytes());
    }
    encoded.extend_from_slice(&serial.to_le_bytes());
    hasher.hash(&encoded)
}

/// The salt of the last of a rule's limits, which is shared. All instances have to come to the same, whatever limits the rule
/// had before: it goes by what the limit is, and by how many like it come before.
fn shared_salt(limits: &[MeterSpec], fleet: KeyHasher) -> KeyHash {
    let kind = |spec: &MeterSpec| (spec.quota.algorithm(), spec.quota.window());
    let Some(spec) = limits.last() else { return fleet.hash(b"") };
    let before = limits.iter().filter(|other| other.sharing.is_some() && kind(other) == kind(spec)).count();
    let kind = format!("{}/{}", spec.quota.algorithm(), spec.quota.window().nanos());
    let name = format!("{} {} {kind}", spec.lineage.rule.len(), spec.lineage.rule);
    salt([&name, &spec.lineage.key], u16::try_from(before).unwrap_or(u16::MAX), fleet)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limiter::algorithm::Algorithm;
    use crate::limiter::quota::{Limit, Period, Unit};

    fn specs(limits: &[(u32, Unit)]) -> Vec<MeterSpec> {
        limits
            .iter()
            .map(|(count, unit)| {
                let limit = Limit::new(NonZeroU32::new(*count).unwrap(), Period::one(*unit));
                MeterSpec {
                    lineage: Lineage { rule: "rule".into(), key: "[]".into() },
                    quota: Quota::new(Algorithm::Gcra, limit, None).unwrap(),
                    on_change: OnChange::Keep,
                    sharing: None,
                }
            })
            .collect()
    }

    fn install(meters: &mut Meters, specs: &[MeterSpec]) -> Vec<Meter> {
        meters.install(specs, (KeyHasher::new([1, 2]), KeyHasher::new([3, 4])), Timestamp::default())
    }

    #[test]
    fn a_limit_that_stays_keeps_its_meter_when_others_come_and_go() {
        let mut meters = Meters::default();
        let both = install(&mut meters, &specs(&[(10, Unit::Second), (1000, Unit::Day)]));
        let day = install(&mut meters, &specs(&[(1000, Unit::Day)]));
        assert_eq!(day, both[1..]);
        assert!(meters.retire_others(&day));
        let again = install(&mut meters, &specs(&[(5, Unit::Minute), (2000, Unit::Day)]));
        assert_eq!(again[1], both[1]);
        assert_ne!(again[0].salt, again[1].salt);
    }

    #[test]
    fn a_limit_whose_period_changes_keeps_its_meter() {
        let mut meters = Meters::default();
        let before = install(&mut meters, &specs(&[(10, Unit::Hour)]));
        assert_eq!(install(&mut meters, &specs(&[(10, Unit::Day)])), before);
        assert!(!meters.retire_others(&before));
    }

    #[test]
    fn a_limit_that_went_does_not_hand_its_counters_to_another_period() {
        let mut meters = Meters::default();
        let before = install(&mut meters, &specs(&[(10, Unit::Hour), (99, Unit::Day)]));
        assert_eq!(install(&mut meters, &specs(&[(10, Unit::Hour)])), before[..1]);
        let after = install(&mut meters, &specs(&[(10, Unit::Hour), (5, Unit::Week)]));
        assert!(after[0] == before[0] && after[1] != before[1]);
        // The same limit again is the same limit.
        assert_eq!(install(&mut meters, &specs(&[(10, Unit::Hour), (9, Unit::Day)])), before);
    }

    #[test]
    fn rates_permits_and_bans_never_continue_each_other() {
        let mut meters = Meters::default();
        let rate = install(&mut meters, &specs(&[(10, Unit::Second)]))[0];
        let spec = |quota| [MeterSpec { quota, ..specs(&[(10, Unit::Second)]).remove(0) }];
        let permits = install(&mut meters, &spec(Quota::in_flight(NonZeroU32::MIN)))[0];
        let (first, most) = (std::time::Duration::from_secs(1), std::time::Duration::from_secs(1));
        let ban = install(&mut meters, &spec(Quota::ban(crate::limiter::quota::Ban { first, most })))[0];
        assert!(rate != permits && permits != ban && ban != rate);
        assert_eq!(install(&mut meters, &spec(Quota::in_flight(NonZeroU32::MAX)))[0], permits);
    }
}
