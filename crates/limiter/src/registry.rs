//! Registry of the installed limits. A limit's identity decides which counters it keeps across reloads.

use std::collections::HashMap;

use super::algorithm::conversion::OnChange;
use super::key::{KeyHash, KeyHasher};
use super::leases::LeasePolicy;
use super::quota::Quota;
use super::table::{LimitId, QuotaTable, QuotaTransition};
use super::timestamp::Timestamp;

/// Identity of a rule's limits across reloads: the rule's name and key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LimitIdentity {
    /// The rule's name.
    pub rule: Box<str>,
    /// The rule's key, as text.
    pub key: Box<str>,
}

/// A limit to install.
#[derive(Clone, Debug)]
pub struct LimitSpec {
    /// Rule and key. A limit takes over the counters of an installed one with the same identity.
    pub identity: LimitIdentity,
    /// What the limit allows from now on.
    pub quota: Quota,
    /// What happens to counters that were written under another quota.
    pub on_change: OnChange,
    /// How the limit is shared, if the store counts it.
    pub lease_policy: Option<LeasePolicy>,
}

/// Handle of an installed limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitHandle {
    /// Id of the limit in this process; others have other ids.
    pub id: LimitId,
    pub(super) salt: KeyHash,
}

impl LimitHandle {
    /// Returns this handle for keys that are already distinct from those of other limits.
    pub const fn unsalted(self) -> Self {
        Self { salt: KeyHash::NO_SALT, ..self }
    }

    /// Returns the handle of a limit for keys that are fingerprints.
    pub(super) const fn of_fingerprints(id: LimitId) -> Self {
        Self { id, salt: KeyHash::NO_SALT }
    }
}

/// An installed limit.
#[derive(Clone, Copy, Debug)]
struct RegisteredLimit {
    handle: LimitHandle,
    /// Distinguishes the salt from those of the rule's other limits.
    serial: u16,
    /// Generation that last installed it.
    generation: u64,
}

/// A limit with what another process needs to restore it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedLimit<'a> {
    pub(super) id: LimitId,
    pub(super) rule: &'a str,
    pub(super) key: &'a str,
    pub(super) serial: u16,
    pub(super) quota: Quota,
}

/// Installed limits, by rule and key.
#[derive(Debug, Default)]
pub(super) struct LimitRegistry {
    known: HashMap<LimitIdentity, Vec<RegisteredLimit>>,
    quotas: Vec<Option<Quota>>,
    /// Indexed as `quotas`.
    transitions: Vec<QuotaTransition>,
    free: Vec<u32>,
    /// Number of the current installation.
    generation: u64,
}

impl LimitRegistry {
    /// Installs `specs`; returns a handle for each, in their order.
    ///
    /// A limit of a rule keeps the counters of the previous limit with the same period, so that adding or removing
    /// another limit does not exchange counters. A limit with a new period keeps, in order, the counters of a limit
    /// that the previous installation had and this one has not. Rates, concurrency limits and bans never exchange
    /// counters.
    ///
    /// `hasher` is for local limits, `fleet_hasher` for limits that instances share.
    pub(super) fn install(
        &mut self,
        specs: &[LimitSpec],
        hasher: KeyHasher,
        fleet_hasher: KeyHasher,
        now: Timestamp,
    ) -> Vec<LimitHandle> {
        let same_rule = |a: &LimitSpec, b: &LimitSpec| {
            (&a.identity.rule, &a.identity.key) == (&b.identity.rule, &b.identity.key)
        };
        self.generation += 1;
        specs
            .chunk_by(same_rule)
            .flat_map(|group| self.install_rule(group, hasher, fleet_hasher, now))
            .collect()
    }

