//! How much may be under way: of one listener's connections, and in all.

use std::num::NonZeroUsize;

use super::endpoints::percent;
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, parse, raw};
use crate::listener::Limits;
use crate::overload::{Memory, Settings};

/// Smaller heads would refuse what browsers send; larger ones are for none to read.
const HEADER_SIZES: std::ops::RangeInclusive<u64> = 4 * 1024..=1024 * 1024;

/// Less memory would turn away every request.
const LEAST_MEMORY: u64 = 1024 * 1024;

/// What a connection and a request may take.
pub(super) fn limits(raw: Option<&raw::ListenerLimits>, at: At<'_>, report: &mut Report<'_>) -> Limits {
    let unsaid = raw::ListenerLimits::default();
    let raw = raw.unwrap_or(&unsaid);
    let at = at.key("header_size");
    let size = raw.header_size.as_ref().and_then(|size| report.take(at, parse::size(&size.0)));
    if let Some(size) = size.filter(|size| !HEADER_SIZES.contains(size)) {
        report.value(at, format!("expected a size from 4KiB to 1MiB, got {size} bytes"));
    }
    Limits {
        header_size: size.and_then(|size| u32::try_from(size).ok()).unwrap_or(defaults::HEADER_SIZE),
        headers: raw.headers.unwrap_or(defaults::MOST_HEADERS),
        streams: raw.streams.unwrap_or(defaults::MOST_STREAMS),
    }
}

/// How much may be under way in all.
pub(super) fn compile(raw: Option<&raw::Overload>, at: At<'_>, report: &mut Report<'_>) -> Settings {
    let Some(raw) = raw else { return Settings::default() };
    let connections = raw.connections.and_then(connections);
    if let (Some(most), Some(each)) = (connections, raw.connections_per_client)
        && most.get() < usize::try_from(each.get()).unwrap_or(usize::MAX)
    {
        let fault = format!("above `connections`, {each} > {most}");
        report.value(at.key("connections_per_client"), fault);
    }
    Settings {
        connections,
        connections_per_client: raw.connections_per_client,
        requests: raw.requests,
        memory: raw.memory.as_ref().and_then(|raw| memory(&raw.0, at.key("memory"), report)),
    }
}

/// A number of connections; `None` for `auto`.
pub(super) fn connections(raw: raw::Connections) -> Option<NonZeroUsize> {
    match raw {
        raw::Connections::Count(count) => Some(count),
        raw::Connections::Auto(_) => None,
    }
}

fn memory(text: &str, at: At<'_>, report: &mut Report<'_>) -> Option<Memory> {
    if text.trim_end().ends_with('%') {
        let share = percent(Some(&raw::Percentage(text.to_owned())), 100, at, report);
        if share == 0 {
            report.value(at, "expected at least 1%, got 0%");
        }
        return Some(Memory::Share(share));
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
    Some(Memory::Bytes(bytes))
}
