//! The process's resources: file descriptors, available memory and used memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use weir_http::http1::splice;
use weir_http::unsent;
use weir_limiter::Limiter;
use weir_net::overload::{AvailableMemory, OverloadManager, OverloadSettings};
use weir_telemetry::metrics::resident_memory;

/// Interval between checks of memory use; memory does not grow by much in less time.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Control groups of version 2 and of the memory controller of version 1: where they are mounted, and the file with the
/// limit.
const CONTROL_GROUPS: [(&str, &str); 2] =
    [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")];

/// Raises the limit of file descriptors to its maximum and returns the result. The lower initial limit exists
/// for programs that use `select`.
pub(super) fn raise_descriptor_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let current = getrlimit(Resource::Nofile).current;
    current.and_then(|current| usize::try_from(current).ok()).unwrap_or(usize::MAX)
}

/// Returns the memory of the container or service, or else of the machine.
pub(super) fn available_memory() -> AvailableMemory {
    let read = |file: &Path| fs::read_to_string(file).unwrap_or_default();
    let machine = parse_total_memory(&read(Path::new("/proc/meminfo"))).unwrap_or(u64::MAX);
    let files = limit_files(&read(Path::new("/proc/self/cgroup")));
    let limits = files.iter().filter_map(|file| read(file).trim().parse::<u64>().ok());
    let limit = limits.fold(u64::MAX, u64::min);
    // Without a limit, version 1 has a number that no machine reaches.
    AvailableMemory { bytes: limit.min(machine), is_limit: limit < machine }
}

/// Returns the files with the limits of the process's control group and of all groups above it, of which the smallest
/// applies. In a container, the group of the process is the topmost that it sees.
fn limit_files(control_groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in control_groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => 0,
            _ if controllers.split(',').any(|one| one == "memory") => 1,
            _ => continue,
        };
        let (mount, limit) = CONTROL_GROUPS[version];
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|group| Path::new(mount).join(group).join(limit)));
    }
    files
}

fn parse_total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Applies the settings of overload protection to the whole process.
pub(super) fn apply(settings: &OverloadSettings, overload: &OverloadManager, limiter: &Limiter) {
    let default_budget = || overload.available_memory().default_budget();
    overload.apply(settings);
    splice::set_max_pipes(overload.max_pipes());
    unsent::set_max(settings.unsent.unwrap_or_else(default_budget));
    limiter.queues().memory().set_max(settings.waiting.unwrap_or_else(default_budget));
    tracing::info!(connections = overload.max_connections(), "maximum number of downstream connections");
}

/// Watches memory use for as long as it is polled.
pub(super) async fn watch_memory(overload: &OverloadManager) {
    loop {
        overload.until_memory_limited().await;
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(bytes) = resident_memory() else { continue };
        match overload.record_memory(bytes) {
            Some(true) => tracing::warn!(bytes, "memory is low: shedding requests, and /ready fails"),
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
        assert!(available_memory().bytes > 1 << 20 && available_memory().bytes < u64::MAX);
        assert_eq!(parse_total_memory("MemFree: 1 kB\nMemTotal:    2 kB\n"), Some(2048));
    }

    #[test]
    fn limits_of_all_control_groups_above_the_process_apply() {
        let files = limit_files("4:cpu,memory:/pods/a\n3:cpuset:/x\n0::/system.slice/weir.service\nx\n");
        let expected = [
            "/sys/fs/cgroup/memory/pods/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/pods/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/system.slice/weir.service/memory.max",
            "/sys/fs/cgroup/system.slice/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files, expected.map(PathBuf::from));
        assert_eq!(limit_files("0::/\n"), ["/sys/fs/cgroup/memory.max"].map(PathBuf::from));
    }
}