    fn install_rule(
        &mut self,
        group: &[LimitSpec],
        hasher: KeyHasher,
        fleet_hasher: KeyHasher,
        now: Timestamp,
    ) -> Vec<LimitHandle> {
        let Some(first) = group.first() else { return Vec::new() };
        let identity = first.identity.clone();
        let mut kept = self.known.remove(&identity).unwrap_or_default();
        // A limit that this installation has already returned is not that of another one.
        let mut left = kept.clone();
        left.retain(|known| known.generation != self.generation);
        let mut continued: Vec<Option<RegisteredLimit>> = vec![None; group.len()];
        for same_period in [true, false] {
            for (spec, known) in group.iter().zip(&mut continued).filter(|(_, known)| known.is_none()) {
                let fits = |known: &RegisteredLimit| self.continues(known, spec, same_period);
                *known = left.iter().position(fits).map(|position| left.remove(position));
            }
        }
        let mut handles = Vec::with_capacity(group.len());
        for (position, (spec, continued)) in group.iter().zip(continued).enumerate() {
            let mut known = continued.unwrap_or_else(|| {
                let serial = (0..).find(|serial| kept.iter().all(|other| other.serial != *serial));
                let known = self.add(&identity, serial.unwrap_or(u16::MAX), hasher);
                kept.push(known);
                known
            });
            let id = known.handle.id;
            if spec.lease_policy.is_some() {
                known.handle.salt = shared_salt(&group[..=position], fleet_hasher);
            }
            for kept in kept.iter_mut().filter(|kept| kept.handle.id == id) {
                *kept = RegisteredLimit { generation: self.generation, ..known };
            }
            let index = known.handle.id.0 as usize;
            self.transitions[index] = self.transition(index, spec, now);
            self.quotas[index] = Some(spec.quota);
            handles.push(known.handle);
        }
        self.known.insert(identity, kept);
        handles
    }

