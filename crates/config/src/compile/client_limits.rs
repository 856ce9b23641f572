//! Limits for clients: of a listener's connections, and of the whole process.

use std::num::NonZeroUsize;

use super::endpoints::read_percent;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_net::listener::ListenerLimits;
use weir_net::overload::{MemoryLimit, OverloadSettings};

/// Valid sizes of the header section, in bytes. A smaller maximum would reject what browsers send; a larger
/// one has no use.
const HEADER_SIZE_RANGE: std::ops::RangeInclusive<u64> = 4 * 1024..=1024 * 1024;

/// Minimum of `memory`, in bytes. With less, every request would be shed.
const MIN_MEMORY: u64 = 1024 * 1024;

/// Compiles the limits of a listener's connections and requests.
pub(super) fn compile_listener_limits(raw: Option<&raw::ListenerLimits>, at: At<'_>) -> ListenerLimits {
    let empty = raw::ListenerLimits::default();
    let raw = raw.unwrap_or(&empty);
    let at = at.key("header_size");
    let size = raw.header_size.as_ref().and_then(|size| at.ok(parse::size(&size.0)));
    if let Some(size) = size.filter(|size| !HEADER_SIZE_RANGE.contains(size)) {
        at.error(format!("expected a size from 4KiB to 1MiB, got {size} bytes"));
    }
    ListenerLimits {
        header_size: size.and_then(|size| u32::try_from(size).ok()).unwrap_or(defaults::MAX_HEADER_SIZE),
        headers: raw.headers.unwrap_or(defaults::MAX_HEADERS),
        streams: raw.streams.unwrap_or(defaults::MAX_CONCURRENT_STREAMS),
    }
}

/// Compiles the overload protection of the process.
pub(super) fn compile_overload(raw: Option<&raw::Overload>, at: At<'_>) -> OverloadSettings {
    let Some(raw) = raw else { return OverloadSettings::default() };
    let connections = raw.connections.and_then(max_connections);
    if let (Some(max), Some(per_client)) = (connections, raw.connections_per_client)
        && max.get() < usize::try_from(per_client.get()).unwrap_or(usize::MAX)
    {
        let error = format!("above `connections`, {per_client} > {max}");
        at.key("connections_per_client").error(error);
    }
    OverloadSettings {
        connections,
        connections_per_client: raw.connections_per_client,
        requests: raw.requests,
        memory: raw.memory.as_ref().map_or(MemoryLimit::Auto, |raw| {
            // Problems are reported; the value is not used then.
            parse_memory_limit(&raw.0, at.key("memory")).unwrap_or(MemoryLimit::Auto)
        }),
        unsent: raw.unsent.as_ref().and_then(|raw| parse_budget(&raw.0, at.key("unsent"))),
        waiting: raw.waiting.as_ref().and_then(|raw| parse_budget(&raw.0, at.key("waiting"))),
    }
}

/// Returns a size in bytes; `None` for `auto`.
fn parse_budget(text: &str, at: At<'_>) -> Option<usize> {
    if text == "auto" {
        return None;
    }
    let bytes = at.ok(parse::size(text))?;
    if bytes < MIN_MEMORY {
        at.error(format!("expected at least 1MiB, got {bytes} bytes"));
    }
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns a number of connections; `None` for `auto`.
pub(super) fn max_connections(raw: raw::Connections) -> Option<NonZeroUsize> {
    match raw {
        raw::Connections::Count(count) => Some(count),
        raw::Connections::Auto(_) => None,
    }
}

fn parse_memory_limit(text: &str, at: At<'_>) -> Option<MemoryLimit> {
    if text.trim_end().ends_with('%') {
        let share = read_percent(Some(&raw::Percentage(text.to_owned())), 100, at);
        if share == 0 {
            at.error("expected at least 1%, got 0%");
        }
        return Some(MemoryLimit::Percent(share));
    }
    match text {
        "auto" => return Some(MemoryLimit::Auto),
        "disabled" => return Some(MemoryLimit::Off),
        _ => {}
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        let error = ValueError::new(format!("expected a size or a percentage, got {}", quoted(text)));
        at.error(error.with_hint("such as `400MiB` or `90%`"));
        return None;
    }
    let bytes = at.ok(parse::size(text))?;
    if bytes < MIN_MEMORY {
        at.error(format!("expected at least 1MiB, got {bytes} bytes"));
    }
    Some(MemoryLimit::Bytes(bytes))
}
