//! The process's resources: file descriptors, available memory and used memory.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::overload::OverloadManager;
use crate::telemetry::metrics::resident_memory;

/// Interval between checks of memory use; memory does not grow by much in less time.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Memory limit of the container, for both versions of cgroups.
const MEMORY_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Raises the limit of file descriptors to its maximum and returns the result. The lower initial limit exists
/// for programs that use `select`.
pub(super) fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let current = getrlimit(Resource::Nofile).current;
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

/// Returns the memory of the container, or else of the machine, in bytes.
pub(super) fn available_memory() -> u64 {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let machine = parse_total_memory(&read("/proc/meminfo")).unwrap_or(u64::MAX);
    let limits = MEMORY_LIMITS.iter().filter_map(|file| read(file).trim().parse::<u64>().ok());
    limits.fold(machine, u64::min)
}

fn parse_total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Watches memory use for as long as it is polled.
pub(super) async fn watch_memory(overload: &OverloadManager) {
    if !overload.limits_memory() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(bytes) = resident_memory() else { continue };
        match overload.record_memory(bytes) {
            Some(true) => tracing::warn!(bytes, "memory is low: shedding requests"),
            Some(false) => tracing::info!(bytes, "memory is no longer low"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_and_memory_limits_are_read_from_the_system() {
        assert!(raise_descriptor_limit() >= 64);
        assert!(available_memory() > 1 << 20 && available_memory() < u64::MAX);
        assert_eq!(parse_total_memory("MemFree: 1 kB\nMemTotal:    2 kB\n"), Some(2048));
    }
}