    /// Removes all limits except those of `handles`; returns whether there were others.
    pub(super) fn retire_others(&mut self, handles: &[LimitHandle]) -> bool {
        let mut keep = vec![false; self.quotas.len()];
        for handle in handles {
            keep[handle.id.0 as usize] = true;
        }
        self.known.retain(|_, limits| {
            limits.retain(|known| keep[known.handle.id.0 as usize]);
            !limits.is_empty()
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

    /// Iterates over all limits; those of a rule in their order.
    pub(super) fn all(&self) -> impl Iterator<Item = SavedLimit<'_>> {
        let limits = self.known.iter().flat_map(|(name, known)| known.iter().map(move |known| (name, known)));
        limits.filter_map(|(LimitIdentity { rule, key }, known)| {
            let quota = self.quotas.get(known.handle.id.0 as usize)?.as_ref()?;
            Some(SavedLimit { id: known.handle.id, rule, key, serial: known.serial, quota: *quota })
        })
    }

    /// Restores a limit of another process; `None` if it is already installed.
    pub(super) fn restore_limit(
        &mut self,
        identity: LimitIdentity,
        serial: u16,
        quota: Quota,
        hasher: KeyHasher,
    ) -> Option<LimitId> {
        if self.known.get(&identity).is_some_and(|known| known.iter().any(|known| known.serial == serial)) {
            return None;
        }
        let known = self.add(&identity, serial, hasher);
        let id = known.handle.id;
        self.quotas[id.0 as usize] = Some(quota);
        self.known.entry(identity).or_default().push(known);
        Some(id)
    }

    /// Returns the id of an installed limit; `None` if there is none with this serial.
    pub(super) fn id_of(&self, rule: &str, key: &str, serial: u16) -> Option<LimitId> {
        let identity = LimitIdentity { rule: rule.into(), key: key.into() };
        let known = self.known.get(&identity)?;
        known.iter().find(|known| known.serial == serial).map(|known| known.handle.id)
    }

    /// Returns the table of quotas for the shards.
    pub(super) fn quotas(&self) -> QuotaTable {
        QuotaTable::with_transitions(&self.quotas, &self.transitions)
    }

    fn transition(
        &self,
        index: usize,
        LimitSpec { quota, on_change, lease_policy: sharing, .. }: &LimitSpec,
        now: Timestamp,
    ) -> QuotaTransition {
        let goes_on = match &self.quotas[index] {
            Some(before) => {
                before == quota || (*on_change == OnChange::Keep && before.has_compatible_refunds(quota))
            }
            None => false,
        };
        let kept_since = if goes_on { self.transitions[index].refundable_since } else { now };
        QuotaTransition { on_change: *on_change, refundable_since: kept_since, lease_policy: *sharing }
    }

    fn continues(&self, known: &RegisteredLimit, spec: &LimitSpec, same_period: bool) -> bool {
        let Some(Some(quota)) = self.quotas.get(known.handle.id.0 as usize) else { return false };
        let period = quota.limit().period == spec.quota.limit().period;
        // Limits of older generations remain only for requests in flight.
        let recent = known.generation + 1 == self.generation;
        quota.algorithm().counter_kind() == spec.quota.algorithm().counter_kind()
            && if same_period { period } else { recent }
    }

    fn add(&mut self, identity: &LimitIdentity, serial: u16, hasher: KeyHasher) -> RegisteredLimit {
        let id = LimitId(self.free.pop().unwrap_or_else(|| {
            self.quotas.push(None);
            self.transitions.push(QuotaTransition::default());
            (self.quotas.len() - 1) as u32
        }));
        RegisteredLimit {
            handle: LimitHandle {
                id,
                salt: salt([&identity.rule, &identity.key], serial, hasher).in_few_shards(),
            },
            serial,
            generation: self.generation,
        }
    }
}

/// Returns the salt that separates the counters of one limit from those of other limits with the same key.
fn salt(name: [&str; 2], serial: u16, hasher: KeyHasher) -> KeyHash {
    let mut encoded = Vec::new();
    for part in name {
        encoded.extend_from_slice(&(part.len() as u64).to_le_bytes());
        encoded.extend_from_slice(part.as_bytes());
    }
    encoded.extend_from_slice(&serial.to_le_bytes());
    hasher.hash(&encoded)
}

/// Returns the salt of the last of a rule's limits, which is shared.
///
/// All instances must compute the same salt, whatever limits the rule had before. So it depends on the limit's kind and
/// on the number of limits of the same kind before it.
fn shared_salt(limits: &[LimitSpec], fleet: KeyHasher) -> KeyHash {
    // `60s` and `1min` are one kind, as in the text below.
    let kind = |spec: &LimitSpec| (spec.quota.algorithm(), spec.quota.window().nanos());
    let Some(spec) = limits.last() else { return fleet.hash(b"") };
    let before =
        limits.iter().filter(|other| other.lease_policy.is_some() && kind(other) == kind(spec)).count();
    let kind = format!("{}/{}", spec.quota.algorithm(), spec.quota.window().nanos());
    let name = format!("{} {} {kind}", spec.identity.rule.len(), spec.identity.rule);
    salt([&name, &spec.identity.key], u16::try_from(before).unwrap_or(u16::MAX), fleet)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::num::NonZeroU32;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::quota::{Limit, Period, TimeUnit};

    fn specs(limits: &[(u32, TimeUnit)]) -> Vec<LimitSpec> {
        limits
            .iter()
            .map(|(count, unit)| {
                let limit = Limit::new(NonZeroU32::new(*count).unwrap(), Period::one(*unit));
                LimitSpec {
                    identity: LimitIdentity { rule: "rule".into(), key: "[]".into() },
                    quota: Quota::new(Algorithm::Gcra, limit, None).unwrap(),
                    on_change: OnChange::Keep,
                    lease_policy: None,
                }
            })
            .collect()
    }

    fn install(registry: &mut LimitRegistry, specs: &[LimitSpec]) -> Vec<LimitHandle> {
        registry.install(specs, KeyHasher::new([1, 2]), KeyHasher::new([3, 4]), Timestamp::default())
    }

    #[test]
    fn limit_keeps_its_handle_when_others_are_added_or_removed() {
        let mut registry = LimitRegistry::default();
        let both = install(&mut registry, &specs(&[(10, TimeUnit::Second), (1000, TimeUnit::Day)]));
        let day = install(&mut registry, &specs(&[(1000, TimeUnit::Day)]));
        assert_eq!(day, both[1..]);
        assert!(registry.retire_others(&day));
        let again = install(&mut registry, &specs(&[(5, TimeUnit::Minute), (2000, TimeUnit::Day)]));
        assert_eq!(again[1], both[1]);
        assert_ne!(again[0].salt, again[1].salt);
    }

    #[test]
    fn counters_of_one_key_are_different_and_in_few_shards() {
        let spec = |number: u32| LimitSpec {
            identity: LimitIdentity { rule: number.to_string().into(), key: "[]".into() },
            ..specs(&[(1, TimeUnit::Second)]).remove(0)
        };
        let specs: Vec<_> = (0..200).map(spec).collect();
        let handles = install(&mut LimitRegistry::default(), &specs);
        let hasher = KeyHasher::new([1, 2]);
        let mut used = HashSet::new();
        for key in 0..500 {
            let key = hasher.hash_u32(key);
            let counters: HashSet<_> = handles.iter().map(|limit| key.salted(limit.salt).words()).collect();
            assert_eq!(counters.len(), handles.len());
            let shards: HashSet<_> = handles.iter().map(|limit| key.salted(limit.salt).shard(64)).collect();
            assert!(shards.len() <= 4, "{shards:?}");
            used.extend(shards);
        }
        assert_eq!(used.len(), 64, "all shards are used");
    }

    #[test]
    fn limits_that_are_not_in_a_row_have_different_handles() {
        let other = LimitSpec {
            identity: LimitIdentity { rule: "other".into(), key: "[]".into() },
            ..specs(&[(1, TimeUnit::Second)]).remove(0)
        };
        let mut apart = specs(&[(10, TimeUnit::Second), (20, TimeUnit::Second)]);
        apart.insert(1, other);
        let mut registry = LimitRegistry::default();
        let handles = install(&mut registry, &apart);
        assert_ne!(handles[0].id, handles[2].id);
        assert_ne!(handles[0].salt, handles[2].salt);
        assert_eq!(install(&mut registry, &apart), handles, "each keeps its own");
    }

    #[test]
    fn shared_limits_of_one_rule_have_different_salts() {
        let policy = LeasePolicy {
            is_exact: false,
            max_wait: Some(std::time::Duration::ZERO),
            priority: 0,
            is_max_min: false,
            has_parts: false,
        };
        let limit = |period| {
            let limit = Limit::new(NonZeroU32::new(10).unwrap(), period);
            let quota = Quota::new(Algorithm::Gcra, limit, None).unwrap().leased().unwrap();
            LimitSpec { quota, lease_policy: Some(policy), ..specs(&[(1, TimeUnit::Second)]).remove(0) }
        };
        let periods =
            [Period::new(NonZeroU32::new(60).unwrap(), TimeUnit::Second), Period::one(TimeUnit::Minute)];
        let handles = install(&mut LimitRegistry::default(), &periods.map(limit));
        assert_ne!(handles[0].salt, handles[1].salt);
    }

    #[test]
    fn limit_keeps_its_handle_when_its_period_changes() {
        let mut registry = LimitRegistry::default();
        let before = install(&mut registry, &specs(&[(10, TimeUnit::Hour)]));
        assert_eq!(install(&mut registry, &specs(&[(10, TimeUnit::Day)])), before);
        assert!(!registry.retire_others(&before));
    }

    #[test]
    fn removed_limit_does_not_pass_its_counters_to_another_period() {
        let mut registry = LimitRegistry::default();
        let before = install(&mut registry, &specs(&[(10, TimeUnit::Hour), (99, TimeUnit::Day)]));
        assert_eq!(install(&mut registry, &specs(&[(10, TimeUnit::Hour)])), before[..1]);
        let after = install(&mut registry, &specs(&[(10, TimeUnit::Hour), (5, TimeUnit::Week)]));
        assert!(after[0] == before[0] && after[1] != before[1]);
        // A limit that is installed again keeps its counters.
        assert_eq!(install(&mut registry, &specs(&[(10, TimeUnit::Hour), (9, TimeUnit::Day)])), before);
    }

    #[test]
    fn rate_limits_permits_and_bans_never_share_a_handle() {
        let mut registry = LimitRegistry::default();
        let rate = install(&mut registry, &specs(&[(10, TimeUnit::Second)]))[0];
        let spec = |quota| [LimitSpec { quota, ..specs(&[(10, TimeUnit::Second)]).remove(0) }];
        let permits = install(&mut registry, &spec(Quota::in_flight(NonZeroU32::MIN)))[0];
        let (first, most) = (std::time::Duration::from_secs(1), std::time::Duration::from_secs(1));
        let ban = install(
            &mut registry,
            &spec(Quota::ban(crate::quota::Ban { initial_duration: first, max_duration: most })),
        )[0];
        assert!(rate != permits && permits != ban && ban != rate);
        assert_eq!(install(&mut registry, &spec(Quota::in_flight(NonZeroU32::MAX)))[0], permits);
    }
}
