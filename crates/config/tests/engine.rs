//! The engine with policies of real configurations.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

#[path = "engine/overrides.rs"]
mod overrides;
#[path = "engine/reloads.rs"]
mod reloads;

use std::path::Path;

use weir_policy::engine::PolicySpec;

fn spec(rules: &str) -> PolicySpec {
    let text = format!("listeners: 127.0.0.1:0\nupstream: echo\nrules:\n{rules}");
    weir_config::from_text(&text, Path::new("weir.yaml"), &|_| None).unwrap().policy
}
