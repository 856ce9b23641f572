//! The engine with policies of real configurations.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops, and the line says where")]

#[path = "engine/overrides.rs"]
mod overrides;
#[path = "engine/reloads.rs"]
mod reloads;
