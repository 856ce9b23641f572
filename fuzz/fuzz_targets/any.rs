//! All fuzz targets in one program, so that a short run of each needs one link step. `WEIR_FUZZ` selects the target.
#![no_main]

use std::sync::LazyLock;

use weir_fuzz_targets::{TARGETS, Target};

static CHOSEN: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
    let found = TARGETS.into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no target {name:?}")).1
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| CHOSEN(data));
