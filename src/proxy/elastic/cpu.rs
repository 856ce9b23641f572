//! CPU pressure: the share of time in which tasks wait for a CPU, as measured by the kernel.
//!
//! Read for the container if there is one with cgroups version 2, otherwise for the machine. The sources are pressure
//! stall information (<https://docs.kernel.org/accounting/psi.html>) and the periods in which the container's CPU quota
//! was used up. Totals are read instead of the kernel's averages, which span ten seconds or more.

use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_limiter::timestamp::Timestamp;

const CGROUPS: &str = "/sys/fs/cgroup";
const MACHINE_PRESSURE: &str = "/proc/pressure/cpu";

/// Files to read, and the previous reading.
#[derive(Debug, Default)]
pub(super) struct CpuPressure {
    pressure: Option<PathBuf>,
    stat: Option<PathBuf>,
    before: Option<(Timestamp, CpuCounters)>,
}

/// Counts read from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuCounters {
    /// Time in which at least one task waited for a CPU.
    waited: Option<Duration>,
    /// Periods of the quota, and those in which the container was throttled.
    periods: Option<(u64, u64)>,
}

impl CpuPressure {
    /// Finds the files of the current container or of the machine.
    pub(super) fn find() -> Self {
        let own = read(Path::new("/proc/self/cgroup"));
        let own =
            own.lines().find_map(|line| line.strip_prefix("0::/")).map(|own| Path::new(CGROUPS).join(own));
        // A container with its own cgroup namespace sees its cgroup as the root.
        let groups = || own.iter().cloned().chain([PathBuf::from(CGROUPS)]);
        let file = |name: &str| groups().map(|group| group.join(name)).find(|file| !read(file).is_empty());
        let of_the_machine = || Some(PathBuf::from(MACHINE_PRESSURE)).filter(|file| !read(file).is_empty());
        Self { pressure: file("cpu.pressure").or_else(of_the_machine), stat: file("cpu.stat"), before: None }
    }

    /// Returns the share of time since the last call in which tasks waited, from 0 to 1. `None` on the first call, or
    /// if the kernel provides no data.
    pub(super) fn share_waited(&mut self, now: Timestamp) -> Option<f64> {
        let counts = CpuCounters {
            waited: self.pressure.as_deref().and_then(|file| waited(&read(file))),
            periods: self.stat.as_deref().and_then(|file| periods(&read(file))),
        };
        let (at, before) = self.before.replace((now, counts))?;
        counts.share_since(before, now.since(at))
    }
}

impl CpuCounters {
    fn share_since(self, before: Self, elapsed: Duration) -> Option<f64> {
        let waited =
            self.waited.zip(before.waited).filter(|_| !elapsed.is_zero()).map(|(now, before)| {
                (now.saturating_sub(before).as_secs_f64() / elapsed.as_secs_f64()).min(1.0)
            });
        let throttled = self.periods.zip(before.periods).and_then(|((all, throttled), before)| {
            let (all, throttled) = (all.saturating_sub(before.0), throttled.saturating_sub(before.1));
            (all > 0).then(|| (throttled as f64 / all as f64).min(1.0))
        });
        waited.into_iter().chain(throttled).reduce(f64::max)
    }
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Parses a line such as `some avg10=0.00 avg60=0.00 avg300=0.00 total=187963935`, with the total in microseconds.
fn waited(pressure: &str) -> Option<Duration> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|field| field.strip_prefix("total="))?;
    total.trim().parse().ok().map(Duration::from_micros)
}

/// Parses lines such as `nr_periods 120` and `nr_throttled 3`; `None` without a quota.
fn periods(stat: &str) -> Option<(u64, u64)> {
    let number = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
    let periods = number("nr_periods ").filter(|periods| *periods > 0)?;
    Some((periods, number("nr_throttled ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRESSURE: &str = "some avg10=7.52 avg60=10.51 avg300=25.69 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";

    #[test]
    fn cgroup_pressure_and_cpu_stat_are_parsed() {
        assert_eq!(waited(PRESSURE), Some(Duration::from_millis(1500)));
        assert_eq!(waited(""), None);
        let stat = "usage_usec 5\nnr_periods 120\nnr_throttled 30\nthrottled_usec 77\n";
        assert_eq!(periods(stat), Some((120, 30)));
        assert_eq!(periods("usage_usec 5\nnr_periods 0\nnr_throttled 0\n"), None, "no quota");
        assert_eq!(periods("usage_usec 5\n"), None);
    }

    #[test]
    fn cpu_load_is_the_higher_of_waiting_and_throttling() {
        let counts =
            |waited: u64, periods| CpuCounters { waited: Some(Duration::from_millis(waited)), periods };
        let second = Duration::from_secs(1);
        let share = |now: CpuCounters, before| now.share_since(before, second);
        assert_eq!(share(counts(1500, None), counts(1250, None)), Some(0.25));
        assert_eq!(share(counts(1500, Some((20, 8))), counts(1250, Some((10, 0)))), Some(0.8));
        assert_eq!(share(counts(9000, None), counts(0, None)), Some(1.0));
        assert_eq!(share(counts(0, Some((10, 0))), counts(9, Some((10, 0)))), Some(0.0));
        assert_eq!(CpuCounters::default().share_since(CpuCounters::default(), second), None);
        assert_eq!(counts(1, None).share_since(counts(0, None), Duration::ZERO), None);
    }
}
