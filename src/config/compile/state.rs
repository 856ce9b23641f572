//! The state file, in which counters survive restarts.

use std::path::Path;

use super::{beside, timeout};
use crate::config::at::At;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, raw};
use crate::state_file::StateFileSettings;

/// Compiles the section `state`. A file that cannot be written is a note and not a problem, because Weir
/// works without it.
pub(super) fn compile(
    raw: Option<&raw::State>,
    file: &Path,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<StateFileSettings> {
    let raw = raw?;
    let interval = timeout(&raw.interval, defaults::STATE_INTERVAL, at.key("interval"), report);
    let (written, at) = (raw.file.as_ref()?, at.key("file"));
    if written.ends_with('/') || Path::new(written).file_name().is_none() {
        let fault = Fault::new(format!("expected a file, got {}", quoted(written)));
        report.value(at, fault.hint("a directory cannot be written to"));
        return None;
    }
    let settings = StateFileSettings { file: beside(file, written), interval };
    if let Some(obstacle) = settings.obstacle() {
        let fault = Fault::new(format!("cannot save counters to {}: {obstacle}", quoted(written)));
        report.note(at, fault.hint("the directory must exist and be writable"));
    }
    Some(settings)
}
