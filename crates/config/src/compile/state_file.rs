//! The state file, in which counters survive restarts.

use std::path::Path;

use super::{note_switch_as_file, resolve_relative};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, raw};
use weir_store::state_file::StateFileSettings;

/// Compiles the section `state`. A file that cannot be written is a note and not a problem, because Weir
/// works without it.
pub(super) fn compile(raw: Option<&raw::State>, file: &Path, at: At<'_>) -> Option<StateFileSettings> {
    let raw = raw?;
    let interval = at.key("interval").timeout(&raw.interval, defaults::STATE_FILE_INTERVAL);
    let (written, at) = (raw.file.as_ref()?, at.key("file"));
    if written.ends_with('/') || Path::new(written).file_name().is_none() {
        let error = ValueError::new(format!("expected a file, got {}", quoted(written)));
        at.error(error.with_hint("a directory cannot be written to"));
        return None;
    }
    note_switch_as_file("counters", written, "", at.path(), at.report());
    let settings = StateFileSettings { file: resolve_relative(file, written), interval };
    if let Some(obstacle) = settings.obstacle() {
        let error = ValueError::new(format!("cannot save counters to {}: {obstacle}", quoted(written)));
        at.note(error.with_hint("the directory must exist and be writable"));
    }
    Some(settings)
}
