//! Processor time of a thread.

/// Returns the processor time of this thread in nanoseconds. On a shared machine this is more accurate than a clock,
/// which also counts the time that the thread waits for a processor. It does not count the wait for a lock.
pub(crate) fn thread_cpu_nanos() -> u64 {
    // Yielding makes the kernel update the processor time, which otherwise lags by up to one timer tick.
    std::thread::yield_now();
    let account = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    account.split(' ').next().and_then(|nanos| nanos.parse().ok()).expect("CPU time of the thread in /proc")
}
