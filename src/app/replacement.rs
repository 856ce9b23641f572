//! Replacement of the running process by a new one, which takes over its sockets, counters and connections (SIGUSR2).
//!
//! The old process starts the new one, with one end of a private socket as its standard input. The new one prepares
//! everything that can fail, then gets the counters, and serves. Until then the old process can go on as if nothing had
//! happened. Afterwards it passes on the connections that are between two requests, and what its requests in flight
//! still charge. Design note 052 has the steps, and what each failure leaves.

mod channel;
mod predecessor;
mod relay;
mod state;
mod successor;
pub(super) mod supervisor;

use std::path::PathBuf;

pub(super) use self::predecessor::Predecessor;
pub(super) use self::relay::Relay;
pub(super) use self::successor::Replacer;

/// Variable that tells a process that its standard input is the private socket. Its value is the path of the binary.
const VARIABLE: &str = "WEIR_PREDECESSOR";

/// Returns the path of the binary with which the first process has started. It has to be asked first: the system follows
/// later renames.
pub(super) fn own_program() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).map(PathBuf::from).or_else(|| std::env::current_exe().ok())
}

/// The file of the running binary, even if another lies at its path by now.
const OWN_BINARY: &str = "/proc/self/exe";

/// Version of the messages. A process that does not know it does not replace another.
const VERSION: u32 = 1;
