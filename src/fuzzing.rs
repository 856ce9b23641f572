//! What every parser of ours promises, whatever bytes it is given; for `cargo fuzz` and for tests, and in no other
//! build.
//!
//! A target takes bytes and panics where a promise is broken. It asks for more than the absence of panics: what
//! was read can be written and read again, what is cut into pieces means the same as the whole, one spelling stays
//! one. `fuzz/` has the binaries, and bytes to begin with, which the tests play, too.

mod configuration;
mod document;
mod fields;
mod keys;
mod paths;
mod rate_limits;
mod state;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use self::configuration::{configuration, data_file, value};
pub use self::document::document;
pub use self::fields::{cost, forwarded, host, load_report, proxy_protocol, token, trace};
pub use self::keys::keys;
pub use self::paths::path;
pub use self::rate_limits::rate_limits;
pub use self::state::state;
pub use crate::http1::client::fuzzing::{answer, chunks};
pub use crate::http1::server::fuzzing::request;
pub use crate::proxy::fuzzing::steering;

/// A target: it takes any bytes, and panics where a promise is broken.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: [(&str, Target); 19] = [
    ("answer", answer),
    ("chunks", chunks),
    ("configuration", configuration),
    ("cost", cost),
    ("data_file", data_file),
    ("document", document),
    ("forwarded", forwarded),
    ("host", host),
    ("keys", keys),
    ("load_report", load_report),
    ("path", path),
    ("proxy_protocol", proxy_protocol),
    ("rate_limits", rate_limits),
    ("request", request),
    ("state", state),
    ("steering", steering),
    ("token", token),
    ("trace", trace),
    ("value", value),
];

/// One header, a line for each line of `data` that may be one.
fn lines_of(name: &HeaderName, data: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n').take(256) {
        if let Ok(value) = HeaderValue::from_bytes(line.trim_ascii()) {
            headers.append(name, value);
        }
    }
    headers
}

/// The first byte, which steers a target, and what it is to read.
fn steered(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}

#[cfg(test)]
mod tests;
