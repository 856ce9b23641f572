//! Memory for calls that are being accepted: their bodies while they arrive, then their encoded copies until the store
//! has responded. It is bounded for the process, and shared fairly: while it is scarce, a client has at most an eighth.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum bytes in this process.
const MAX_BYTES: usize = 64 << 20;
/// Maximum bytes of one client if more than half of all are in use.
const MAX_CLIENT_BYTES: usize = MAX_BYTES / 8;

/// Bytes in use.
#[derive(Debug, Default)]
pub(super) struct BodyBudget(Mutex<BudgetUse>);

#[derive(Debug, Default)]
struct BudgetUse {
    total: usize,
    /// By client; only those that use some.
    clients: BTreeMap<IpAddr, usize>,
}

/// Bytes that one call uses. They are released when it is dropped.
#[derive(Debug)]
pub struct BodyMemory {
    budget: Arc<BodyBudget>,
    client: IpAddr,
    bytes: usize,
}

impl BodyMemory {
    pub(super) const fn new(budget: Arc<BodyBudget>, client: IpAddr) -> Self {
        Self { budget, client, bytes: 0 }
    }

    /// Reserves memory so that the call has at least `bytes`. Returns `false` if too many calls are being accepted.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let added = bytes.saturating_sub(self.bytes);
        if added == 0 {
            return true;
        }
        let mut current = self.budget.0.lock();
        let total = current.total.saturating_add(added);
        let of_client = current.clients.get(&self.client).copied().unwrap_or_default().saturating_add(added);
        if total > MAX_BYTES || (total > MAX_BYTES / 2 && of_client > MAX_CLIENT_BYTES) {
            return false;
        }
        current.total = total;
        current.clients.insert(self.client, of_client);
        self.bytes = bytes;
        true
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut current = self.budget.0.lock();
        current.total = current.total.saturating_sub(self.bytes);
        let left = current.clients.get(&self.client).copied().unwrap_or_default().saturating_sub(self.bytes);
        if left == 0 {
            current.clients.remove(&self.client);
        } else {
            current.clients.insert(self.client, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn client(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    #[test]
    fn one_client_leaves_half_of_the_memory_to_others() {
        let budget = Arc::new(BodyBudget::default());
        let mut greedy = BodyMemory::new(Arc::clone(&budget), client(1));
        assert!(greedy.grow_to(32 * MIB) && greedy.grow_to(MIB), "what is there is enough");
        assert!(!greedy.grow_to(32 * MIB + 1));
        let others: Vec<_> =
            (2..6).map(|number| BodyMemory::new(Arc::clone(&budget), client(number))).collect();
        let grown: Vec<_> = others.into_iter().map(|mut memory| (memory.grow_to(8 * MIB), memory)).collect();
        assert!(grown.iter().all(|(is_grown, _)| *is_grown));
        let mut late = BodyMemory::new(Arc::clone(&budget), client(9));
        assert!(!late.grow_to(1), "all is in use");
        drop(grown);
        assert!(late.grow_to(8 * MIB) && !late.grow_to(8 * MIB + 1));
    }

    #[test]
    fn released_memory_leaves_no_trace() {
        let budget = Arc::new(BodyBudget::default());
        let mut first = BodyMemory::new(Arc::clone(&budget), client(1));
        let mut second = BodyMemory::new(Arc::clone(&budget), client(1));
        assert!(first.grow_to(1) && second.grow_to(2));
        drop(first);
        assert_eq!(budget.0.lock().total, 2);
        drop(second);
        let current = budget.0.lock();
        assert_eq!((current.total, current.clients.len()), (0, 0));
    }
}
