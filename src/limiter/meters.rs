//! Which limits exist, told apart by lineage so that their counters outlive a reload.

use std::collections::HashMap;

use super::key::{KeyHash, KeyHasher};
use super::quota::Quota;
use super::store::{MeterId, Quotas};

/// The identity of a limit across reloads: its rule's name, what the rule counts apart, and which of the
/// rule's limits it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lineage {
    /// The rule's name.
    pub rule: Box<str>,
    /// The rule's key, as text.
    pub key: Box<str>,
    /// Position among the rule's limits.
    pub ordinal: u16,
}

/// A limit to be installed.
#[derive(Clone, Debug)]
pub struct MeterSpec {
    /// Whose counters it continues.
    pub lineage: Lineage,
    /// What it allows from now on.
    pub quota: Quota,
}

/// A limit as requests name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Which limit.
    pub id: MeterId,
    pub(super) salt: KeyHash,
}

/// The limits known, by lineage.
#[derive(Debug, Default)]
pub(super) struct Meters {
    known: HashMap<Lineage, Meter>,
    quotas: Vec<Option<Quota>>,
    free: Vec<u32>,
}

impl Meters {
    /// Adds or updates a meter per spec, in their order.
    pub(super) fn install(&mut self, specs: &[MeterSpec], hasher: KeyHasher) -> Vec<Meter> {
        specs
            .iter()
            .map(|spec| {
                let meter = match self.known.get(&spec.lineage) {
                    Some(meter) => *meter,
                    None => self.add(&spec.lineage, hasher),
                };
                self.quotas[meter.id.0 as usize] = Some(spec.quota);
                meter
            })
            .collect()
    }

    /// Forgets all but `meters`; whether there was anything to forget.
    pub(super) fn retire_others(&mut self, meters: &[Meter]) -> bool {
        let mut keep = vec![false; self.quotas.len()];
        for meter in meters {
            keep[meter.id.0 as usize] = true;
        }
        let before = self.known.len();
        self.known.retain(|_, meter| keep[meter.id.0 as usize]);
        for (index, quota) in self.quotas.iter_mut().enumerate() {
            if !keep[index] && quota.take().is_some() {
                self.free.push(index as u32);
            }
        }
        self.known.len() < before
    }

    /// The quotas as a table for the shards.
    pub(super) fn quotas(&self) -> Quotas {
        Quotas::new(&self.quotas)
    }

    fn add(&mut self, lineage: &Lineage, hasher: KeyHasher) -> Meter {
        let id = MeterId(self.free.pop().unwrap_or_else(|| {
            self.quotas.push(None);
            (self.quotas.len() - 1) as u32
        }));
        let meter = Meter { id, salt: salt(lineage, hasher) };
        self.known.insert(lineage.clone(), meter);
        meter
    }
}

/// Sets the counters of one limit apart from all others that have the same key.
fn salt(lineage: &Lineage, hasher: KeyHasher) -> KeyHash {
    let mut encoded = Vec::with_capacity(lineage.rule.len() + lineage.key.len() + 16);
    for part in [&lineage.rule, &lineage.key] {
        encoded.extend_from_slice(&(part.len() as u64).to_le_bytes());
        encoded.extend_from_slice(part.as_bytes());
    }
    encoded.extend_from_slice(&lineage.ordinal.to_le_bytes());
    hasher.hash(&encoded)
}
