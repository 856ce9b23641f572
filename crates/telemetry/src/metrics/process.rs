//! Process metrics from `/proc/self`; none on systems without it.

use std::fs;
use std::time::Duration;

/// Clock ticks per second in `/proc/self/stat`: the kernel's `USER_HZ`, which is 100 on every Linux architecture that
/// Rust supports, regardless of the kernel's tick rate.
const TICKS_PER_SECOND: u64 = 100;

/// The metrics that Prometheus client libraries report for every process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessStats {
    pub(super) resident_bytes: Option<u64>,
    pub(super) cpu_time: Option<Duration>,
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
}

impl ProcessStats {
    /// Reads the current values.
    pub(super) fn read() -> Self {
        let file = |name| fs::read_to_string(name).unwrap_or_default();
        Self {
            resident_bytes: parse_resident_memory(&file("/proc/self/status")),
            cpu_time: parse_cpu_time(&file("/proc/self/stat")),
            // One of them is the directory being read.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1)),
            max_fds: parse_max_fds(&file("/proc/self/limits")),
        }
    }
}

/// Returns the resident memory in bytes; `None` if the kernel does not report it.
pub fn resident_memory() -> Option<u64> {
    parse_resident_memory(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse_resident_memory(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Sums fields 14 and 15. They are counted from the last parenthesis, because the second field is the program's name,
/// which may contain spaces and parentheses (proc(5)).
fn parse_cpu_time(stat: &str) -> Option<Duration> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let total = ticks()?.saturating_add(ticks()?);
    Some(Duration::from_millis(total.saturating_mul(1000 / TICKS_PER_SECOND)))
}

fn parse_max_fds(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_a_process_name_with_parentheses() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3 0 99";
        assert_eq!(parse_cpu_time(stat), Some(Duration::from_secs(2)));
    }

    #[test]
    fn missing_process_stats_are_none() {
        assert_eq!(parse_resident_memory("Name:\tweir\n"), None);
        assert_eq!(parse_cpu_time(""), None);
        assert_eq!(
            parse_max_fds("Max open files            unlimited            unlimited            files"),
            None
        );
    }

    #[test]
    fn process_stats_are_read_from_proc() {
        assert_eq!(parse_resident_memory("VmRSS:\t    2048 kB\n"), Some(2 << 20));
        let process = ProcessStats::read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 16), "{process:?}");
        assert!(process.open_fds.is_some_and(|fds| fds >= 3), "{process:?}");
        assert!(process.cpu_time.is_some(), "{process:?}");
    }
}
