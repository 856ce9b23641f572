//! The state file, in which counters survive restarts.

use std::path::Path;

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
    let settings = StateFileSettings { file: at.written_file("counters", written, file)?, interval };
    if let Some(obstacle) = settings.obstacle() {
        let error = ValueError::new(format!("cannot save counters to {}: {obstacle}", quoted(written)));
        at.note(error.with_hint("the directory must exist and be writable"));
    }
    Some(settings)
}
