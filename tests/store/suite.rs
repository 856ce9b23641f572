//! Tests that hold for every implementation. Each module of this name runs them on one of them.

mod calls;
mod cluster;
mod error_replies;
mod outages;
mod sentinel;

use crate::servers::Flavour;

/// Returns the implementation on which this module runs the tests.
fn flavour() -> Flavour {
    if module_path!().ends_with("::valkey") { Flavour::Valkey } else { Flavour::Redis }
}
