//! What holds on any server: each module of this name is the suite on that one.

mod calls;
mod cluster;
mod losses;
mod refusals;
mod sentinel;

use crate::servers::Flavour;

/// The servers of this suite.
fn flavour() -> Flavour {
    if module_path!().ends_with("::valkey") { Flavour::Valkey } else { Flavour::Redis }
}
