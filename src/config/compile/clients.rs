//! Limits for clients: of a listener's connections, and of the whole process.

use std::num::NonZeroUsize;

use super::endpoints::percent;
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::listener::ListenerLimits;
use crate::overload::{MemoryLimit, OverloadSettings};

/// Valid sizes of the header section, in bytes. A smaller maximum would reject what browsers send; a larger
/// one has no use.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 4 * 1024..=1024 * 1024;

/// Minimum of `memory`, in bytes. With less, every request would be shed.
const LEAST_MEMORY: u64 = 1024 * 1024;

/// Compiles the limits of a listener's connections and requests.
pub(super) fn limits(
    raw: Option<&raw::ListenerLimits>,
    at: At<'_>,
    report: &mut Report<'_>,
) -> ListenerLimits {
    let unsaid = raw::ListenerLimits::default();
    let raw = raw.unwrap_or(&unsaid);
    let at = at.key("header_size");
    let size = raw.header_size.as_ref().and_then(|size| report.take(at, parse::size(&size.0)));
    if let Some(size) = size.filter(|size| !HEADER_SIZES.contains(size)) {
        report.value(at, format!("expected a size from 4KiB to 1MiB, got {size} bytes"));
    }
    ListenerLimits {
        header_size: size.and_then(|size| u32::try_from(size).ok()).unwrap_or(defaults::HEADER_SIZE),
        headers: raw.headers.unwrap_or(defaults::MOST_HEADERS),
        streams: raw.streams.unwrap_or(defaults::MOST_STREAMS),
    }
}

/// Compiles the overload protection of the process.
pub(super) fn compile(raw: Option<&raw::Overload>, at: At<'_>, report: &mut Report<'_>) -> OverloadSettings {
    let Some(raw) = raw else { return OverloadSettings::default() };
    let connections = raw.connections.and_then(connections);
    if let (Some(most), Some(each)) = (connections, raw.connections_per_client)
        && most.get() < usize::try_from(each.get()).unwrap_or(usize::MAX)
    {
        let fault = format!("above `connections`, {each} > {most}");
        report.value(at.key("connections_per_client"), fault);
    }
    OverloadSettings {
        connections,
        connections_per_client: raw.connections_per_client,
        requests: raw.requests,
        memory: raw.memory.as_ref().and_then(|raw| memory(&raw.0, at.key("memory"), report)),
    }
}

/// Returns a number of connections; `None` for `auto`.
pub(super) fn connections(raw: raw::Connections) -> Option<NonZeroUsize> {
    match raw {
        raw::Connections::Count(count) => Some(count),
        raw::Connections::Auto(_) => None,
    }
}

fn memory(text: &str, at: At<'_>, report: &mut Report<'_>) -> Option<MemoryLimit> {
    if text.trim_end().ends_with('%') {
        let share = percent(Some(&raw::Percentage(text.to_owned())), 100, at, report);
        if share == 0 {
            report.value(at, "expected at least 1%, got 0%");
        }
        return Some(MemoryLimit::Percent(share));
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        let fault = Fault::new(format!("expected a size or a percentage, got {}", quoted(text)));
        report.value(at, fault.hint("such as `400MiB` or `90%`"));
        return None;
    }
    let bytes = report.take(at, parse::size(text))?;
    if bytes < LEAST_MEMORY {
        report.value(at, format!("expected at least 1MiB, got {bytes} bytes"));
    }
    Some(MemoryLimit::Bytes(bytes))
}
